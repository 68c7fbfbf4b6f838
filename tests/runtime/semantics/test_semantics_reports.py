"""Semantics: what the error of a call tells: the root cause first, the user's lines, and the line of the call."""

from __future__ import annotations

import _thread
import asyncio
import operator
import pickle
import sys
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshbook import (
    Accumulator,
    Actor,
    ActorError,
    CallTimeout,
    Channel,
    Future,
    SupervisionError,
    endpoint,
    returns_future,
    send,
    this_proc,
)
from meshbook.runtime.traces import is_ours
from tests.support import PATIENCE


def divide(value: int) -> float:
    return 1 / value  # the line that fails


class Worker(Actor):
    @endpoint
    def divide(self, value: int) -> float:
        return divide(value)

    @endpoint
    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)


class AsyncWorker(Actor):
    @endpoint
    async def divide(self, value: int) -> float:
        await asyncio.sleep(0)
        return divide(value)

    @endpoint
    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)


class MixedWorker(Actor, mixed=True):
    @endpoint
    def divide(self, value: int) -> float:
        return divide(value)

    @endpoint
    async def other(self) -> None: ...


def error_of(future: Any) -> Any:
    """What it raises, waited for at a line that has made no call."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        future.get(PATIENCE)
    return caught.value


def line_of(mark: str) -> int:
    """The line of this file that ends with a comment."""
    lines = Path(__file__).read_text().splitlines()
    [number] = [number for number, line in enumerate(lines, 1) if line.endswith(f"  # {mark}")]
    return number


# -- the line that made the call -----------------------------------------------------------


def call_it(worker: Any) -> Any:
    return worker.divide.call(0)  # made here


CALLED_AT = "called at {}:{}, in call_it\n    return worker.divide.call(0)  # made here"


@pytest.mark.parametrize("kind", [Worker, AsyncWorker, MixedWorker])
def test_an_error_names_the_line_of_the_call_where_another_waits(world: Any, kind: Any) -> None:
    """By `get`, `result`, `exception` and `await`; and the text ends with it."""
    future = call_it(world.spawn(kind))

    async def wait() -> None:
        await future

    said = CALLED_AT.format(__file__, line_of("made here"))
    assert str(error_of(future)).endswith(said)
    with pytest.raises(ActorError) as caught:
        asyncio.run(wait())
    assert str(caught.value).endswith(said)
    assert str(future.exception()).endswith(said)


def test_the_line_that_waits_is_not_named_a_second_time(world: Any) -> None:
    """It is in the traceback; and so is the line of a call that a function was given."""
    worker = world.spawn(Worker)

    async def wait() -> None:
        await worker.divide.call(0)

    with pytest.raises(ActorError) as caught:
        worker.divide.call(0).get(PATIENCE)
    assert "called at" not in str(caught.value)
    with pytest.raises(ActorError) as caught:
        asyncio.run(wait())
    assert "called at" not in str(caught.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda worker: worker.divide.call(0),
        lambda worker: worker.slice(gpus=1).divide.call_one(0),
        lambda worker: worker.divide.call_each(0)[1],
        lambda worker: worker.divide.choose(0),
        lambda worker: next(worker.divide.stream(0)),
        lambda worker: worker.divide.within(PATIENCE).call(0),
        lambda worker: Accumulator(worker.divide, 0, operator.add).accumulate(0),
    ],
)
def test_every_verb_names_its_line(world: Any, call: Any) -> None:
    assert f"called at {__file__}:{call.__code__.co_firstlineno}, in <lambda>" in str(
        error_of(call(world.spawn(Worker)))
    )


def test_what_comes_to_a_port_names_the_line_that_named_the_port(world: Any) -> None:
    port, receiver = Channel[float].open()
    send(world.spawn(Worker, gpus=1).divide, [0], {}, port)  # sent here
    assert f"called at {__file__}:{line_of('sent here')}, in test" in str(error_of(receiver.recv()))


def test_a_lost_callee_and_a_time_limit_name_the_line_too(world: Any) -> None:
    procs, gate = world.procs(1), world.gate()
    worker = procs.spawn("worker", Worker)
    waiting = worker.run.call(gate.pass_through)  # held here
    gate.wait_told()
    limited = worker.divide.call(0, timeout=0)  # limited here
    error = error_of(limited)
    assert isinstance(error, CallTimeout)
    assert f"called at {__file__}:{line_of('limited here')}" in str(error)
    world.kill(procs)
    later = worker.divide.call(0)  # after the end
    for future, mark in ((waiting, "held here"), (later, "after the end")):
        error = error_of(future)
        assert isinstance(error, SupervisionError)
        assert str(error).startswith("Endpoint call worker.")
        assert f"called at {__file__}:{line_of(mark)}" in str(error)


def test_the_errors_of_the_other_ranks_name_it_as_well(world: Any) -> None:
    failures = error_of(call_it(world.spawn(Worker))).failures
    assert all(str(error).endswith("# made here") for error in failures.values())
    assert len(failures) == 2


def test_an_error_that_travels_keeps_the_line(world: Any) -> None:
    error = error_of(call_it(world.spawn(Worker)))
    again = pickle.loads(pickle.dumps(error))
    assert str(again).endswith("# made here")
    assert (type(again), again.args) == (type(error), error.args)


def test_a_call_that_no_line_made_is_a_call(world: Any) -> None:
    """A thread may begin in a verb, straight from C; then there is no caller to name."""
    port, receiver = Channel[int].open()
    _thread.start_new_thread(world.spawn(Worker, gpus=1).run.call, (port.send, 1))
    assert receiver.recv().get(PATIENCE) == 1


class Traced:
    """A local variable of the caller."""


def test_a_call_keeps_nothing_of_its_caller_alive(world: Any) -> None:
    worker, gate = world.spawn(Worker, gpus=1), world.gate()

    def call() -> tuple[Any, Any]:
        traced = Traced()
        return worker.run.call(gate.pass_through), weakref.ref(traced)

    future, traced = call()
    assert traced() is None
    gate.open()
    future.get(PATIENCE)


# -- the traceback -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Worker, AsyncWorker, MixedWorker])
def test_the_remote_traceback_has_the_users_frames_alone(world: Any, kind: Any) -> None:
    """And no other line of it is of use: not how the runtime came there, nor how asyncio did."""
    text = str(error_of(world.spawn(kind, gpus=1, name="worker").divide.call(0)))
    first, *rest = text.splitlines()
    assert first.startswith("worker.divide() on rank {'gpus': 0/1} (")
    assert first.endswith(") raised ZeroDivisionError: division by zero")
    assert rest[0] == "Traceback (most recent call last):"
    frames = [line for line in rest if line.startswith("  File ")]
    assert [frame.rpartition(" in ")[2] for frame in frames] == ["divide", "divide"]
    assert all(f'File "{__file__}"' in frame for frame in frames)
    assert "    return 1 / value  # the line that fails" in rest


def fail_on_gpu(text: str) -> None:
    raise RuntimeError(text)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("CUDA error: device-side assert triggered", "kill() the process, and heal() the mesh"),
        ("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 30", "init_process_group() of the mesh"),
    ],
)
def test_an_error_of_a_gpu_ends_with_the_remedy(world: Any, text: str, remedy: str) -> None:
    last = str(error_of(world.spawn(Worker, gpus=1).run.call_one(fail_on_gpu, text))).splitlines()
    assert any(remedy in line for line in last[-4:])


def test_each_observer_of_an_error_sees_its_own_lines(world: Any) -> None:
    """Not those of earlier observers; and of ours a single one, the last."""
    future = call_it(world.spawn(Worker))

    def observe_first() -> None:
        future.get(PATIENCE)

    async def observe_second() -> None:
        await future

    for observe in (observe_first, lambda: asyncio.run(observe_second())):
        with pytest.raises(ActorError) as caught:
            observe()
        frames = traceback.extract_tb(caught.tb)
        assert [frame.name for frame in frames].count("observe_first") == (observe is observe_first)
        assert [is_ours(frame.filename) for frame in frames].count(True) == 1


def test_a_function_of_the_users_is_in_the_traceback_of_what_it_raised(world: Any) -> None:
    """Where the runtime calls it here: to fold answers, and the body of a deferred future."""

    def refuse(total: Any, value: Any) -> Any:
        raise OverflowError(value)

    @returns_future
    async def fail() -> None:
        divide(0)

    folded: Future[Any] = Accumulator(world.spawn(Worker).divide, 0, refuse).accumulate(1)
    for future, name in ((folded, "refuse"), (fail(), "divide")):
        for _ in range(2):
            error = error_of(future)
            frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == __file__]
            assert [frame.name for frame in frames][-1] == name


# -- errors that go through several actors ---------------------------------------------------


class Chain(Actor):
    """Asks the next one, to the given depth."""

    def __init__(self, depth: int) -> None:
        self.next: Any = this_proc().spawn("chain", Chain, depth - 1) if depth else None

    @endpoint
    def divide(self, value: int) -> float:
        if self.next is None:
            return divide(value)
        future = self.next.divide.call_one(value)  # asked here
        return self.wait(future)

    def wait(self, future: Any) -> Any:
        return future.get()  # waited here

    @endpoint
    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self.next.run.call_one(function, *arguments).get() if self.next else function(*arguments)

    @endpoint
    def fail(self) -> None:
        if self.next is None:
            raise ValueError("at the bottom")
        self.next.fail.broadcast()


def test_an_error_through_several_actors_is_reported_once_and_from_its_root(world: Any) -> None:
    """The raised error and its place, then each caller with its lines, and the line that it called from."""
    chain = world.spawn(Chain, 2, gpus=1, name="outer")
    error = error_of(chain.divide.call_one(0))
    text = str(error)
    assert text.startswith("chain.divide() (")
    assert ") raised ZeroDivisionError: division by zero\n" in text.splitlines(keepends=True)[0]
    assert text.count("ZeroDivisionError: division by zero") == 2  # the headline, and the end of the traceback
    assert text.count("Traceback (most recent call last)") == 1
    hops = [line for line in text.splitlines() if line.startswith("which failed")]
    assert [hop.partition(" (")[0] for hop in hops] == [
        "which failed chain.divide()",
        "which failed outer.divide() on rank {'gpus': 0/1}",
    ]
    assert text.count(f"called at {__file__}:{line_of('asked here')}, in divide") == 2
    assert text.count(", in wait") == 2
    inner = error.exception
    assert isinstance(inner, ActorError)
    assert isinstance(inner.exception, ActorError)
    assert isinstance(inner.exception.exception, ZeroDivisionError)


def test_a_lost_callee_of_a_callee_is_reported_once_too(world: Any, faults: Any) -> None:
    """With its kind, since the error that arrives is the endpoint's; here of an owner that goes on without it."""
    worker, lost = world.spawn(Worker, gpus=1, name="asking"), world.spawn(Worker, gpus=1, name="lost")

    def ask(other: Any) -> Any:
        return other.run.call_one(sys.exit, 3).get()

    text = str(error_of(worker.run.call_one(ask, lost)))
    assert text.startswith("SupervisionError: Endpoint call lost.run() failed, lost.run() on rank {'gpus': 0/1} (")
    assert text.splitlines()[0].endswith(") raised SystemExit: 3")
    assert "SystemExit always ends an actor" in text
    assert "which failed asking.run() on rank {'gpus': 0/1} (" in text
    assert text.count("and all its descendants have failed") == 1


