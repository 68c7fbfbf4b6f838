"""Where ranks are, in a line; and when ranks that are apart are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from meshbook.magics.cells.divergence import DivergenceWatch
from meshbook.magics.meshes.whereabouts import RankWhereabouts, format_whereabouts
from meshbook.runtime.cells.outcome import Frame
from meshbook.runtime.cells.thread_stacks import MainThreadState
from meshbook.runtime.hosts.observer import Observation, SampledFrame, SampledThread

CELL = Frame("<cell 9>", 14, "<module>")
STEP = Frame("<cell 9>", 3, "step")
DATA = Frame("/home/me/data.py", 88, "load")
ALL_REDUCE = Frame("/lib/torch/distributed/distributed_c10d.py", 2867, "all_reduce", is_user=False)
IDLE = RankWhereabouts(MainThreadState(is_idle=True))
COMPUTES = RankWhereabouts(MainThreadState(frames=(CELL, STEP)))
LOADS = RankWhereabouts(MainThreadState(frames=(CELL, DATA)))
REDUCES = RankWhereabouts(MainThreadState(frames=(CELL, ALL_REDUCE)))
STOPPED = RankWhereabouts(seen=Observation(4711, "T", "do_signal_stop"))
HOLDS = RankWhereabouts(
    seen=Observation(
        *(4711, "S", "hrtimer_nanosleep"),
        threads=(
            SampledThread("ZMQbg/IO/0", False, ()),
            SampledThread(
                "MainThread", True, (SampledFrame("step", "<cell 9>", 3), SampledFrame("<module>", "<cell 9>", 14))
            ),
        ),
    )
)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (IDLE, "idle"),
        (COMPUTES, "at cell 9:3 in step"),
        (LOADS, "at data.py:88 in load"),
        (REDUCES, "in all_reduce (cell 9:14)"),
        (RankWhereabouts(MainThreadState()), "at the beginning or end of the cell"),
        (STOPPED, "does not answer: stopped (SIGSTOP)"),
        (HOLDS, "does not answer: holds the GIL in C (waits in hrtimer_nanosleep) at cell 9:3 in step"),
        (RankWhereabouts(), "does not answer"),
    ],
)
def test_where_a_rank_is(where: RankWhereabouts, said: str) -> None:
    assert str(where) == said


def test_ranks_at_the_same_place_are_told_together_and_the_most_first() -> None:
    whereabouts = {0: REDUCES, 1: LOADS, 2: REDUCES, 3: REDUCES, 5: STOPPED, 6: STOPPED}
    assert format_whereabouts(whereabouts) == (
        "3 ranks [0,2-3] in all_reduce (cell 9:14), 2 ranks [5-6] do not answer: stopped (SIGSTOP), "
        "rank 1 at data.py:88 in load"
    )


# --- ranks that are apart ---

Look = tuple[float, Mapping[int, RankWhereabouts], Sequence[int]]  # when, the ranks that run, those that are done


@pytest.mark.parametrize(
    ("looks", "said"),
    [
        ([(5, {0: COMPUTES, 1: COMPUTES}, [])], [""]),
        ([(5, {0: REDUCES, 1: REDUCES}, []), (10, {0: REDUCES, 1: REDUCES}, [])], ["", ""]),
        ([(5, {1: COMPUTES}, [0])], ["rank 0 done, rank 1 at cell 9:3 in step"]),
        ([(5, {0: COMPUTES, 1: STOPPED}, [])], [f"rank 0 {COMPUTES}, rank 1 {STOPPED}"]),
        # For a moment that happens in any training; a second later it is a rank that keeps the others waiting.
        (
            [(5, {0: REDUCES, 1: LOADS}, []), (6, {0: REDUCES, 1: COMPUTES}, [])],
            ["", "rank 0 in all_reduce (cell 9:14), rank 1 at cell 9:3 in step"],
        ),
        ([(5, {0: REDUCES, 1: LOADS}, []), (6, {0: COMPUTES, 1: REDUCES}, [])], ["", ""]),
        ([(5, {}, [0, 1])], [""]),
    ],
)
def test_what_is_said_of_ranks_that_are_apart(looks: list[Look], said: list[str]) -> None:
    watch = DivergenceWatch(0.0)
    told = []
    for at, whereabouts, done in looks:
        assert watch.is_due(at)
        told.append(watch.take(whereabouts, done, at))
    assert told == said


@pytest.mark.parametrize(
    ("looks", "said"),
    [
        (
            [(4, {0: REDUCES}, []), (5, {0: REDUCES}, [])],
            ["", "rank 0 in all_reduce (cell 9:14), ranks 2-3 are not in this cell"],
        ),
        ([(4, {0: REDUCES}, []), (5, {0: COMPUTES}, [])], ["", ""]),
        ([(4, {0: COMPUTES}, [])], [""]),
        ([(4, {0: REDUCES}, [1])], ["rank 1 done, rank 0 in all_reduce (cell 9:14), ranks 2-3 are not in this cell"]),
    ],
)
def test_what_is_said_of_ranks_that_wait_for_others_than_the_cells(looks: list[Look], said: list[str]) -> None:
    watch = DivergenceWatch(0.0, absent=[2, 3])
    told = []
    for at, whereabouts, done in looks:
        assert watch.is_due(at)
        told.append(watch.take(whereabouts, done, at))
    assert told == said


def test_it_looks_after_five_seconds_without_an_answer_and_then_as_often() -> None:
    watch = DivergenceWatch(0.0)
    assert [watch.is_due(at) for at in (4.9, 5.0, 60.0)] == [False, True, False], "one look at a time"
    watch.take({0: COMPUTES}, [], 5.5)
    watch.answered(6.0)
    assert [watch.is_due(at) for at in (10.9, 11.0)] == [False, True]
    watch.take({0: COMPUTES}, [1], 11.0)
    watch.answered(12.0)
    assert [watch.is_due(at) for at in (12.9, 13.0)] == [False, True], "what is on show is not true any more"


def test_after_an_interrupt_it_looks_soon() -> None:
    watch = DivergenceWatch(0.0)
    watch.hurry(1.0)
    watch.answered(1.5)
    assert [watch.is_due(at) for at in (2.4, 2.5)] == [False, True]
