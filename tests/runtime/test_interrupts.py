"""Ctrl-C in an operation that changes a run: held, except in the waits that the operation names."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from meshbook.runtime.interrupts import allow_interrupts, hold_interrupts, holds_interrupts
from meshbook.runtime.threads import HighWaterMark
from tests.support import PATIENCE, StatementInterrupts


@pytest.fixture(autouse=True)
def _handler_stays() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    assert signal.getsignal(signal.SIGINT) == before


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def notes(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])


def interrupt_of(operation: Callable[[], object]) -> KeyboardInterrupt:
    with pytest.raises(KeyboardInterrupt) as caught:
        operation()
    return caught.value


def test_it_is_held_until_the_end() -> None:
    done = []

    def operate() -> None:
        with hold_interrupts() as hold:
            interrupt()
            done.append(holds_interrupts())
            hold.note = "it was done"

    assert notes(interrupt_of(operate)) == ["it was done"]
    assert done == [True]
    assert not holds_interrupts()


@pytest.mark.parametrize("is_early", [True, False])
def test_it_ends_a_wait_and_later_ones_are_held(is_early: bool) -> None:
    steps = []

    def operate() -> None:
        with hold_interrupts("it was undone"):
            if is_early:
                interrupt()
            try:
                with allow_interrupts():
                    interrupt()
                    steps.append("not reached")
            except KeyboardInterrupt:
                interrupt()
                steps.append("undone")
                raise

    raised = interrupt_of(operate)
    assert steps == ["undone"]
    assert notes(raised) == ["it was undone"]
    assert isinstance(raised.__context__, KeyboardInterrupt)  # the one in the wait


def test_the_outermost_raises() -> None:
    steps = []

    def operate() -> None:
        with hold_interrupts():
            with hold_interrupts("the inner one was done"):
                interrupt()
            steps.append("outer")

    assert notes(interrupt_of(operate)) == ["the inner one was done"]
    assert steps == ["outer"]


def test_a_handler_in_a_wait_may_hold_it_too() -> None:
    """A signal handler of the user's that stops a mesh, for example."""
    steps = []

    def operate() -> None:
        with hold_interrupts(), allow_interrupts():
            with hold_interrupts():
                interrupt()
                steps.append("inner")
            steps.append("not reached")

    interrupt_of(operate)
    assert steps == ["inner"]


def test_a_handler_of_the_users_is_called_at_the_end() -> None:
    calls: list[bool] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: calls.append(holds_interrupts()))
    try:
        with hold_interrupts():
            with allow_interrupts():
                interrupt()
                interrupt()
            interrupt()
            assert calls == [True, True]  # held while the handler runs
        assert calls == [True, True, False]
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_hold_nothing() -> None:
    held: list[bool] = []

    def run() -> None:
        with hold_interrupts(), allow_interrupts():
            held.append(holds_interrupts())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(PATIENCE)
    assert held == [False]


def test_a_full_queue_makes_no_sender_wait_that_holds_it() -> None:
    mark = HighWaterMark([1, 2], limit=1)
    with hold_interrupts():
        mark.wait(lambda: False)


@pytest.mark.process
def test_a_child_that_is_forked_meanwhile_holds_nothing() -> None:
    """A process of multiprocessing, for example, which another thread starts."""
    with hold_interrupts():
        child = os.fork()
        if not child:
            os._exit(signal.getsignal(signal.SIGINT) is not signal.default_int_handler)
    assert os.waitpid(child, 0)[1] == 0


def test_it_is_held_at_every_statement() -> None:
    """Those of the contexts themselves included: what has begun is done or undone."""
    interrupts = StatementInterrupts()
    while interrupts.are_left:
        state: list[Any] = []

        def operate(state: list[Any] = state) -> None:
            with hold_interrupts():
                state.append("begun")
                try:
                    with allow_interrupts():
                        len(state)
                except KeyboardInterrupt:
                    state.append("undone")
                    raise
                state.append("done")

        interrupts.run(operate)
        assert state in ([], ["begun", "done"], ["begun", "undone"]), interrupts.where
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
