"""The I/O thread: callbacks in order, timers in order of time, and wake-ups only where there is work."""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
import weakref
from collections.abc import Iterator

import pytest

from meshbook.runtime.transport.io_loop import IN, IoLoop
from tests.support import PATIENCE

NEVER = 1e6


@pytest.fixture
def loop() -> Iterator[IoLoop]:
    loop = IoLoop()
    loop.start()
    yield loop
    loop.close()


@pytest.fixture
def happened() -> queue.SimpleQueue[str]:
    return queue.SimpleQueue()


def next_of(happened: queue.SimpleQueue[str]) -> str:
    return happened.get(timeout=PATIENCE)


# -- timers ------------------------------------------------------------------------


def test_timers_run_in_order_of_time(loop: IoLoop, happened: queue.SimpleQueue[str]) -> None:
    def ask() -> None:  # at once, however long this thread is held up between two of them
        loop.call_later(NEVER, lambda: happened.put("never"))
        loop.call_later(0.02, lambda: happened.put("last"))
        loop.call_later(0.01, lambda: happened.put("second"))
        loop.call_later(0.0, lambda: happened.put("first"))

    loop.call_soon(ask)
    assert [next_of(happened) for _ in range(3)] == ["first", "second", "last"]
    assert happened.empty()


@pytest.mark.parametrize("seconds", [1e6, 1e7, 1e300, float("inf")])
def test_a_timer_that_is_due_in_ages_holds_up_no_others(
    loop: IoLoop, happened: queue.SimpleQueue[str], seconds: float
) -> None:
    loop.call_later(seconds, lambda: happened.put("never"))
    for name in ("first", "second", "third"):  # between them the thread waits for nothing else
        loop.call_later(0.0, lambda name=name: happened.put(name))  # type: ignore[misc]
        assert next_of(happened) == name


def test_timers_that_are_due_at_once_run_in_the_order_of_the_calls(
    loop: IoLoop, happened: queue.SimpleQueue[str]
) -> None:
    names = [str(number) for number in range(20)]

    def ask() -> None:
        for name in names:
            loop.call_later(0.0, lambda name=name: happened.put(name))  # type: ignore[misc]

    loop.call_soon(ask)
    assert [next_of(happened) for _ in names] == names


def test_a_timer_may_be_set_before_the_start(happened: queue.SimpleQueue[str]) -> None:
    loop = IoLoop()
    loop.call_later(0.0, lambda: happened.put("timer"))
    loop.start()
    assert next_of(happened) == "timer"
    loop.close()


def test_a_cancelled_timer_does_not_run_and_keeps_nothing(loop: IoLoop, happened: queue.SimpleQueue[str]) -> None:
    class Large:
        def note(self) -> None:
            happened.put("cancelled")

    large = Large()
    timer, kept = loop.call_later(0.02, large.note), weakref.ref(large)
    timer.cancel()
    timer.cancel()
    del large
    assert kept() is None
    loop.call_later(0.03, lambda: happened.put("last"))
    assert next_of(happened) == "last"
    assert happened.empty()


def test_cancelled_timers_do_not_pile_up(loop: IoLoop) -> None:
    kept = [loop.call_later(NEVER, print) for _ in range(100)]
    for _ in range(20_000):
        loop.call_later(NEVER, print).cancel()
        loop.call_soon(lambda: None)
    loop.run(lambda: None)
    loop.run(lambda: None)
    assert len(loop._timers) + len(loop._new_timers) < 500
    assert sum(timer.callback is not None for _, _, timer in loop._timers) == len(kept)


# -- callbacks ---------------------------------------------------------------------


