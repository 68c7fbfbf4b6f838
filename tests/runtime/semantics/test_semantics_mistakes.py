"""Semantics: what a user writes wrong is told by an error of the right kind, at the line that he wrote.

Each text names the thing and says what to do; the traceback ends at the user's line and what is ours after it.
"""

from __future__ import annotations

import operator
import pickle
import traceback
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from meshbook import (
    Accumulator,
    Actor,
    Channel,
    Extent,
    Future,
    SupervisionError,
    ValueMesh,
    as_endpoint,
    concurrent_endpoint,
    context,
    endpoint,
    returns_future,
    send,
    shutdown_context,
    this_proc,
)
from meshbook.runtime.errors import PickleError
from meshbook.runtime.geometry.region import UnknownDimension
from meshbook.runtime.geometry.slices import NegativeNumber, OutOfRange
from meshbook.runtime.traces import is_ours
from tests.support import PATIENCE


class Trainer(Actor):
    def __init__(self, rate: float = 0.1) -> None:
        self.rate = rate

    @endpoint
    def step(self, batch: int, *, scale: int = 1) -> int:
        return batch * scale

    def plain(self) -> None: ...

    def _hidden(self) -> None: ...


class AsyncTrainer(Actor):
    @endpoint
    async def step(self) -> None: ...

    def plain(self) -> None: ...


class Mixed(Actor):
    @endpoint
    def sync(self) -> None: ...

    @concurrent_endpoint
    async def overlapping(self) -> None: ...


class MixedBelow(AsyncTrainer):
    @endpoint
    def sync(self) -> None: ...


class Hiding(Actor):
    @endpoint
    def slice(self) -> None: ...


class AsyncCleanup(Trainer):
    async def __cleanup__(self, error: BaseException | None) -> None: ...


class SyncCleanup(AsyncTrainer):
    def __cleanup__(self, error: BaseException | None) -> None: ...


class EitherWay(Actor, mixed=True):
    """Has both kinds, and so it may have either kind of hook."""

    @endpoint
    def sync(self) -> None: ...

    @endpoint
    async def other(self) -> None: ...

    def __cleanup__(self, error: BaseException | None) -> None: ...

    async def __supervise__(self, failure: Any) -> bool:
        return True


@returns_future
async def later(value: int) -> int:
    return value


def values() -> ValueMesh[str]:
    return ValueMesh.of(Extent.of(hosts=2, gpus=2), "abcd")


