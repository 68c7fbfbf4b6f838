"""Lanes: what spans say of what each rank was at, who waited for whom, and that lanes stay within bounds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from meshbook.runtime.telemetry.spans import Kind, Span, SpanRecording
from meshbook.runtime.telemetry.timeline_lanes import (
    LaneSegment,
    TimeWindow,
    WaitBlame,
    blames_of,
    lanes_of,
    thin_out,
    totals_of,
)

WINDOW = TimeWindow(0, 100)


def span(kind: Kind, start: int, end: int, name: str = "", thread: int = 1, *, is_open: bool = False) -> Span:
    link = ("",) if kind == "collective" else ()
    return Span(kind, start, end, thread, name, link=link, is_open=is_open)


def recording(*spans: Span, since: int = 0) -> SpanRecording:
    return SpanRecording(100, since, spans, (), {})


def told(lane: Sequence[LaneSegment]) -> list[tuple[int, int, str, str]]:
    return [(each.start, each.end, each.state, each.name) for each in lane]


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([], [(0, 100, "idle", "")]),
        ([span("cell", 10, 60)], [(0, 10, "idle", ""), (10, 60, "running", ""), (60, 100, "idle", "")]),
        ([span("cell", -10, 160)], [(0, 100, "running", "")]),
        (
            [span("cell", 0, 100), span("user", 20, 40, "load"), span("call", 25, 30)],
            [(0, 20, "running", ""), (20, 40, "running", "load"), (40, 100, "running", "")],
        ),
        (
            [span("cell", 0, 100), span("wait", 20, 40)],
            [(0, 20, "running", ""), (20, 40, "waiting", "an answer"), (40, 100, "running", "")],
        ),
        (
            [span("cell", 0, 100), span("user", 10, 90, "step"), span("transfer", 20, 40, "pull")],
            [
                *[(0, 10, "running", ""), (10, 20, "running", "step"), (20, 40, "transfer", "pull")],
                *[(40, 90, "running", "step"), (90, 100, "running", "")],
            ],
        ),
        # Messages that overlap on a loop: it waits while all of them wait.
        (
            [span("run", 0, 100, "f"), span("run", 10, 90, "f"), span("wait", 5, 50), span("wait", 20, 60)],
            [
                *[(0, 5, "running", "f"), (5, 10, "waiting", "an answer"), (10, 20, "running", "f")],
                *[(20, 50, "waiting", "an answer"), (50, 100, "running", "f")],
            ],
        ),
        # Of several threads it counts that one runs.
        (
            [span("run", 0, 100, "f", 1), span("wait", 0, 100, "", 1), span("run", 40, 60, "g", 2)],
            [(0, 40, "waiting", "an answer"), (40, 60, "running", "g"), (60, 100, "waiting", "an answer")],
        ),
        ([span("run", 50, 50, "f")], [(0, 100, "idle", "")]),
    ],
)
def test_the_innermost_says_what_a_rank_is_at(spans: list[Span], expected: list[tuple[int, int, str, str]]) -> None:
    lane = lanes_of({0: recording(*spans)}, WINDOW)[0]
    assert told(lane) == expected


def test_in_a_collective_one_waits_for_the_last_and_then_is_in_it() -> None:
    early = recording(span("cell", 0, 100), span("collective", 10, 60, "all_reduce"))
    late = recording(span("cell", 0, 100), span("collective", 50, 60, "all_reduce"))
    lanes = lanes_of({0: early, 1: early, 2: late}, WINDOW)
    assert lanes[0][1:3] == (
        LaneSegment(10, 50, "waiting", "all_reduce", (2,)),
        LaneSegment(50, 60, "collective", "all_reduce"),
    )
    assert told(lanes[2]) == [(0, 50, "running", ""), (50, 60, "collective", "all_reduce"), (60, 100, "running", "")]
    assert blames_of(lanes) == [WaitBlame("all_reduce", (2,), 40, 1, (0, 1))]
    assert totals_of(lanes[0]) == {"running": 50, "collective": 10, "transfer": 0, "waiting": 40, "idle": 0}


def test_one_that_never_comes_is_waited_for_to_the_end() -> None:
    stuck = recording(span("cell", 0, 100, is_open=True), span("collective", 10, 100, "barrier", is_open=True))
    lanes = lanes_of({0: stuck, 1: recording(span("cell", 0, 100)), 2: stuck}, WINDOW)
    assert lanes[0][1] == LaneSegment(10, 100, "waiting", "barrier", (1,))
    assert blames_of(lanes) == [WaitBlame("barrier", (1,), 90, 1, (0, 2))]


def test_a_backward_pass_that_reduces_gradients_waits_for_the_rank_that_begins_last() -> None:
    def backward(start: int, end: int, *link: str) -> SpanRecording:
        return recording(span("cell", 0, 100), Span("backward", start, end, 1, "backward", link=link))

    lanes = lanes_of({0: backward(10, 61, ""), 1: backward(40, 60, "")}, WINDOW)
    assert lanes[0][1:3] == (
        LaneSegment(10, 30, "running", "backward"),
        LaneSegment(30, 61, "waiting", "backward", (1,)),
    )
    assert blames_of(lanes) == [WaitBlame("backward", (1,), 31, 1, (0,))]
    assert blames_of(lanes_of({0: backward(10, 61), 1: backward(40, 60)}, WINDOW)) == []


def test_calls_belong_together_by_their_order_from_the_end_where_the_first_are_forgotten() -> None:
    all_of_them = [span("collective", 10 * at, 10 * at + 5, "all_reduce") for at in range(1, 6)]
    lanes = lanes_of({0: recording(*all_of_them), 1: recording(*all_of_them[2:], since=30)}, WINDOW)
    assert blames_of(lanes) == []


@pytest.mark.parametrize("most", [1, 7, 50])
def test_a_lane_stays_within_bounds_and_keeps_what_lasted_long(most: int) -> None:
    short = [span("wait", 10 * at, 10 * at + 1) for at in range(1000)]
    lane = lanes_of({0: recording(span("cell", 0, 20_000), *short)}, TimeWindow(0, 20_000))[0]
    thin = thin_out(lane, most)
    assert len(lane) > most >= len(thin)
    assert (thin[0].start, thin[-1].end) == (0, 20_000)
    assert all(left.end == right.start for left, right in itertools.pairwise(thin))
    assert {segment.state for segment in thin} == {"running"}
