"""What is to happen later: in order of time, on one thread, until the clock is closed."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest

from meshbook.runtime.node.clock import Clock

PATIENCE = 10.0
NEVER = 1e6


@pytest.fixture
def clock() -> Iterator[Clock]:
    clock = Clock()
    yield clock
    clock.close()


@pytest.fixture
def happened() -> queue.SimpleQueue[str]:
    return queue.SimpleQueue()


def next_of(happened: queue.SimpleQueue[str]) -> str:
    return happened.get(timeout=PATIENCE)


def test_callbacks_come_in_order_of_time(clock: Clock, happened: queue.SimpleQueue[str]) -> None:
    clock.later(NEVER, lambda: happened.put("never"))
    clock.later(0.02, lambda: happened.put("last"))
    clock.later(0.01, lambda: happened.put("second"))
    clock.later(0.0, lambda: happened.put("first"))
    assert [next_of(happened) for _ in range(3)] == ["first", "second", "last"]
    assert happened.empty()


def test_what_is_due_in_ages_holds_up_nothing(clock: Clock, happened: queue.SimpleQueue[str]) -> None:
    clock.later(float("inf"), lambda: happened.put("never"))
    for name in ("first", "second", "third"):  # between them the clock waits for nothing else
        clock.later(0.0, lambda name=name: happened.put(name))  # type: ignore[misc]
        assert next_of(happened) == name


def test_what_is_due_at_once_comes_in_the_order_in_which_it_was_asked_for(
    clock: Clock, happened: queue.SimpleQueue[str]
) -> None:
    names = [str(number) for number in range(20)]

    def ask() -> None:  # on the clock's own thread, so that it takes up none of them meanwhile
        for name in names:
            clock.later(0.0, lambda name=name: happened.put(name))  # type: ignore[misc]

    clock.later(0.0, ask)
    assert [next_of(happened) for _ in names] == names


def test_all_run_on_one_thread_that_is_not_the_callers(clock: Clock) -> None:
    found: queue.SimpleQueue[int] = queue.SimpleQueue()
    for _ in range(3):
        clock.later(0.0, lambda: found.put(threading.get_ident()))
    threads = {found.get(timeout=PATIENCE) for _ in range(3)}
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_a_callback_that_raises_is_logged_and_the_others_come(
    clock: Clock, happened: queue.SimpleQueue[str], caplog: pytest.LogCaptureFixture
) -> None:
    clock.later(0.0, lambda: 1 / 0)
    clock.later(0.0, lambda: happened.put("after it"))
    assert next_of(happened) == "after it"
    assert "ZeroDivisionError" in caplog.text


def test_closing_drops_what_is_still_to_come(clock: Clock, happened: queue.SimpleQueue[str]) -> None:
    clock.later(NEVER, lambda: happened.put("never"))
    clock.later(0.0, lambda: happened.put("first"))
    assert next_of(happened) == "first"
    clock.close()
    clock.later(0.0, lambda: happened.put("too late"))
    clock.close()
    assert happened.empty()


def test_closing_waits_for_the_callback_that_runs(clock: Clock, happened: queue.SimpleQueue[str]) -> None:
    go = threading.Event()

    def work() -> None:
        happened.put("begun")
        assert go.wait(PATIENCE)
        happened.put("ended")

    def close() -> None:
        clock.close()
        happened.put("closed")

    clock.later(0.0, work)
    assert next_of(happened) == "begun"
    closing = threading.Thread(target=close)
    closing.start()
    go.set()
    closing.join(PATIENCE)
    assert [next_of(happened) for _ in range(2)] == ["ended", "closed"]


def test_a_callback_may_close_the_clock(clock: Clock, happened: queue.SimpleQueue[str]) -> None:
    def close() -> None:
        clock.close()
        happened.put("closed")

    clock.later(0.0, close)
    clock.later(0.0, lambda: happened.put("too late"))
    assert next_of(happened) == "closed"
    clock.close()
    assert happened.empty()


def test_a_clock_that_nobody_asked_starts_no_thread() -> None:
    before = threading.active_count()
    clock = Clock()
    assert threading.active_count() == before
    clock.close()
