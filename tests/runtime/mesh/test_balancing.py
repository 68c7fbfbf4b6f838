"""Which rank gets which items: the decisions alone, at times that the test makes up."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from meshbook.runtime.mesh.balancing import MOST_DEATHS, PATIENCE, QUICK, TARGET, Balancer, ItemRequest


def make(items: int, ranks: int = 2, chunksize: int | None = None) -> Balancer:
    balancer = Balancer(range(ranks), chunksize)
    balancer.add(range(items))
    return balancer


def sent(balancer: Balancer, now: float = 0.0) -> list[tuple[int, list[int]]]:
    return [(request.rank, request.items) for request in balancer.requests(now)]


def test_the_first_requests_have_one_item_each() -> None:
    balancer = make(10)
    assert sent(balancer) == [(0, [0]), (1, [1])]
    assert sent(balancer) == []


def test_requests_grow_to_the_target_and_shrink_at_the_end() -> None:
    balancer = make(10_000, ranks=1)
    (request,) = balancer.requests(0.0)
    sizes = []
    waiting, now = [request], 0.0
    while waiting:
        request = waiting.pop(0)
        sizes.append(len(request.items))
        now += 0.001 * len(request.items)
        balancer.answered(0, request.number, request.items, 0.001 * len(request.items), now)
        waiting += balancer.requests(now)
    assert sizes[:2] == [1, 4]
    assert max(sizes) == TARGET / 0.001
    assert sizes[-1] == 1
    assert sum(sizes) == 10_000
    assert balancer.is_idle


def test_quick_items_have_a_second_request_under_way_and_slow_ones_none() -> None:
    for seconds, count in ((0.001, 2), (QUICK, 1)):
        balancer = make(1000, ranks=1, chunksize=1)
        (first,) = balancer.requests(0.0)
        balancer.answered(0, first.number, first.items, seconds, seconds)
        assert len(sent(balancer, seconds)) == count


def test_a_rank_that_is_slow_gets_no_second_request() -> None:
    balancer = make(100, ranks=2, chunksize=1)
    first, second = balancer.requests(0.0)
    balancer.answered(0, first.number, first.items, 0.001, 0.001)
    assert [rank for rank, _ in sent(balancer, PATIENCE + 0.001)] == [0, 0]
    assert second.rank == 1


def test_a_fixed_size_is_kept() -> None:
    assert sent(make(7, ranks=2, chunksize=3)) == [(0, [0, 1, 2]), (1, [3, 4, 5])]


def test_items_behind_a_slow_one_are_asked_back_when_a_rank_is_idle() -> None:
    balancer = make(6, ranks=2, chunksize=3)
    slow, quick = balancer.requests(0.0)
    balancer.answered(1, quick.number, quick.items, 0.003, 0.003)
    assert balancer.next_look() == PATIENCE
    assert balancer.late_requests(PATIENCE / 2) == []
    assert balancer.late_requests(PATIENCE) == [slow]
    assert slow.is_asked_back
    assert balancer.late_requests(PATIENCE) == []
    assert balancer.next_look() == math.inf
    balancer.given_back(0, slow.number, [1, 2])
    assert slow.items == [0]
    assert [item for _, items in sent(balancer, PATIENCE) for item in items] == [1, 2]


def test_what_is_done_in_a_late_request_is_asked_for_though_no_rank_is_idle() -> None:
    balancer = make(100, ranks=1, chunksize=3)
    (request,) = balancer.requests(0.0)
    assert balancer.next_look() == PATIENCE
    assert balancer.late_requests(PATIENCE) == [request]
    assert not request.is_asked_back
    balancer.done_early(0, request.number, [0])
    assert (request.items, balancer.late_requests(PATIENCE)) == ([1, 2], [])
    assert balancer.lose(0).again == [1, 2]


def test_a_single_item_is_asked_back_too() -> None:
    balancer = make(2, ranks=2)
    busy, idle = balancer.requests(0.0)
    balancer.answered(1, idle.number, idle.items, 0.001, 0.001)
    assert balancer.late_requests(PATIENCE) == [busy]  # its rank may be at something else
    balancer.given_back(0, busy.number, [0])
    assert sent(balancer, PATIENCE) == [(1, [0])]


def test_what_the_reply_says_was_not_begun_is_handed_out_again() -> None:
    balancer = make(3, ranks=1, chunksize=3)
    (request,) = balancer.requests(0.0)
    balancer.answered(0, request.number, [0, 1], 0.002, 0.002)
    balancer.given_back(0, request.number, [2])  # the same, said twice
    assert sent(balancer, 0.01) == [(0, [2])]


def test_items_of_a_dead_rank_come_first_and_alone() -> None:
    balancer = make(10, ranks=2, chunksize=2)
    sent(balancer)
    loss = balancer.lose(0)
    assert (loss.again, loss.abandoned) == ([0, 1], [])
    assert balancer.died_with(0) == [0]
    balancer.join(0)
    assert sent(balancer) == [(0, [0])]


def test_an_item_fails_after_some_deaths_and_later_ones_do_not() -> None:
    balancer = make(2, ranks=1, chunksize=2)
    losses = []
    for _ in range(MOST_DEATHS):
        assert len(sent(balancer)) == 1
        losses.append(balancer.lose(0))
        balancer.join(0)
    assert [loss.abandoned for loss in losses] == [[], [], [0]]
    assert balancer.died_with(0) == [0] * MOST_DEATHS
    assert sent(balancer) == [(0, [1])]


def test_a_death_counts_only_for_the_oldest_request() -> None:
    balancer = make(100, ranks=1, chunksize=1)
    (first,) = balancer.requests(0.0)
    balancer.answered(0, first.number, first.items, 0.001, 0.001)
    assert sent(balancer, 0.001) == [(0, [1]), (0, [2])]
    assert balancer.lose(0).again == [1, 2]
    assert (balancer.died_with(1), balancer.died_with(2)) == ([0], ())


def test_an_answer_of_a_rank_that_was_lost_is_ignored() -> None:
    balancer = make(1, ranks=1)
    (request,) = balancer.requests(0.0)
    balancer.lose(0)
    balancer.join(0)
    balancer.answered(0, request.number, request.items, 1.0, 1.0)
    assert sent(balancer, 1.0) == [(0, [0])]


def test_items_of_a_request_that_cannot_travel_go_one_by_one() -> None:
    balancer = make(2, ranks=1, chunksize=2)
    (request,) = balancer.requests(0.0)
    assert balancer.refused(0, request.number) == []
    (alone,) = balancer.requests(0.0)
    assert alone.items == [0]
    assert balancer.refused(0, alone.number) == [0]


def test_items_that_wait_can_be_dropped() -> None:
    balancer = make(5, ranks=1)
    sent(balancer)
    assert balancer.drop({0, 3}) == [3]
    assert balancer.drop_all() == [1, 2, 4]
    assert [request.items for request in balancer.open_requests()] == [[0]]


@given(st.data())
def test_no_item_is_lost_and_none_is_done_twice_without_a_death(data: st.DataObject) -> None:
    """Whatever is answered, taken back or killed, in whatever order."""
    ranks = data.draw(st.integers(1, 4))
    count = data.draw(st.integers(0, 60))
    balancer = make(count, ranks, data.draw(st.none() | st.integers(1, 7)))
    done: list[int] = []
    abandoned: set[int] = set()
    died: set[int] = set()
    open_: list[ItemRequest] = []
    now = 0.0
    for _ in range(300):
        now += data.draw(st.sampled_from((0.0, 0.001, 0.2)))
        open_ += balancer.requests(now)
        if not open_:
            break
        request = data.draw(st.sampled_from(open_))
        match data.draw(st.sampled_from(("answer", "answer", "take back", "die"))):
            case "answer":
                first = next(each for each in open_ if each.rank == request.rank)
                finished = list(first.items)
                done += finished
                balancer.answered(first.rank, first.number, finished, 0.001 * len(finished), now)
                open_.remove(first)
            case "take back":
                balancer.given_back(request.rank, request.number, request.items[1:])
            case "die":
                loss = balancer.lose(request.rank)
                died |= {*loss.again, *loss.abandoned}
                abandoned |= set(loss.abandoned)
                open_ = [each for each in open_ if each.rank != request.rank]
                balancer.join(request.rank)
    left = balancer.drop_all() + [item for each in balancer.open_requests() for item in each.items]
    assert sorted([*done, *abandoned, *left]) == list(range(count))
    assert abandoned <= died
