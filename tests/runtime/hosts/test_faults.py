"""Unhandled faults: each goes to the hook once, on a thread of its own, and the default ends the process."""

from __future__ import annotations

import contextvars
import queue
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from meshbook.runtime.actor.failure import MeshFailure
from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import format_help
from meshbook.runtime.hosts import faults as module
from meshbook.runtime.hosts.faults import (
    HookedModule,
    UnhandledFaults,
    default_hook,
    set_unhandled_fault_hook,
    unhandled_fault_hook,
)
from meshbook.runtime.node.ledger import OwnedMesh
from tests.support import PATIENCE

CELL: contextvars.ContextVar[str] = contextvars.ContextVar("cell", default="none")


def fault(number: int = 0) -> tuple[OwnedMesh, MeshFailure]:
    """Rank `number` of a mesh that was spawned in the context of now."""
    owned_mesh = OwnedMesh(
        *("trainer-1", "trainer", "", {}),
        stop=lambda reason: Future.completed(None),
        handle=lambda: None,
        context=contextvars.copy_context(),
        restart=lambda ranks: [],
    )
    return owned_mesh, owned_mesh.mark_failed(number, "it had enough")


@pytest.fixture
def reported() -> Iterator[UnhandledFaults]:
    made = UnhandledFaults()
    yield made
    made.close()


@pytest.fixture
def seen() -> queue.SimpleQueue[Any]:
    return queue.SimpleQueue()


def next_of(seen: queue.SimpleQueue[Any]) -> Any:
    return seen.get(timeout=PATIENCE)


# -- taking faults to the hook -------------------------------------------------------------


def test_each_fault_comes_once_and_in_order(reported: UnhandledFaults, seen: queue.SimpleQueue[Any]) -> None:
    set_unhandled_fault_hook(seen.put)
    failures = [fault(number) for number in range(3)]
    for each in failures:
        reported.report(*each)
    assert [next_of(seen) for _ in failures] == [failure for _, failure in failures]
    assert seen.empty()


@pytest.mark.parametrize("error", [ValueError("in the hook"), KeyboardInterrupt("in the hook")])
def test_a_hook_that_raises_is_shown_and_called_for_the_next_one(
    reported: UnhandledFaults, seen: queue.SimpleQueue[Any], capsys: pytest.CaptureFixture[str], error: BaseException
) -> None:
    def hook(failure: MeshFailure) -> None:
        seen.put(failure.crashed_ranks)
        raise error

    set_unhandled_fault_hook(hook)
    reported.report(*fault(1))
    assert next_of(seen) == [1]
    reported.report(*fault(2))
    assert next_of(seen) == [2]
    reported.close()
    assert seen.empty()
    assert capsys.readouterr().err.count(f"{type(error).__name__}: in the hook") == 2


def test_the_hook_is_the_one_of_the_moment(reported: UnhandledFaults, seen: queue.SimpleQueue[Any]) -> None:
    def replace(failure: MeshFailure) -> None:
        set_unhandled_fault_hook(lambda failure: seen.put("the second"))
        seen.put("the first")

    set_unhandled_fault_hook(replace)
    for number in range(2):
        reported.report(*fault(number))
    assert [next_of(seen) for _ in range(2)] == ["the first", "the second"]


def test_the_hook_runs_where_the_mesh_was_spawned(reported: UnhandledFaults, seen: queue.SimpleQueue[Any]) -> None:
    """In its context, as far as that is one: in a notebook this says which cell shows what is printed."""
    set_unhandled_fault_hook(lambda failure: seen.put((CELL.get(), threading.current_thread().name)))
    token = CELL.set("the first")
    first = fault()
    CELL.set("the second")
    second = fault()
    CELL.reset(token)
    for each in (first, second, fault()):
        reported.report(*each)
    assert [next_of(seen) for _ in range(3)] == [
        ("the first", "meshbook faults"),
        ("the second", "meshbook faults"),
        ("none", "meshbook faults"),
    ]


def test_nothing_is_taken_after_the_end(reported: UnhandledFaults, seen: queue.SimpleQueue[Any]) -> None:
    set_unhandled_fault_hook(seen.put)
    reported.close()
    reported.report(*fault())
    reported.close()
    assert seen.empty()


