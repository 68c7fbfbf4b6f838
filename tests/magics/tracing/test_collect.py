"""Traces: the choice of the cell, the common clock, the file for Perfetto, and the output in the cell."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from meshbook.magics.errors import MeshError
from meshbook.magics.tracing.collect import (
    CellTime,
    CellTimes,
    ClockOffset,
    ReplyTimes,
    Trace,
    TracedProcess,
    best_clock,
    choose,
    is_use,
    shift,
)
from meshbook.runtime.telemetry.spans import CallMark, Span, SpanRecording
from meshbook.runtime.telemetry.timeline_lanes import TimeWindow

MS = 1_000_000


SAME = ClockOffset()


CALL = Span("call", 1 * MS, 2 * MS, 11, "step", "local 3", (7, 8, "trainers-1@controller"))


def recording(*spans: Span, marks: tuple[CallMark, ...] = (), since: int = 0) -> SpanRecording:
    return SpanRecording(90 * MS, since, spans, marks, {11: "MainThread", 12: "meshbook actor trainers"})


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


def test_cells_on_threads_of_their_own_have_their_own_times() -> None:
    """Cells of subshells run beside a cell of the main thread."""
    times = CellTimes()
    times.begin()

    def run_beside() -> None:
        times.begin()
        times.end(SimpleNamespace(execution_count=8))

    beside = threading.Thread(target=run_beside)
    beside.start()
    beside.join()
    inner, outer = times.known(7)
    assert (inner.number, inner.is_open, outer.number, outer.is_open) == (8, False, 7, True)
    assert outer.start < inner.start
    times.end(SimpleNamespace(execution_count=7))
    assert [cell.number for cell in times.known(9)] == [8, 7]
    assert times.seconds == 0


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
