"""Plans of faults: pure, the same for a seed, and as often as asked for."""

from __future__ import annotations

import collections
import itertools

import pytest

from meshbook.testing.injection import with_ends
from meshbook.testing.plan import Event, Rates, plan

EVERYTHING = Rates(kill=1, stop=2, delay=3, drop=4)


def test_a_seed_makes_the_same_faults_again() -> None:
    first, again, other = (list(plan(seed, range(4), EVERYTHING, most=200)) for seed in (7, 7, 8))
    assert first == again != other


def test_each_kind_is_as_frequent_as_its_rate() -> None:
    events = list(plan(1, range(100), EVERYTHING, seconds=1000))
    counts = collections.Counter(event.kind for event in events)
    for kind, rate in EVERYTHING._asdict().items():
        assert abs(counts[kind] - 1000 * rate) < 5 * (1000 * rate) ** 0.5, "five times the spread of a Poisson process"


def test_all_ranks_are_hit_and_no_others() -> None:
    events = list(plan(1, [1, 3], EVERYTHING, most=100))
    assert {event.rank for event in events} == {1, 3}


def test_times_and_lengths_are_within_what_is_asked_for() -> None:
    events = list(plan(1, range(3), EVERYTHING, seconds=20, lasting=(0.1, 0.2)))
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert events[-1].at < 20
    assert {event.seconds for event in events if event.kind == "kill"} == {0.0}
    assert all(0.1 <= event.seconds <= 0.2 for event in events if event.kind != "kill")


def test_a_rank_has_one_fault_at_a_time() -> None:
    events = list(plan(1, range(3), EVERYTHING, most=500, lasting=(0.5, 2)))
    for rank in range(3):
        its = [event for event in events if event.rank == rank]
        assert all(before.at + before.seconds <= after.at for before, after in itertools.pairwise(its))


@pytest.mark.parametrize(("ranks", "rates"), [([], EVERYTHING), ([0, 1], Rates())])
def test_nothing_to_do(ranks: list[int], rates: Rates) -> None:
    assert list(plan(1, ranks, rates)) == []


def test_stopped_processes_continue_in_time() -> None:
    stops = [Event(1.0, "stop", 0, 5.0), Event(2.0, "drop", 1, 1.0), Event(3.0, "stop", 2, 1.0), Event(4.5, "kill", 1)]
    first, drop, second, kill = stops
    assert list(with_ends(iter(stops))) == [
        (1.0, first, True),
        (2.0, drop, True),
        (3.0, second, True),
        (4.0, second, False),
        (4.5, kill, True),
        (6.0, first, False),
    ]