def test_the_end_waits_for_a_hook_that_runs_and_drops_what_follows(
    reported: UnhandledFaults, seen: queue.SimpleQueue[Any]
) -> None:
    go = threading.Event()

    def hook(failure: MeshFailure) -> None:
        seen.put(("begun", failure.crashed_ranks))
        assert go.wait(PATIENCE)
        seen.put("ended")

    set_unhandled_fault_hook(hook)
    for number in range(2):
        reported.report(*fault(number))
    assert next_of(seen) == ("begun", [0])
    closing = threading.Thread(target=lambda: (reported.close(), seen.put("closed")))
    closing.start()
    while not reported._closed:  # from now on the second one is too late
        pass
    go.set()
    closing.join(PATIENCE)
    assert [next_of(seen) for _ in range(2)] == ["ended", "closed"]
    assert seen.empty()


def test_a_hook_may_end_the_session_that_calls_it(reported: UnhandledFaults, seen: queue.SimpleQueue[Any]) -> None:
    def hook(failure: MeshFailure) -> None:
        reported.close()
        seen.put("closed")

    set_unhandled_fault_hook(hook)
    reported.report(*fault())
    assert next_of(seen) == "closed"


# -- the default ---------------------------------------------------------------------------


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, seen: queue.SimpleQueue[Any]) -> Callable[[], Any]:
    """Instead of ending, the process tells how it would, and that its exit handlers had run before."""
    monkeypatch.setattr(module.atexit, "_run_exitfuncs", lambda: seen.put("exit handlers"))
    monkeypatch.setattr(module.os, "_exit", seen.put)

    def wait() -> Any:
        assert next_of(seen) == "exit handlers"
        return next_of(seen)

    return wait


def test_the_default_prints_the_failure_and_ends_the_process(
    reported: UnhandledFaults, ended: Callable[[], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    set_unhandled_fault_hook(default_hook)
    reported.report(*fault(3))
    assert ended() == 1
    shown = "MeshFailure of mesh trainer, crashed_ranks=[3]: it had enough"
    assert capsys.readouterr().err.splitlines() == [shown, format_help("meshfailure")]


@pytest.mark.parametrize(
    ("code", "status", "printed"), [(None, 0, ""), (0, 0, ""), (7, 7, ""), ("that was all", 1, "that was all\n")]
)
def test_a_hook_ends_the_process_as_any_code_does(
    reported: UnhandledFaults,
    ended: Callable[[], Any],
    capsys: pytest.CaptureFixture[str],
    code: Any,
    status: int,
    printed: str,
) -> None:
    def hook(failure: MeshFailure) -> None:
        raise SystemExit(code)

    set_unhandled_fault_hook(hook)
    reported.report(*fault())
    assert ended() == status
    assert capsys.readouterr().err == printed


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # here the process goes on
def test_an_exit_handler_that_fails_does_not_keep_the_process(
    reported: UnhandledFaults, ended: Callable[[], Any], seen: queue.SimpleQueue[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        seen.put("exit handlers")
        raise SystemExit("a handler")

    monkeypatch.setattr(module.atexit, "_run_exitfuncs", fail)
    set_unhandled_fault_hook(default_hook)
    reported.report(*fault())
    assert ended() == 1


# -- the hook as an attribute of a module ----------------------------------------------------


@pytest.fixture
def hooked() -> types.ModuleType:
    return HookedModule("hooked")


def test_assigning_to_the_module_replaces_the_hook(hooked: Any) -> None:
    def hook(failure: MeshFailure) -> None: ...

    hooked.unhandled_fault_hook = hook
    assert unhandled_fault_hook() is hook
    assert hooked.unhandled_fault_hook is hook
    del hooked.unhandled_fault_hook
    assert unhandled_fault_hook() is default_hook


def test_what_cannot_be_called_is_no_hook(hooked: Any) -> None:
    before = unhandled_fault_hook()
    with pytest.raises(TypeError, match="not 'exit'"):
        hooked.unhandled_fault_hook = "exit"
    assert unhandled_fault_hook() is before


def test_a_hook_that_is_a_method_or_a_class_is_called_with_the_failure_alone(
    reported: UnhandledFaults, seen: queue.SimpleQueue[Any]
) -> None:
    """Though it is kept in a class, it does not become a method of that."""

    class Note:
        def __init__(self, failure: MeshFailure) -> None:
            seen.put(failure.crashed_ranks)

        @classmethod
        def take(cls, failure: MeshFailure) -> None:
            seen.put(failure.crashed_ranks)

    for number, hook in enumerate((Note, Note.take, lambda failure: seen.put(failure.crashed_ranks))):
        set_unhandled_fault_hook(hook)
        reported.report(*fault(number))
        assert next_of(seen) == [number]


def test_the_facade_is_such_a_module() -> None:
    import meshbook

    assert isinstance(sys.modules["meshbook"], HookedModule)
    assert meshbook.unhandled_fault_hook is unhandled_fault_hook()