def test_an_error_raised_while_another_was_handled_keeps_both(world: Any) -> None:
    """Then the traceback is shown in full: what came before is a part of it."""

    def ask(worker: Any) -> None:
        try:
            raise KeyError("first")
        except KeyError:
            worker.divide.call_one(0).get()

    worker = world.spawn(Worker, gpus=1, name="worker")
    text = str(error_of(world.spawn(Worker, gpus=1, name="asking").run.call_one(ask, worker)))
    assert text.startswith("asking.run() on rank")
    places = [text.find(said) for said in ("KeyError: 'first'", "During handling", "worker.divide() on rank {'gpus'")]
    assert -1 not in places
    assert "/meshbook/runtime/" not in text


def test_a_failure_names_the_root_and_then_each_owner(world: Any, faults: Any) -> None:
    """A chain of three, in which the failure of the last is not handled."""
    chain = world.procs(1).spawn("outer", Chain, 2)  # spawned here
    chain.fail.broadcast()
    failure = faults.get(timeout=PATIENCE)
    lines = failure.report().splitlines()
    assert lines[0].startswith("chain.fail() (")
    assert lines[0].endswith(") raised ValueError: at the bottom")
    actors = [line for line in lines if line.startswith("The actor <root>.")]
    assert lines[-3:] == actors
    assert actors[0].endswith("have failed: it raised in a broadcast, so no caller receives the error")
    assert all(
        line.endswith("have failed: its mesh chain has failed and it has no __supervise__") for line in actors[1:]
    )
    assert [line.count("Chain") for line in actors] == [3, 2, 1]
    assert "/meshbook/runtime/" not in failure.report()
    assert str(failure).startswith("MeshFailure of mesh outer, crashed_ranks=[0]: chain.fail() (")
    assert f"mesh outer was spawned at {__file__}:{line_of('spawned here')}, in test" in str(failure)