def test_callbacks_run_in_the_order_of_the_calls(loop: IoLoop) -> None:
    seen: list[tuple[int, int]] = []

    def call(caller: int) -> None:
        for number in range(500):
            loop.call_soon(lambda number=number: seen.append((caller, number)))  # type: ignore[misc]

    threads = [threading.Thread(target=call, args=(caller,)) for caller in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    loop.run(lambda: None)
    for caller in range(4):
        assert [number for by, number in seen if by == caller] == list(range(500))


def test_a_callback_that_calls_again_does_not_hold_up_timers(loop: IoLoop, happened: queue.SimpleQueue[str]) -> None:
    over = threading.Event()

    def again() -> None:
        if not over.is_set():
            loop.call_soon(again)

    loop.call_soon(again)
    loop.call_later(0.01, lambda: happened.put("timer"))
    assert next_of(happened) == "timer"
    over.set()


def test_all_run_on_one_thread_that_is_not_the_callers(loop: IoLoop) -> None:
    found: queue.SimpleQueue[tuple[int, bool]] = queue.SimpleQueue()

    def note() -> None:
        found.put((threading.get_ident(), loop.is_current))

    loop.call_soon(note)
    loop.call_later(0.0, note)
    loop.run(note)
    seen = {found.get(timeout=PATIENCE) for _ in range(3)}
    assert len(seen) == 1
    assert (threading.get_ident(), False) not in seen
    assert not loop.is_current
    assert seen.pop()[1]


@pytest.mark.parametrize("way", ["call_soon", "call_later"])
def test_a_callback_that_raises_is_logged_and_others_run(
    loop: IoLoop, happened: queue.SimpleQueue[str], caplog: pytest.LogCaptureFixture, way: str
) -> None:
    def ask(callback: object) -> None:
        loop.call_soon(callback) if way == "call_soon" else loop.call_later(0.0, callback)  # type: ignore[arg-type]

    ask(lambda: 1 / 0)
    ask(lambda: happened.put("after it"))
    assert next_of(happened) == "after it"
    assert "ZeroDivisionError" in caplog.text


def test_run_returns_the_value_and_raises_the_error(loop: IoLoop) -> None:
    assert loop.run(lambda: loop.is_current) is True
    assert loop.run(lambda: loop.run(lambda: "nested")) == "nested"
    with pytest.raises(ZeroDivisionError):
        loop.run(lambda: 1 / 0)


def test_run_before_the_start_and_after_the_end_is_a_plain_call() -> None:
    loop = IoLoop()
    assert loop.run(threading.get_ident) == threading.get_ident()
    loop.start()
    assert loop.run(threading.get_ident) != threading.get_ident()
    loop.close()
    assert loop.run(threading.get_ident) == threading.get_ident()


# -- descriptors -------------------------------------------------------------------


def test_a_descriptor_that_is_ready_is_handled_until_it_is_unregistered(
    loop: IoLoop, happened: queue.SimpleQueue[str]
) -> None:
    here, there = socket.socketpair()

    def read(flags: int) -> None:
        happened.put(there.recv(100).decode())

    loop.run(lambda: loop.register(there.fileno(), IN, read))
    for text in ("first", "second"):
        here.send(text.encode())
        assert next_of(happened) == text
    loop.run(lambda: loop.unregister(there.fileno()))
    here.send(b"third")
    loop.run(lambda: None)
    assert happened.empty()
    here.close()
    there.close()


def test_a_handler_that_raises_is_logged_and_others_run(
    loop: IoLoop, happened: queue.SimpleQueue[str], caplog: pytest.LogCaptureFixture
) -> None:
    here, there = socket.socketpair()

    def fail(flags: int) -> None:
        there.recv(100)
        loop.call_soon(lambda: happened.put("after it"))
        raise KeyError("on purpose")

    loop.run(lambda: loop.register(there.fileno(), IN, fail))
    here.send(b"x")
    assert next_of(happened) == "after it"
    assert "on purpose" in caplog.text
    loop.run(lambda: loop.unregister(there.fileno()))
    here.close()
    there.close()


# -- wake-ups ----------------------------------------------------------------------


def wait_until_asleep(loop: IoLoop) -> int:
    """Return the number of wake-ups once the thread sleeps."""
    end = time.monotonic() + PATIENCE
    while not loop._asleep:
        assert time.monotonic() < end
        time.sleep(0.001)
    return loop.wakeups


def test_an_idle_loop_does_not_wake_up(loop: IoLoop) -> None:
    loop.call_later(NEVER, print)
    loop.run(lambda: None)
    before = wait_until_asleep(loop)
    time.sleep(0.1)
    assert loop.wakeups == before


def test_a_timer_that_is_due_after_the_sleep_does_not_end_it(loop: IoLoop) -> None:
    loop.call_later(NEVER, print)
    loop.run(lambda: None)
    before = wait_until_asleep(loop)
    for _ in range(100):
        loop.call_later(2 * NEVER, print)
    time.sleep(0.05)
    assert loop.wakeups == before


def test_many_callbacks_cost_few_wake_ups(loop: IoLoop) -> None:
    before = wait_until_asleep(loop)

    def ask() -> None:
        for _ in range(1000):
            loop.call_soon(lambda: None)

    loop.run(ask)
    loop.run(lambda: None)
    assert loop.wakeups - before <= 4


def test_callbacks_of_one_sleep_ring_once(loop: IoLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the thread has not woken up yet; and the next sleep needs a ring of its own."""
    bell = loop._bell
    assert bell is not None
    ring, rings = bell.ring, queue.SimpleQueue[None]()
    for _ in range(2):
        wait_until_asleep(loop)
        monkeypatch.setattr(bell, "ring", lambda: rings.put(None))  # nothing wakes the thread
        for _ in range(3):
            loop.call_soon(lambda: None)
        assert rings.qsize() == 1
        rings.get()
        monkeypatch.setattr(bell, "ring", ring)
        ring()
        loop.run(lambda: None)


# -- the end -----------------------------------------------------------------------


def test_closing_drops_timers_and_runs_callbacks(loop: IoLoop, happened: queue.SimpleQueue[str]) -> None:
    loop.call_later(NEVER, lambda: happened.put("never"))
    for number in range(3):
        loop.call_soon(lambda number=number: happened.put(str(number)))  # type: ignore[misc]
    loop.close()
    assert [next_of(happened) for _ in range(3)] == ["0", "1", "2"]
    loop.call_later(0.0, lambda: happened.put("too late"))
    loop.close()
    assert happened.empty()


def test_a_callback_after_the_end_runs_on_the_calling_thread(loop: IoLoop) -> None:
    loop.close()
    seen: list[int] = []
    loop.call_soon(lambda: seen.append(threading.get_ident()))
    assert seen == [threading.get_ident()]


def test_closing_waits_for_the_callback_that_runs(loop: IoLoop, happened: queue.SimpleQueue[str]) -> None:
    go = threading.Event()

    def work() -> None:
        happened.put("begun")
        assert go.wait(PATIENCE)
        happened.put("ended")

    def close() -> None:
        loop.close()
        happened.put("closed")

    loop.call_soon(work)
    assert next_of(happened) == "begun"
    closing = threading.Thread(target=close)
    closing.start()
    go.set()
    closing.join(PATIENCE)
    assert [next_of(happened) for _ in range(2)] == ["ended", "closed"]


def test_a_callback_may_close_the_loop(loop: IoLoop, happened: queue.SimpleQueue[str]) -> None:
    def close() -> None:
        loop.close()
        happened.put("closed")

    loop.call_soon(close)
    assert next_of(happened) == "closed"
    loop.close()


def test_a_loop_that_never_started_is_closed(happened: queue.SimpleQueue[str]) -> None:
    loop = IoLoop()
    loop.call_soon(lambda: happened.put("callback"))
    loop.close()
    loop.close()
    assert next_of(happened) == "callback"


def test_callbacks_while_it_closes_all_run() -> None:
    """Whatever the moment: on the I/O thread before its end, on the calling thread after it."""
    for _ in range(30):
        loop = IoLoop()
        loop.start()
        ran: list[int] = []
        begun = threading.Event()

        def ask(loop: IoLoop = loop, ran: list[int] = ran, begun: threading.Event = begun) -> None:
            for number in range(300):
                loop.call_soon(lambda number=number: ran.append(number))  # type: ignore[misc]
                begun.set()

        thread = threading.Thread(target=ask)
        thread.start()
        begun.wait(PATIENCE)
        loop.close()
        thread.join(PATIENCE)
        assert sorted(ran) == list(range(300))


@pytest.mark.process
def test_a_forked_child_closes_the_descriptors(loop: IoLoop) -> None:
    loop.run(lambda: None)
    assert loop._bell is not None
    bell = loop._bell.descriptor
    child = os.fork()
    if not child:
        try:
            os.fstat(bell)
        except OSError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert loop.run(lambda: "still there") == "still there"
