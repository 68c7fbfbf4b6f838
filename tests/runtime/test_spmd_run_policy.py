"""The policy of a run: when ranks may exit, which ones are stopped, and the exit status. Time is passed in."""

from __future__ import annotations

import signal
from signal import SIGINT, SIGKILL, SIGPIPE, SIGTERM

import pytest

from meshbook.runtime.spmd.run_policy import INTERRUPT_SECONDS, MOMENT, TERM_SECONDS, Dismiss, EndRun, RunPolicy, Signal

WELL = EndRun(0)
BOOM = EndRun(1, "ValueError: boom", "train.py:5 in step")
EXIT = EndRun(3, "exited with code 3")
KILLED = EndRun(1, "Killed(sig=9)", died=True)
INTERRUPTED = EndRun(130, "KeyboardInterrupt", "train.py:5", interrupted=True)
END_OF_MOMENT = MOMENT
END_OF_PATIENCE = MOMENT + TERM_SECONDS


@pytest.fixture
def policy() -> RunPolicy:
    """Three ranks at work."""
    policy = RunPolicy(3)
    assert policy.begin()
    assert policy.actions(0.0) == []
    return policy


def end_all(policy: RunPolicy, now: float, ending: EndRun = WELL) -> None:
    for rank in range(policy.size):
        policy.process_ended(rank, ending, now)


# -- a run that goes well --------------------------------------------------------


def test_rank_0_leaves_last(policy: RunPolicy) -> None:
    policy.script_ended(0, WELL, 1.0)
    assert policy.actions(1.0) == []  # it holds the store
    policy.script_ended(2, WELL, 2.0)
    assert policy.actions(2.0) == [Dismiss((2,))]
    assert policy.actions(2.0) == []
    policy.process_ended(2, WELL, 3.0)
    policy.script_ended(1, WELL, 3.0)
    assert policy.actions(3.0) == [Dismiss((1,))]
    policy.process_ended(1, WELL, 4.0)
    assert policy.actions(4.0) == [Dismiss((0,))]
    assert not policy.is_over
    policy.process_ended(0, WELL, 5.0)
    assert policy.is_over
    assert (policy.status, policy.failures, policy.stopped, policy.deadline) == (0, {}, set(), None)


def test_a_process_that_exits_with_0_by_itself_has_done_its_work(policy: RunPolicy) -> None:
    end_all(policy, 1.0)
    assert policy.is_over
    assert policy.status == 0


def test_an_exit_hook_can_fail(policy: RunPolicy) -> None:
    policy.script_ended(1, WELL, 1.0)
    policy.process_ended(1, EndRun(4, "exit code 4", died=True), 2.0)
    assert [*policy.failures] == [1]
    assert policy.deadline == 2.0 + MOMENT


# -- failures ----------------------------------------------------------------------


@pytest.mark.parametrize("ending", [BOOM, EXIT])
def test_the_others_are_stopped_a_moment_after_a_failure(policy: RunPolicy, ending: EndRun) -> None:
    policy.script_ended(1, ending, 0.0)
    assert policy.actions(0.0) == []  # it stays: its end would be the others' error
    assert policy.deadline == END_OF_MOMENT
    assert policy.actions(END_OF_MOMENT) == [Signal(SIGTERM, (0, 2)), Dismiss((1,))]
    policy.process_ended(0, EndRun(1, "Terminated(sig=15)", died=True), 1.0)
    policy.process_ended(1, WELL, 1.0)
    assert policy.deadline == END_OF_PATIENCE
    assert policy.actions(END_OF_PATIENCE) == [Signal(SIGKILL, (2,))]
    policy.process_ended(2, KILLED, END_OF_PATIENCE)
    assert policy.is_over
    assert (policy.status, policy.failures, policy.stopped) == (ending.code, {1: ending}, {0, 2})


def test_a_failed_rank_that_does_not_exit_is_killed_and_counts_as_failed(policy: RunPolicy) -> None:
    policy.script_ended(1, EXIT, 0.0)
    for rank in (0, 2):
        policy.script_ended(rank, WELL, 0.0)
    policy.actions(END_OF_MOMENT)
    assert policy.actions(END_OF_PATIENCE) == [Signal(SIGKILL, (0, 1, 2))]
    end_all(policy, END_OF_PATIENCE, KILLED)
    assert (policy.status, policy.failures, policy.stopped) == (3, {1: EXIT}, {0, 2})


