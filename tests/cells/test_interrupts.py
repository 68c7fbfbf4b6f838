"""Interrupts are raised in the execution that was meant, and nowhere else."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

import pytest

from meshbook.runtime.cells.interrupts import Interrupts

PATIENCE = 30.0


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    before = signal.getsignal(signal.SIGINT)
    interrupts = Interrupts()
    interrupts.install()
    yield interrupts
    signal.signal(signal.SIGINT, before)


def test_the_execution_that_was_meant_is_interrupted(interrupts: Interrupts) -> None:
    asked = []
    with pytest.raises(KeyboardInterrupt), interrupts.during("7.1"):
        asked.append(interrupts.request("7.1"))
    assert interrupts.origin == ""


def test_a_wait_is_interrupted_from_another_thread(interrupts: Interrupts) -> None:
    waits, answers = threading.Event(), []

    def ask() -> None:
        waits.wait(PATIENCE)
        answers.append(interrupts.request("7.1"))

    def wait() -> None:
        waits.set()
        threading.Event().wait(PATIENCE)

    thread = threading.Thread(target=ask)
    thread.start()
    with pytest.raises(KeyboardInterrupt), interrupts.during("7.1"):
        wait()
    thread.join()
    assert answers == [True]


@pytest.mark.parametrize("running", ["", "7.2"])
def test_a_late_request_is_for_nobody(interrupts: Interrupts, running: str) -> None:
    with interrupts.during(running):
        assert not interrupts.request("7.1")


@pytest.mark.parametrize("running", ["", "7.2"])
def test_a_signal_that_nobody_asked_for_is_dropped(interrupts: Interrupts, running: str) -> None:
    with interrupts.during(running):
        signal.raise_signal(signal.SIGINT)


def test_one_request_interrupts_once(interrupts: Interrupts) -> None:
    with interrupts.during("7.1"):
        with contextlib.suppress(KeyboardInterrupt):
            interrupts.request("7.1")
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.request("7.1")


def test_an_error_of_the_cell_ends_its_window(interrupts: Interrupts) -> None:
    with pytest.raises(ValueError, match="mine"), interrupts.during("7.1"):
        raise ValueError("mine")
    assert not interrupts.request("7.1")


def test_a_signal_that_was_not_felt_is_sent_again(interrupts: Interrupts, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that comes in the instant before a blocking call begins does not wake it."""
    sent = []
    kill = signal.pthread_kill

    def lose_the_first(thread: int, number: int) -> None:
        sent.append(number)
        if len(sent) > 1:
            kill(thread, number)

    monkeypatch.setattr(signal, "pthread_kill", lose_the_first)

    def wait() -> None:
        interrupts.request("7.1")
        threading.Event().wait(PATIENCE)

    with pytest.raises(KeyboardInterrupt), interrupts.during("7.1"):
        wait()
    assert len(sent) == 2


def test_whoever_asks_whether_groups_were_broken_waits_for_the_end_of_that(interrupts: Interrupts) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def abort() -> None:
        with interrupts.aborting("7.1"):
            begun.set()
            go_on.wait(PATIENCE)

    thread = threading.Thread(target=abort)
    thread.start()
    begun.wait(PATIENCE)
    threading.Timer(0.01, go_on.set).start()
    assert interrupts.was_aborted("7.1")
    assert go_on.is_set()
    assert not interrupts.was_aborted("7.2")
    thread.join()
