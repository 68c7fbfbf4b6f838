"""The words for how a process ended, and errors that travel."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import msgspec
import pytest

from meshbook.runtime.errors import (
    ActorError,
    CallCancelled,
    CallError,
    CallTimeout,
    DeadlockError,
    ExitReport,
    LaunchError,
    MeshbookError,
    MessageTooLarge,
    PickleError,
    ProcessDied,
    RefusedMessage,
    SupervisionError,
    WireError,
)
from meshbook.runtime.traces import SourceLine

FAILED = "the process this actor was running on failed: "


def report(returncode: int | None = -9, pid: int = 4711, **more: Any) -> ExitReport:
    return ExitReport("procs.3", pid, returncode, **more)


@pytest.mark.parametrize(
    ("made", "cause", "signal_name"),
    [
        (report(-9), "Killed(sig=9)", "SIGKILL"),
        (report(-11), "Segmentation fault(sig=11)", "SIGSEGV"),
        (report(-15), "Terminated(sig=15)", "SIGTERM"),
        (report(-40), "Real-time signal 6(sig=40)", "signal 40"),
        (report(0), "exit code 0", ""),
        (report(3), "exit code 3", ""),
        (report(None), "ended for an unknown reason", ""),
        (report(None, hint="fork failed\nmore of it"), "fork failed", ""),
    ],
)
def test_cause_and_signal(made: ExitReport, cause: str, signal_name: str) -> None:
    assert (made.cause, made.signal_name) == (cause, signal_name)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (report(), f"{FAILED}Killed(sig=9) (SIGKILL, procs.3, pid 4711)"),
        (report(3), f"{FAILED}exit code 3 (procs.3, pid 4711)"),
        (report(3, pid=0), f"{FAILED}exit code 3 (procs.3)"),
        (
            report(-9, stderr=("one", "two"), hint="out of memory?"),
            f"{FAILED}Killed(sig=9) (SIGKILL, procs.3, pid 4711)\nout of memory?\n"
            "its last lines on stderr:\n    one\n    two",
        ),
        # Without a return code the hint's first line is the cause, and is not said twice.
        (report(None, 0, hint="fork failed\nulimit -u"), f"{FAILED}fork failed (procs.3)\nulimit -u"),
        (report(None, 0), f"{FAILED}ended for an unknown reason (procs.3)"),
        # How a process ended that was asked to leave is of no interest.
        (
            report(-9, stderr=("noise",), stopped="enough"),
            "actor mesh is stopped due to proc mesh shutdown: enough",
        ),
    ],
)
def test_the_text_of_a_report(made: ExitReport, text: str) -> None:
    assert str(made) == text


@pytest.mark.parametrize("stopped", ["", "the session ended"])
def test_workers_that_ended_with_their_host(stopped: str) -> None:
    agent = ExitReport("agent", 12, -9, ("last",), "what to do", stopped)
    guest = agent.of_guest("procs.3")
    assert (guest.node, guest.pid, guest.returncode, guest.stopped) == ("procs.3", 0, None, stopped)
    if not stopped:
        assert str(guest) == (
            f"{FAILED}its host agent ended: Killed(sig=9) (agent, pid 12) (procs.3)\nwhat to do\n"
            "its last lines on stderr:\n    last"
        )


def test_a_report_travels() -> None:
    made = report(stderr=("one", "two"), hint="x", stopped="y")
    assert msgspec.msgpack.Decoder(ExitReport).decode(msgspec.msgpack.encode(made)) == made
    assert pickle.loads(pickle.dumps(made)) == made


ERRORS = [
    ActorError("text", ValueError("original")),
    ActorError("text"),
    ProcessDied("text", report(stderr=("one",))),
    *(kind("text") for kind in (SupervisionError, PickleError, MessageTooLarge, RefusedMessage, LaunchError)),
]


@pytest.mark.parametrize("travel", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy])
@pytest.mark.parametrize("dumps", [None, cloudpickle.dumps])
@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_errors_travel_whole(error: Any, travel: Callable[[Any], Any], dumps: Any) -> None:
    again = travel(error) if dumps is None else pickle.loads(dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert repr(getattr(again, "exception", None)) == repr(getattr(error, "exception", None))
    assert getattr(again, "report", None) == getattr(error, "report", None)


@pytest.mark.parametrize("kind", [ActorError, SupervisionError, DeadlockError, CallTimeout, CallCancelled])
def test_an_error_of_a_call_travels_with_its_line_and_without_the_other_answers(kind: type[CallError]) -> None:
    error = kind("text")
    error.called_at = SourceLine("/nowhere/train.py", 3, "fit")
    error.results, error.failures = object(), {0: error}
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "text\ncalled at /nowhere/train.py:3, in fit"
    assert (again.args, again.results, dict(again.failures)) == (("text",), None, {})


@pytest.mark.parametrize(
    ("kind", "parents"),
    [
        (CallError, {MeshbookError}),
        (ActorError, {CallError}),
        (SupervisionError, {CallError, RuntimeError}),
        (ProcessDied, {SupervisionError}),
        (PickleError, {WireError}),
        (MessageTooLarge, {WireError, SupervisionError}),
        (RefusedMessage, {WireError}),
        (WireError, {MeshbookError}),
        (LaunchError, {MeshbookError}),
    ],
)
def test_the_tree(kind: type, parents: set[type]) -> None:
    assert set(kind.__bases__) == parents
