"""Interrupts are raised in the execution that was meant, and nowhere else."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator

import pytest

from meshbook.runtime.cells.interrupts import Interrupts
from tests.support import PATIENCE


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    before, hook = signal.getsignal(signal.SIGINT), sys.unraisablehook
    interrupts = Interrupts()
    interrupts.install()
    yield interrupts
    signal.signal(signal.SIGINT, before)
    sys.unraisablehook = hook


@contextlib.contextmanager
def running(interrupts: Interrupts, origin: str) -> Iterator[None]:
    """User code of this execution."""
    with interrupts.during(origin), interrupts.user_code():
        yield


def test_the_execution_that_was_meant_is_interrupted(interrupts: Interrupts) -> None:
    asked = []
    with pytest.raises(KeyboardInterrupt), running(interrupts, "7.1"):
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
    with pytest.raises(KeyboardInterrupt), running(interrupts, "7.1"):
        wait()
    thread.join()
    assert answers == [True]


def test_a_request_that_comes_before_its_execution_ends_it_at_once(interrupts: Interrupts) -> None:
    assert not interrupts.request("7.1")
    with running(interrupts, "6.1"):
        pass
    with pytest.raises(KeyboardInterrupt), running(interrupts, "7.1"):
        pytest.fail("it has begun")
    assert interrupts.origin == ""
    with running(interrupts, "7.1"):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("other", ["", "7.2"])
def test_a_late_request_has_no_effect(interrupts: Interrupts, other: str) -> None:
    with running(interrupts, other):
        assert not interrupts.request("7.1")


@pytest.mark.parametrize("other", ["", "7.2"])
def test_an_unrequested_signal_is_dropped(interrupts: Interrupts, other: str) -> None:
    with running(interrupts, other):
        signal.raise_signal(signal.SIGINT)


def test_one_request_interrupts_once(interrupts: Interrupts) -> None:
    with running(interrupts, "7.1"):
        with contextlib.suppress(KeyboardInterrupt):
            interrupts.request("7.1")
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.request("7.1")


def test_an_error_of_the_cell_ends_its_window(interrupts: Interrupts) -> None:
    with pytest.raises(ValueError, match="mine"), running(interrupts, "7.1"):
        raise ValueError("mine")
    assert not interrupts.request("7.1")


def test_a_signal_that_was_not_felt_is_sent_again(interrupts: Interrupts, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that comes in the instant before a blocking call begins does not wake it."""
    lost: list[bool] = []
    monkeypatch.setattr(f"{Interrupts.__module__}.interrupt_group", lambda: lost.append(True))

    def wait() -> None:
        interrupts.request("7.1")
        threading.Event().wait(PATIENCE)

    with pytest.raises(KeyboardInterrupt), running(interrupts, "7.1"):
        wait()
    assert lost == [True]


def test_an_interrupt_that_a_finaliser_swallows_comes_again(interrupts: Interrupts) -> None:
    reached = []

    class Swallows:
        def __del__(self) -> None:
            interrupts.request("7.1")
            reached.append("not at once, or not here")

    def run() -> None:
        Swallows()
        threading.Event().wait(PATIENCE)

    with pytest.raises(KeyboardInterrupt), running(interrupts, "7.1"):
        run()
    assert reached == []


def test_a_question_about_broken_groups_waits_until_they_are_broken(interrupts: Interrupts) -> None:
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


def test_an_interrupt_that_comes_between_user_code_waits_for_that(interrupts: Interrupts) -> None:
    passed = []

    def run() -> None:
        interrupts.request("7.1")
        passed.append("what IPython does")
        with interrupts.user_code():
            passed.append("user code")

    with pytest.raises(KeyboardInterrupt), interrupts.during("7.1"):
        run()
    assert passed == ["what IPython does"]


def test_a_cell_that_runs_another_one_can_still_be_interrupted(interrupts: Interrupts) -> None:
    with running(interrupts, "7.1"):
        with interrupts.user_code():
            pass
        with pytest.raises(KeyboardInterrupt):
            interrupts.request("7.1")