class Broken(Actor):
    def __init__(self) -> None:
        divide(0)

    @endpoint
    def run(self) -> None: ...


def test_a_constructor_that_fails_is_reported_with_its_lines(world: Any, faults: Any) -> None:
    broken = world.spawn(Broken, gpus=1)
    text = str(error_of(broken.run.call_one()))
    assert text.startswith("Endpoint call broken.run() failed, the constructor of broken on rank {'gpus': 0/1} (")
    assert "raised ZeroDivisionError: division by zero\nTraceback" in text
    frames = [line for line in text.splitlines() if line.startswith("  File ")]
    assert [frame.rpartition(" in ")[2] for frame in frames] == ["__init__", "divide"]
    assert "called at" in text


class Careless(Chain):
    """Fails itself when it gets a failure."""

    def __supervise__(self, failure: Any) -> bool:
        raise LookupError("no idea")


class Deaf(Chain):
    def __supervise__(self, failure: Any) -> bool:
        return False


def test_an_owner_that_fails_in_its_hook_reports_both_errors(world: Any, faults: Any) -> None:
    world.spawn(Careless, 1, gpus=1, name="careless").fail.broadcast()
    report = faults.get(timeout=PATIENCE).report()
    assert report.startswith("careless.__supervise__() on rank {'gpus': 0/1} (")
    assert "raised LookupError: no idea" in report
    assert "while it handled this failure: chain.fail() (" in report
    assert "/meshbook/runtime/" not in report
    world.spawn(Deaf, 1, gpus=1, name="deaf").fail.broadcast()
    assert (
        "its mesh chain has failed and its __supervise__ did not handle the failure"
        in faults.get(timeout=PATIENCE).report()
    )
