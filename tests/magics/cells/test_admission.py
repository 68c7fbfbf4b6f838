"""Which ranks begin a cell when: `--first`, `--seq`, and waits for other cells. Tables, without a rank."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest

from meshbook.magics.cells.admission import (
    AFTER_ERROR,
    AFTER_FIRST,
    AdmissionQueue,
    RankQueues,
    StartTurn,
    StartWave,
    format_waiting,
    plan_waves,
)


@pytest.mark.parametrize(
    ("first", "options", "waves"),
    [
        ((), {}, [StartWave((0, 1, 2, 3))]),
        ((2,), {}, [StartWave((2,)), StartWave((0, 1, 3), AFTER_FIRST)]),
        ((0, 1, 2, 3), {}, [StartWave((0, 1, 2, 3))]),
        ((), {"one_by_one": True}, [StartWave((rank,), AFTER_ERROR) for rank in range(4)]),
        ((), {"one_by_one": True, "stops_on_error": False}, [StartWave((rank,)) for rank in range(4)]),
        (
            (2, 3),
            {"one_by_one": True, "stops_on_error": False},
            [StartWave((2,)), StartWave((3,)), StartWave((0,), AFTER_FIRST), StartWave((1,))],
        ),
    ],
)
def test_waves(first: tuple[int, ...], options: dict[str, bool], waves: list[StartWave]) -> None:
    assert list(plan_waves((0, 1, 2, 3), first, **options)) == waves


def attend(queues: RankQueues, name: str, waves: Iterable[StartWave]) -> AdmissionQueue:
    return AdmissionQueue(queues, {rank: f"node{rank}" for rank in range(4)}, waves, origin=name, title=f"cell {name}")


def admit(waves: Iterable[StartWave]) -> AdmissionQueue:
    return attend(RankQueues(), "1", waves)


def test_a_wave_begins_once_the_one_before_is_done() -> None:
    queue = admit([StartWave((0, 1)), StartWave((2,))])
    assert queue.take_turn({0, 1, 2}, has_failed=False) == StartTurn((0, 1))
    assert (queue.take_turn({1, 2}, has_failed=False), queue.not_begun) == (StartTurn(), {2})
    assert queue.take_turn({2}, has_failed=True) == StartTurn((2,)), "it goes on after an error"
    assert (queue.take_turn((), has_failed=True), queue.not_begun) == (StartTurn(), frozenset())


def test_after_a_failure_the_rest_is_skipped() -> None:
    queue = admit(plan_waves(range(4), (1,), one_by_one=True))
    assert queue.take_turn(range(4), has_failed=False) == StartTurn((1,))
    assert queue.take_turn((0, 2, 3), has_failed=True) == StartTurn(skipped=(0, 2, 3), reason=AFTER_FIRST)
    assert queue.take_turn((), has_failed=True) == StartTurn()


def test_turns_can_be_taken_away() -> None:
    queue = admit(plan_waves(range(4), one_by_one=True))
    queue.take_turn(range(4), has_failed=False)
    assert queue.withdraw({0, 2}) == ({2: "the cell ended first"}, [0]), "rank 0 has begun"
    assert queue.take_turn((1, 3), has_failed=False) == StartTurn((1,))


def test_another_notebook_goes_on_where_this_one_stops() -> None:
    """Here no other rank begins, and there the next one does once those that run are done."""
    queue = admit(plan_waves(range(4), (1,), one_by_one=True))
    queue.take_turn(range(4), has_failed=False)
    left = queue.release_waves()
    assert queue.take_turn((0, 2, 3), has_failed=False) == StartTurn()
    there = admit(left)
    there.resume({1})
    assert there.take_turn(range(4), has_failed=False) == StartTurn()
    assert there.take_turn((0, 2, 3), has_failed=False) == StartTurn((0,))
    after_a_failure = admit(left)
    assert after_a_failure.take_turn((0, 2, 3), has_failed=True).skipped == (0, 2, 3)


def test_a_rank_is_at_one_cell_at_a_time() -> None:
    queues = RankQueues()
    before, after = attend(queues, "1", [StartWave((0, 1))]), attend(queues, "2", [StartWave((1, 2))])
    for each in (before, after):
        each.take_turn(range(3), has_failed=False)
    assert (before.ahead(), after.ahead()) == ({}, {1: "cell 1"})
    assert queues.at_work() == {"cell 1": ["node0", "node1"], "cell 2": ["node2"]}
    assert (after.at_work((0, 1, 2)), after.not_begun) == ([2], frozenset())
    before.leave(1)
    assert (after.ahead(), after.at_work((0, 1, 2))) == ({}, [1, 2])


def test_ranks_that_have_not_begun_are_withdrawn_at_once() -> None:
    queues = RankQueues()
    attend(queues, "1", [StartWave((0,))]).take_turn(range(3), has_failed=False)
    cell = attend(queues, "2", [StartWave((0, 1)), StartWave((2,))])
    cell.take_turn(range(3), has_failed=False)
    reasons, sent = cell.withdraw((0, 1, 2))
    assert reasons == {0: "cell 1 was still running", 2: "the cell ended first"}
    assert sent == [0, 1], "rank 0 has it in its queue, and has to be told"


@pytest.mark.parametrize(
    ("ahead", "text"),
    [
        ({}, ""),
        ({0: "job 1 of cell 2", 1: "job 1 of cell 2"}, "waiting for job 1 of cell 2"),
        ({1: "job 1 of cell 2"}, "waiting for job 1 of cell 2 (rank 1)"),
        ({0: "cell 3", 1: "cell 4"}, "waiting for cell 3 (rank 0), cell 4 (rank 1)"),
    ],
)
def test_waiting_in_words(ahead: dict[int, str], text: str) -> None:
    assert format_waiting(ahead, count=2) == text


def test_a_rank_is_free_since_its_last_execution_was_over() -> None:
    now = 10.0
    queues = RankQueues(clock=lambda: now)
    queues.join(["node0", "node1"], "a", "cell 1")
    queues.join(["node1"], "b", "cell 2")
    queues.leave("node0", "a")
    queues.leave("node1", "a")
    now = 12.0
    assert queues.seconds_free(["node0", "node1", "node2"]) == [2.0, 0.0, math.inf]