MISTAKES: list[tuple[type[Exception], str, Callable[[Any], Any]]] = [
    # a wrong name
    (
        AttributeError,
        r"trainer has no endpoint 'stepp'; its endpoints: step; did you mean 'step'\?",
        lambda w: w.mesh.stepp.call(1),
    ),
    (AttributeError, "trainer has no endpoint 'rate'; its endpoints: step$", lambda w: w.mesh.rate),
    (RuntimeError, r"Trainer\.plain is a plain method: mark it with @endpoint.*as_endpoint", lambda w: w.mesh.plain()),
    (RuntimeError, r"Trainer\.plain is a plain method", lambda w: w.mesh.plain.call()),
    (AttributeError, "no endpoint '_hidden'", lambda w: w.mesh._hidden),
    (ValueError, "as_endpoint: expected a method of a spawned actor", lambda w: as_endpoint(w.mesh.step)),
    (ValueError, "as_endpoint: expected a method of a spawned actor", lambda w: as_endpoint(Trainer.plain)),
    (TypeError, r"trainer\.step runs on the ranks of a mesh: use trainer\.step\.call", lambda w: w.mesh.step(1)),
    (
        AttributeError,
        r"'step' of a class has no attribute 'call': use mesh\.step\.call",
        lambda w: Trainer.step.call(1),
    ),
    (AttributeError, "'step' of a class has no attribute 'colour'$", lambda w: Trainer.step.colour),
    # wrong arguments of an endpoint
    (TypeError, r"^step\(batch.*\): missing a required argument: 'batch'", lambda w: w.mesh.step.call()),
    (TypeError, r"^step\(.*\): too many positional arguments", lambda w: w.mesh.step.call_each(1, 2)),
    (TypeError, r"^step\(.*\): got an unexpected keyword argument 'scal'", lambda w: w.one.step.call_one(1, scal=2)),
    (TypeError, r"^step\(.*\): multiple values for argument 'batch'", lambda w: w.mesh.step.choose(1, batch=2)),
    (TypeError, r"^step\(", lambda w: w.mesh.step.stream()),
    (TypeError, r"^step\(", lambda w: w.mesh.step.broadcast()),
    (TypeError, r"^step\(", lambda w: send(w.mesh.step, [], {})),
    (TypeError, r"^step\(", lambda w: Accumulator(w.mesh.step, 0, operator.add).accumulate()),
    (PickleError, r"an argument of trainer\.step cannot be pickled: argument 0", lambda w: w.mesh.step.call(w.lock)),
    (PickleError, "a Future cannot be pickled.*wait for it", lambda w: w.mesh.step.call(w.one.step.call_one(1))),
    (PickleError, "PortReceiver.*send the Port", lambda w: w.mesh.step.call(Channel[int].open()[1])),
    # a wrong mesh
    (
        ValueError,
        r"trainer\.step: call_one requires exactly 1 actor, but mesh has 2",
        lambda w: w.mesh.step.call_one(1),
    ),
    (TypeError, "unknown dimension 'gpu'; the dimensions are 'gpus'", lambda w: w.mesh.slice(gpu=0)),
    (IndexError, "gpus=2 is out of range: the indices are 0 to 1", lambda w: w.mesh.slice(gpus=2)),
    (IndexError, "gpus=-1 is out of range", lambda w: w.procs.slice(gpus=-1)),
    (IndexError, "gpus=2:9 selects nothing", lambda w: w.mesh.slice(gpus=slice(2, 9))),
    (TypeError, "gpus='0': expected an integer or a slice", lambda w: w.mesh.slice(gpus="0")),
    (KeyError, "unknown dimension 'hosts'", lambda w: w.mesh.size("hosts")),
    (ValueError, "not evenly divided", lambda w: w.mesh.split(gpus=("a", "b"), a=3)),
    (TypeError, r"send\(\) takes an endpoint of an actor mesh", lambda w: send(w.mesh, [1], {})),
    (TypeError, r"send\(\) takes a Port for the answers", lambda w: send(w.mesh.step, [1], {}, "port")),
    (TypeError, r"send\(\) takes the arguments as a list and a dict", lambda w: send(w.mesh.step, 1, {})),
    (ValueError, "selection must be 'all' or 'choose', not 'some'", lambda w: send(w.mesh.step, [1], {}, None, "some")),
    (TypeError, "Accumulator takes an endpoint of an actor mesh", lambda w: Accumulator(w.mesh, 0, operator.add)),
    (TypeError, "Accumulator takes a function of two values", lambda w: Accumulator(w.mesh.step, 0, "sum")),
    (RuntimeError, "no mesh is active", lambda w: w.mesh.step.rref(1)),
    # spawning actors
    (ValueError, "is not a subclass of Actor$", lambda w: w.procs.spawn("x", dict)),
    (ValueError, "is not a subclass of Actor: pass the class", lambda w: w.procs.spawn("x", Trainer())),
    (TypeError, r"spawn\(name, class, \.\.\.\) takes a name first", lambda w: w.procs.spawn(Trainer, "x")),
    (TypeError, r"^Trainer\(rate.*\): too many positional", lambda w: w.procs.spawn("x", Trainer, 1, 2)),
    (TypeError, r"^Trainer\(.*unexpected keyword argument 'rat'", lambda w: w.procs.spawn("x", Trainer, rat=1)),
    (PickleError, "an argument of Trainer cannot be pickled", lambda w: w.procs.spawn("x", Trainer, w.lock)),
    (
        ValueError,
        r"Mixed mixes both async and sync endpoints \(async: overlapping\).*mixed=True",
        lambda w: w.procs.spawn("x", Mixed),
    ),
    (
        ValueError,
        r"MixedBelow mixes both async and sync endpoints \(async: step\)",
        lambda w: w.procs.spawn("x", MixedBelow),
    ),
    (ValueError, "Hiding: endpoint 'slice' would hide.*rename it", lambda w: w.procs.spawn("x", Hiding)),
    (
        ValueError,
        r"AsyncCleanup\.__cleanup__ is async, but its endpoints are sync: make it a plain def$",
        lambda w: w.procs.spawn("x", AsyncCleanup),
    ),
    (
        ValueError,
        r"SyncCleanup\.__cleanup__ is sync, but its endpoints are async: make it an async def, or declare .*mixed=True",
        lambda w: w.procs.spawn("x", SyncCleanup),
    ),
    # decorating
    (ValueError, "can only wrap async endpoints", lambda w: concurrent_endpoint(Trainer.plain)),
    (ValueError, "apply only one endpoint decorator", lambda w: concurrent_endpoint(AsyncTrainer.step)),
    (TypeError, r"<lambda>\(\): an endpoint is a method and takes self first", lambda w: endpoint(lambda: None)),
    (
        TypeError,
        r"plain\(self\).*takes self and a port first",
        lambda w: endpoint(explicit_response_port=True)(Trainer.plain),
    ),
    # spawning processes
    (
        TypeError,
        r"per_host must map names to sizes, such as \{'gpus': 4\}, not 4",
        lambda w: w.host.spawn_procs(per_host=4),
    ),
    (TypeError, "0 is not a name", lambda w: w.host.spawn_procs(per_host={0: 4})),
    (ValueError, "'gpus' needs a size of at least 1, not 0", lambda w: w.host.spawn_procs(per_host={"gpus": 0})),
    (ValueError, "'gpus' needs a size of at least 1, not 1.5", lambda w: w.host.spawn_procs(per_host={"gpus": 1.5})),
    (TypeError, "bootstrap must be a function.*not 3", lambda w: w.host.spawn_procs(bootstrap=3)),
    (TypeError, "name must be a string", lambda w: w.host.spawn_procs(name=3)),
    (ValueError, r"proc_bind length \(1\) must equal procs_per_host \(2\)", lambda w: w.bind([{"cpus": "0"}])),
    (ValueError, r"proc_bind\[0\] has the unknown key 'cpu'", lambda w: w.bind([{"cpu": "0"}, {}])),
    (TypeError, "must be a BootstrapCommand", lambda w: w.host.spawn_procs(bootstrap_command="python")),
    # ending what is somebody else's, or over
    (ValueError, "ProcMesh is not owned; must be stopped by an owner", lambda w: w.procs.slice(gpus=0).stop()),
    (ValueError, "ProcMesh is not owned", lambda w: pickle.loads(pickle.dumps(w.procs)).stop()),
    (ValueError, "ProcMesh is not owned", lambda w: this_proc().stop()),
    (RuntimeError, "cannot shut down `HostMesh` that is a reference", lambda w: w.host_reference.shutdown()),
    (RuntimeError, "cannot shut down `HostMesh` that is a reference", lambda w: w.host_reference.stop()),
    (RuntimeError, "`ProcMesh` has already been stopped: stopped-", lambda w: w.stopped.spawn("x", Trainer)),
    (RuntimeError, "`ProcMesh` has already been stopped", lambda w: w.stopped.slice(gpus=0).spawn("x", Trainer)),
    (
        SupervisionError,
        r"Endpoint call late\.step\(\) failed, actor mesh is stopped due to proc mesh shutdown: enough",
        lambda w: w.late.step.call(1).get(PATIENCE),
    ),
    (
        SupervisionError,
        r"Endpoint call trainer\.step\(\) failed, The actor .* is stopped: no more",
        lambda w: w.ended.step.call(1).get(PATIENCE),
    ),
    (RuntimeError, "work only inside the actor", lambda w: context().actor_instance.stop()),
    # futures
    (TypeError, "a Future cannot be constructed", lambda w: Future()),
    (TypeError, "a Future cannot be pickled", lambda w: pickle.dumps(w.one.step.call_one(1))),
    (TypeError, "a Future cannot be pickled", lambda w: pickle.dumps(later(1))),
    (ValueError, "a timeout must be a finite number of seconds, zero or more, not -1", lambda w: w.pending.get(-1)),
    (ValueError, "not nan", lambda w: w.pending.result(float("nan"))),
    (ValueError, "not inf", lambda w: w.pending.exception(float("inf"))),
    (TypeError, "a timeout must be a number of seconds or None, not '3'", lambda w: w.pending.get("3")),
    (TypeError, "a timeout must be a number of seconds", lambda w: w.mesh.step.call(1, timeout="3")),
    (ValueError, "a timeout must be a finite number of seconds", lambda w: w.mesh.step.within(-1)),
    (ValueError, "host_timeout must be a finite number of seconds", lambda w: shutdown_context(-1)),
    (TypeError, "host_timeout must be a number of seconds", lambda w: shutdown_context("3")),
    (RuntimeError, "no running event loop", lambda w: w.pending.as_asyncio()),
    (TypeError, r"^later\(value.*\).*missing a required argument: 'value'", lambda w: later(valu=1)),
    (TypeError, "@returns_future decorates an `async def`", lambda w: returns_future(values)),
    # ports
    (RuntimeError, "this port was opened for one message, which was already sent", lambda w: w.used_port.send(2)),
    (RuntimeError, "this port was opened for one message", lambda w: w.used_port.exception(ValueError())),
    (RuntimeError, r"opened for one message: call recv\(\) once", lambda w: w.used_receiver.recv()),
    (TypeError, "Port.exception\\(\\) takes an exception, not 'no'", lambda w: w.port.exception("no")),
    (PickleError, "a value sent to a port cannot be pickled", lambda w: w.port.send(w.lock)),
    # value meshes
    (ValueError, "rank 4 is out of range: this value mesh has 4 ranks", lambda w: values().get(4)),
    (ValueError, "rank -1 is out of range", lambda w: values().get(-1)),
    (TypeError, r"a rank must be an integer, not '0'", lambda w: values().get("0")),
    (KeyError, "each dimension once; missing or unknown: gpus", lambda w: values().item(hosts=0)),
    (KeyError, "missing or unknown: rows", lambda w: values().item(hosts=0, gpus=0, rows=0)),
    (IndexError, "gpus=2 is out of range: the indices are 0 to 1", lambda w: values().item(hosts=0, gpus=2)),
    (TypeError, "item.* takes an integer for each dimension", lambda w: values().item(hosts=0, gpus=slice(1))),
    (ValueError, "expected 4 values for .*, got 3", lambda w: ValueMesh.of(Extent.of(gpus=4), "abc")),
    (
        ValueError,
        "expected 2 ranks, but the input contains 1",
        lambda w: ValueMesh.from_indexed(Extent.of(gpus=2), [(0, "a")]),
    ),
    (
        ValueError,
        "rank 2 is out of range",
        lambda w: ValueMesh.from_indexed(Extent.of(gpus=2), [(0, "a"), (2, "b")]),
    ),
]