def test_without_running_ranks_the_grace_period_ends(policy: RunPolicy) -> None:
    for rank in range(3):
        policy.script_ended(rank, EXIT, 0.0)
    assert policy.actions(0.0) == [Dismiss((1, 2))]


@pytest.mark.parametrize(
    ("endings", "status"),
    [
        ([EXIT, EXIT, EXIT], 3),
        ([EXIT, WELL, EXIT], 3),
        ([EXIT, BOOM, WELL], 1),
        ([EXIT, EndRun(4), WELL], 1),
        ([WELL, KILLED, WELL], 1),
    ],
)
def test_the_status_is_the_scripts_own_where_all_agree(policy: RunPolicy, endings: list[EndRun], status: int) -> None:
    for rank, ending in enumerate(endings):
        policy.process_ended(rank, ending, 0.0)
    assert policy.status == status


def test_a_death_is_reported_before_its_consequences(policy: RunPolicy) -> None:
    policy.script_ended(0, EndRun(1, "RuntimeError: Connection closed by peer"), 0.0)
    policy.process_ended(1, KILLED, 0.1)  # before that, but known later
    assert [*policy.failures] == [1, 0]


# -- signals -------------------------------------------------------------------------


def test_an_interrupt_goes_to_the_ranks(policy: RunPolicy) -> None:
    policy.signalled(SIGINT, 0.0)
    assert policy.actions(0.0) == [Signal(SIGINT, (0, 1, 2))]
    policy.script_ended(1, INTERRUPTED, 0.1)
    assert policy.actions(0.1) == [Dismiss((1,))]  # at once: it may be what frees the others
    assert policy.deadline == INTERRUPT_SECONDS
    assert policy.actions(INTERRUPT_SECONDS) == [Signal(SIGTERM, (0, 2))]
    assert policy.deadline == INTERRUPT_SECONDS + TERM_SECONDS
    end_all(policy, 6.0)
    assert (policy.status, policy.failures) == (128 + SIGINT, {})
    assert policy.endings[1] == INTERRUPTED


@pytest.mark.parametrize("number", [SIGTERM, SIGPIPE])
def test_other_signals_are_a_sigterm_to_the_ranks(policy: RunPolicy, number: signal.Signals) -> None:
    policy.signalled(number, 0.0)
    assert policy.actions(0.0) == [Signal(SIGTERM, (0, 1, 2))]
    assert policy.deadline == TERM_SECONDS
    assert policy.status == 128 + number


def test_the_second_signal_kills(policy: RunPolicy) -> None:
    policy.signalled(SIGINT, 0.0)
    policy.actions(0.0)
    policy.script_ended(0, WELL, 0.5)
    policy.signalled(SIGTERM, 1.0)
    assert policy.actions(1.0) == [Signal(SIGKILL, (0, 1, 2)), Dismiss((0,))]
    assert policy.status == 128 + SIGINT


def test_a_signal_before_the_scripts_start_kills(policy: RunPolicy) -> None:
    policy = RunPolicy(2)
    policy.signalled(SIGINT, 0.0)
    assert policy.actions(0.0) == [Signal(SIGKILL, (0, 1))]
    assert not policy.begin()


def test_a_signal_after_a_failure_does_not_wait_for_the_moment(policy: RunPolicy) -> None:
    policy.script_ended(1, BOOM, 0.0)
    policy.signalled(SIGINT, 0.1)
    assert policy.actions(0.1) == [Signal(SIGINT, (0, 2)), Dismiss((1,))]
    assert (policy.status, policy.failures) == (128 + SIGINT, {1: BOOM})


def test_a_failure_to_come_up_stops_the_others() -> None:
    policy = RunPolicy(2)
    policy.process_ended(1, EndRun(1, "fork failed", died=True), 0.0)
    assert not policy.begin()
    assert policy.actions(END_OF_MOMENT) == [Signal(SIGTERM, (0,))]
