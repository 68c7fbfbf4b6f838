"""The log of what happens to meshes."""

from __future__ import annotations

import re

import pytest

from meshbook.runtime.telemetry.events import EventLog, RunEvent


def event(number: int, ranks: tuple[int, ...] = ()) -> RunEvent:
    return RunEvent(float(number), "failed", "trainers", "trainers-04d1", ranks, f"the cause\nof number {number}")


@pytest.mark.parametrize(
    ("since", "numbers"),
    [(0, [2, 3, 4]), (1, [2, 3, 4]), (2, [2, 3, 4]), (3, [3, 4]), (4, [4]), (5, []), (9, [])],
)
def test_it_keeps_the_last_and_gives_the_new(since: int, numbers: list[int]) -> None:
    log = EventLog(most=3)
    for number in range(5):
        log.add(event(number))
    assert [each.time for each in log.since(since)] == numbers
    assert (log.count, len(log), len(list(log))) == (5, 3, 3)


def test_listeners_are_notified() -> None:
    log, heard = EventLog(), []
    log.when_added.append(heard.append)
    log.add(event(1))
    assert heard == [event(1)]


@pytest.mark.parametrize(("ranks", "said"), [((), "trainers failed"), ((3, 1, 2), "trainers ranks 1-3 failed")])
def test_it_reads_as_a_line(ranks: tuple[int, ...], said: str) -> None:
    assert re.fullmatch(rf"\d\d:\d\d:\d\d {said}: the cause", str(event(0, ranks)))
