"""When a dashboard speaks: its ticks, who listens, and how much goes out."""

from __future__ import annotations

import math

import pytest

from meshbook.widgets.protocol import MOST_UNACKNOWLEDGED, QUIET_AFTER
from meshbook.widgets.update_scheduler import HURRY, MOST_BYTES, MOST_MESSAGES, SendBudget, UpdateScheduler


def test_without_viewers_nothing_ticks() -> None:
    pulse = UpdateScheduler(0.0)
    assert pulse.next_tick(is_active=True) == math.inf
    pulse.opened("a", 1, 0.0)
    pulse.ticked(10.0)
    assert pulse.next_tick(is_active=True) == 10.25
    assert pulse.next_tick(is_active=False) == 11.0
    pulse.closed("a")
    pulse.closed("never seen")
    assert pulse.next_tick(is_active=True) == math.inf


def test_known_events_are_sent_soon_but_at_a_limited_rate() -> None:
    pulse = UpdateScheduler(0.0)
    pulse.opened("a", 1, 0.0)
    pulse.ticked(10.0)
    pulse.hurry()
    assert pulse.next_tick(is_active=False) == 10.0 + HURRY
    pulse.ticked(10.1)
    assert pulse.next_tick(is_active=False) == 11.1


def test_a_view_that_acknowledges_nothing_is_gone() -> None:
    pulse = UpdateScheduler(0.0)
    pulse.opened("asleep", 1, 0.0)
    pulse.opened("awake", 1, 0.0)
    for seq in range(2, MOST_UNACKNOWLEDGED + 2):
        pulse.published(seq)
        if seq % 10 == 0:
            assert pulse.acknowledged("awake", seq, newest=seq)
    assert pulse.has_views
    assert not pulse.acknowledged("asleep", 41, newest=41)
    pulse.closed("awake")
    assert not pulse.has_views


def test_a_view_cannot_acknowledge_what_has_not_been_said() -> None:
    pulse = UpdateScheduler(0.0)
    pulse.opened("a", 1, 0.0)
    assert pulse.acknowledged("a", 10**9, newest=2)
    pulse.published(2 + MOST_UNACKNOWLEDGED)
    assert not pulse.has_views


def test_it_is_quiet_once_nothing_has_happened_for_long() -> None:
    pulse = UpdateScheduler(0.0)
    assert not pulse.is_quiet(QUIET_AFTER - 1)
    assert pulse.is_quiet(QUIET_AFTER)
    pulse.happened(QUIET_AFTER)
    assert not pulse.is_quiet(QUIET_AFTER + 1)


@pytest.mark.parametrize(
    ("sizes", "size", "expected"),
    [
        ([], 10, 0.5),
        ([], 10 * MOST_BYTES, 0.5),  # larger than all there is: it goes alone
        ([(0.0, MOST_BYTES)], 1, 1.0),
        ([(0.0, 1)], MOST_BYTES, 1.0),
        ([(0.1, MOST_BYTES // 2), (0.2, MOST_BYTES // 2)], MOST_BYTES // 2, 1.1),
        ([(0.1, MOST_BYTES // 2), (0.2, MOST_BYTES // 2)], MOST_BYTES, 1.2),
        ([(at / 100, 1) for at in range(MOST_MESSAGES)], 1, 1.0),
        ([(at / 100, 1) for at in range(MOST_MESSAGES - 1)], 1, 0.5),
    ],
)
def test_there_is_room_for_so_much_in_a_second(sizes: list[tuple[float, int]], size: int, expected: float) -> None:
    budget = SendBudget()
    for at, each in sizes:
        budget.spend(each, at)
    assert budget.room_at(size, 0.5) == pytest.approx(expected)


def test_no_second_has_more_than_its_share() -> None:
    budget, now, sent = SendBudget(), 0.0, []
    for size in [90_000, 150_000, 10, 10, 60_000, 199_000] * 20:
        now = budget.room_at(size, now)
        budget.spend(size, now)
        sent.append((now, size))
    for start, _ in sent:
        within = [size for at, size in sent if start <= at < start + 1]
        assert sum(within) <= MOST_BYTES
        assert len(within) <= MOST_MESSAGES
