"""Where ranks are, in a line; and when ranks that are apart are reported."""

from __future__ import annotations

import pytest

from meshbook.magics.meshes.whereabouts import RankWhereabouts, format_remaining, format_whereabouts
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


def test_ranks_at_the_same_place_are_reported_together_and_the_most_first() -> None:
    whereabouts = {0: REDUCES, 1: LOADS, 2: REDUCES, 3: REDUCES, 5: STOPPED, 6: STOPPED}
    assert format_whereabouts(whereabouts) == (
        "3 ranks [0,2-3] in all_reduce (cell 9:14), 2 ranks [5-6] do not answer: stopped (SIGSTOP), "
        "rank 1 at data.py:88 in load"
    )
    assert format_remaining(whereabouts) == (
        "3 ranks [0,2-3] are still in all_reduce (cell 9:14), 2 ranks [5-6] do not answer: stopped (SIGSTOP), "
        "rank 1 is still at data.py:88 in load"
    )