@pytest.fixture
def wrong(world: Any) -> Any:
    """Everything that can be used wrongly."""
    procs, over = world.procs(2), world.procs(2, name="stopped")
    mesh, late, ended = procs.spawn("trainer", Trainer), over.spawn("late", Trainer), procs.spawn("trainer", Trainer)
    over.stop("enough").get(PATIENCE)
    ended.stop("no more").get(PATIENCE)
    used_port, used_receiver = Channel[int].open(once=True)
    used_port.send(1)
    assert used_receiver.recv().get(PATIENCE) == 1
    port, receiver = Channel[int].open()
    return SimpleNamespace(
        procs=procs,
        mesh=mesh,
        one=mesh.slice(gpus=0),
        ended=ended,
        stopped=over,
        late=late,
        host=world.host,
        host_reference=pickle.loads(pickle.dumps(world.host)),
        bind=lambda given: world.host.spawn_procs(per_host={"gpus": 2}, proc_bind=given),
        pending=receiver.recv(),
        port=port,
        receiver=receiver,
        used_port=used_port,
        used_receiver=used_receiver,
        lock=world.session._closing,
    )


def test_each_mistake_is_reported_at_its_line(wrong: Any) -> None:
    """With the kind of error that Monarch has, and nothing of the mesh is harmed by it."""
    complaints = []
    for kind, said, write in MISTAKES:
        line = write.__code__.co_firstlineno
        try:
            with pytest.raises(kind, match=f"(?s){said}") as caught:
                write(wrong)
        except BaseException as error:  # what pytest has to say, too
            complaints.append(f"{__file__}:{line}: {type(error).__name__}: {error}")
            continue
        frames = [frame for frame in traceback.extract_tb(caught.tb) if not is_ours(frame.filename)]
        expected = kind, UnknownDimension, NegativeNumber, OutOfRange
        if type(caught.value) not in expected or frames[-1].name != "<lambda>" or frames[-1].filename != __file__:
            complaints.append(f"{__file__}:{line}: {caught.value!r}, at {frames[-1]}")
    assert not complaints, "\n".join(complaints)
    assert list(wrong.mesh.step.call(2, scale=3).get(PATIENCE).values()) == [6, 6]


def test_hooks_of_a_class_that_mixes_may_be_of_either_kind(in_memory: Any) -> None:
    assert in_memory.spawn(EitherWay).initialized.get(PATIENCE) is None
