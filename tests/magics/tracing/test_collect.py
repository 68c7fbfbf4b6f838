"""Traces: the choice of the cell, the common clock, the file for Perfetto, and the output in the cell."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from meshbook.magics.errors import MeshError
from meshbook.magics.tracing import timeline_json
from meshbook.magics.tracing.chrome_trace import lay_out, make_chrome_trace, write_trace
from meshbook.magics.tracing.collect import (
    CellTime,
    ClockOffset,
    ReplyTimes,
    Trace,
    TracedProcess,
    best_clock,
    choose,
    is_use,
    shift,
)
from meshbook.magics.tracing.timeline_json import timeline_of
from meshbook.magics.tracing.timeline_svg import MOST_BARS, MOST_LANES, Timeline
from meshbook.runtime.telemetry.spans import CallMark, Span, SpanRecording
from meshbook.runtime.telemetry.timeline_lanes import TimeWindow

MS = 1_000_000
SAME = ClockOffset()
CALL = Span("call", 1 * MS, 2 * MS, 11, "step", "local 3", (7, 8, "trainers-1@controller"))


def recording(*spans: Span, marks: tuple[CallMark, ...] = (), since: int = 0) -> SpanRecording:
    return SpanRecording(90 * MS, since, spans, marks, {11: "MainThread", 12: "meshbook actor trainers"})


def run(number: int, start: int, end: int) -> Span:
    return Span("run", start * MS, end * MS, 12, "step", "local 3", ("controller", number, "trainers-1@controller"))


def make_trace(*ranks: SpanRecording, controller: SpanRecording | None = None, clock: ClockOffset = SAME) -> Trace:
    own = controller if controller is not None else recording(Span("cell", 0, 50 * MS, 0, "3"), CALL)
    processes = [TracedProcess(f"mesh-1.{rank}", "mesh", rank, each, clock) for rank, each in enumerate(ranks)]
    return Trace((3,), TimeWindow(0, 50 * MS), (TracedProcess("controller", "", -1, own), *processes), epoch=0)


# --- which cells ---


@pytest.mark.parametrize(
    ("number", "last", "chosen"),
    [(None, 1, [4]), (None, 2, [2, 4]), (None, 9, [2, 4]), (3, 1, [3])],
)
def test_the_default_is_the_last_cell_that_used_a_mesh(number: int | None, last: int, chosen: list[int]) -> None:
    times = [CellTime(at, 10 * at, 10 * at + 9) for at in range(1, 6)]
    calls = [Span("call", 23, 24, 1, "f"), Span("call", 45, 46, 1, "f")]
    assert [each.number for each in choose(times, calls, number=number, last=last)] == chosen


@pytest.mark.parametrize(("number", "complaint"), [(None, "no cell has used a mesh yet"), (7, "no cell 7 was run")])
def test_an_unknown_cell_is_an_error(number: int | None, complaint: str) -> None:
    with pytest.raises(MeshError, match=complaint):
        choose([CellTime(1, 0, 9)], [], number=number, last=1)


@pytest.mark.parametrize(
    ("kind", "name", "actor", "is_one"),
    [("call", "run", "cells", True), ("call", "prepare", "cells", False), ("call", "step", "a", True)],
)
def test_preparing_a_mesh_does_not_count_as_use(kind: Any, name: str, actor: str, is_one: bool) -> None:
    assert is_use(Span(kind, 0, 1, 1, name, "", (1, 1, f"{actor}-1@controller"))) is is_one


# --- one clock ---


def test_the_quickest_ping_measures_the_clock() -> None:
    assert best_clock([(0, 1_500, 1_000), (2_000, 3_110, 2_200), (4_000, 5_900, 5_000)]) == ClockOffset(1_010, 100)


def test_a_recording_is_shifted() -> None:
    there = SpanRecording(100, 10, (Span("user", 20, 30, 1, "x"),), (CallMark(25, "controller", 1),), {}, 12)
    moved = SpanRecording(95, 5, (Span("user", 15, 25, 1, "x"),), (CallMark(20, "controller", 1),), {}, 7)
    assert shift(there, 5) == moved
    assert shift(there, 0) is there


# --- calls ---


@pytest.mark.parametrize(
    ("marks", "marked_since", "end"),
    [
        ({7: 5, 8: 9}, 0, 9),
        ({7: 5}, 0, 90),  # one has not come by the time of the asking
        ({}, 0, 90),
        ({8: 9}, 3, 9),  # forgotten, as the first ones are
        ({}, 3, 2),
    ],
)
def test_a_call_ends_with_its_last_answer(marks: dict[int, int], marked_since: int, end: int) -> None:
    told = tuple(CallMark(time * MS, "", call) for call, time in marks.items())
    answers = ReplyTimes(SpanRecording(90 * MS, 0, (CALL,), told, {}, marked_since * MS))
    assert answers.end_of(CALL) == end * MS


# --- the file ---


def events_of(trace: Trace, phase: str) -> list[dict[str, Any]]:
    content = json.loads(json.dumps(make_chrome_trace(trace)))
    return [event for event in content["traceEvents"] if event["ph"] == phase]


def test_the_file_has_a_process_for_each_rank_and_an_arrow_for_each_call() -> None:
    arrived = (CallMark(3 * MS, "controller", 7), CallMark(3 * MS, "controller", 8))
    answered = (CallMark(30 * MS, "", 7), CallMark(20 * MS, "", 8))
    own = recording(Span("cell", 0, 50 * MS, 0, "3"), CALL, marks=answered)
    trace = make_trace(recording(run(7, 5, 29), marks=arrived), recording(run(8, 4, 19), marks=arrived), controller=own)
    names = {event["pid"]: event["args"]["name"] for event in events_of(trace, "M") if event["name"] == "process_name"}
    assert list(names.values()) == ["controller", "mesh rank 0", "mesh rank 1"]
    slices = {(names[event["pid"]], event["name"]): event for event in events_of(trace, "X")}
    assert slices["mesh rank 0", "trainers.step"]["ts"] == 5_000
    assert slices["mesh rank 0", "trainers.step"]["dur"] == 24_000
    begins = {event["id"]: event for event in events_of(trace, "s")}
    ends = {event["id"]: event for event in events_of(trace, "f")}
    assert begins.keys() == ends.keys() == {"controller:7", "controller:8"}
    call = slices["controller", "call trainers.step"]
    for flow, rank in (("controller:7", 0), ("controller:8", 1)):
        ran = slices[f"mesh rank {rank}", "trainers.step"]
        assert all(begins[flow][key] == call[key] for key in ("pid", "tid", "ts"))
        assert all(ends[flow][key] == ran[key] for key in ("pid", "tid", "ts"))
    bars = {
        (event["name"], event["pid"], event["ph"]): event["ts"] for phase in "be" for event in events_of(trace, phase)
    }
    assert (bars["trainers.step in flight", 1, "b"], bars["trainers.step in flight", 1, "e"]) == (1_000, 30_000)
    assert (bars["trainers.step queued", 2, "b"], bars["trainers.step queued", 2, "e"]) == (3_000, 5_000)


def test_slices_of_a_row_lie_within_each_other_or_apart() -> None:
    spans = [Span("run", start, end, 1, "f") for start, end in [(0, 10), (1, 5), (4, 8), (6, 12), (10, 11), (10, 10)]]
    rows = lay_out(spans)
    assert sorted(map(len, rows.values())) == [1, 1, 4]
    for own in rows.values():
        for one, other in itertools.combinations(own, 2):
            assert other.start >= one.end or other.end <= one.end  # which began before


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_the_file_is_written_and_may_be_compressed(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    assert write_trace(make_trace(recording(run(7, 5, 29))), path) == path.stat().st_size
    data = path.read_bytes()
    content = json.loads(gzip.decompress(data) if name.endswith(".gz") else data)
    assert content["otherData"]["cells"] == [3]


# --- what is shown ---


def collective(start: int, end: int) -> Span:
    return Span("collective", start * MS, end * MS, 11, "all_reduce", "3.1", ("",))


def cell(start: int, end: int) -> Span:
    return Span("cell", start * MS, end * MS, 11, "run", "3.1", ("controller", 9, "cells-1@controller"))


def test_the_text_has_waiting_and_awaited_ranks() -> None:
    early, late = recording(cell(0, 50), collective(10, 44)), recording(cell(0, 50), collective(40, 45))
    text = Timeline(make_trace(early, late)).text()
    assert text.splitlines()[0] == "cell 3: 50 ms on 2 ranks"
    assert "rank 0    ██████████░" in text
    assert "rank 0 waited 30 ms for rank 1 in all_reduce" in text
    *_, heading, row = text.splitlines()
    assert row.split() == ["all_reduce", "1×", "34", "ms", "(rank", "0)", "5.0", "ms", "(rank", "1)", "rank", "1"]
    assert heading.index("waited for") == row.rindex("rank 1"), "the table names the straggler as the sentence does"


def test_the_picture_needs_no_script_and_escapes_names() -> None:
    named = recording(cell(0, 50), Span("user", 0, 50 * MS, 11, "<script>&", "3.1"))
    page = Timeline(make_trace(named)).html()
    assert "<svg" in page
    assert "&lt;script&gt;&amp;" in page
    assert "<script" not in page
    assert "var(--jp-" in page


def test_many_ranks_and_many_spans_stay_a_small_picture() -> None:
    many = recording(*(Span("user", at * MS // 10, at * MS // 10 + MS // 20, 11, "x") for at in range(300)))
    timeline = Timeline(make_trace(*[many] * (MOST_LANES + 8)))
    assert len(timeline.shown) == MOST_LANES + 1
    assert "8 more ranks are not drawn" in timeline.text()
    assert timeline.html().count("<rect") <= MOST_BARS * (MOST_LANES + 1)


def test_notes_name_missing_data() -> None:
    trace = make_trace(recording(cell(0, 50), since=20 * MS), clock=ClockOffset(5, 120_000))
    notes = "\n".join(Timeline(Trace(trace.cells, trace.window, trace.processes, ("mesh-1.3",), 2)).notes())
    assert "2 of its ranks have ended since" in notes
    assert "no answer from mesh-1.3" in notes
    assert "part of the first 20 ms was discarded" in notes
    assert "clocks of the hosts agree to within 120 µs" in notes


# --- as data ---


def test_timeline_json_has_lanes_in_seconds_without_idle_time() -> None:
    late = Span("collective", 30 * MS, 40 * MS, 11, "all_reduce", "3.0.1", ("",))
    early = Span("collective", 10 * MS, 40 * MS, 11, "all_reduce", "3.0.1", ("",))
    cells = [Span("cell", 5 * MS, 45 * MS, 11, "3", "3.0.1") for _ in range(2)]
    trace = make_trace(recording(cells[0], early), recording(cells[1], late))
    reply = timeline_of(trace, "mesh")
    assert (reply["cell"], reply["seconds"], reply["open"]) == (3, 0.05, False)
    assert reply["notes"] == ["rank 0 waited 20 ms for rank 1 in all_reduce"]
    assert [lane["label"] for lane in reply["lanes"]] == ["rank 0", "rank 1"]
    assert reply["lanes"][0]["spans"] == [
        (0.005, 0.01, "running", ""),
        (0.01, 0.03, "waiting", "all_reduce, for rank 1"),
        (0.03, 0.04, "collective", "all_reduce"),
        (0.04, 0.045, "running", ""),
    ]
    assert timeline_of(trace, "other") == {**reply, "lanes": [], "notes": ["no rank of other took part in this cell"]}


def test_timeline_json_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_json, "MOST_IN_ALL", 600)
    busy = recording(*(Span("user", at * 50_000, at * 50_000 + 25_000, 11, f"part {at}") for at in range(900)))
    few, many = (timeline_of(make_trace(*[busy] * ranks), "mesh")["lanes"] for ranks in (1, 10))
    assert 0 < len(few[0]["spans"]) <= timeline_json.MOST_SPANS
    assert sum(len(lane["spans"]) for lane in many) <= 600
