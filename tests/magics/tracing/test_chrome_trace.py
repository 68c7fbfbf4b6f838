"""A trace as a file for Perfetto and Chrome."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from meshbook.magics.tracing.chrome_trace import lay_out, make_chrome_trace, write_trace
from meshbook.magics.tracing.collect import (
    Trace,
)
from meshbook.runtime.telemetry.spans import CallMark, Span
from tests.magics.tracing.test_collect import CALL, MS, make_trace, recording


def run(number: int, start: int, end: int) -> Span:
    return Span("run", start * MS, end * MS, 12, "step", "local 3", ("controller", number, "trainers-1@controller"))


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
