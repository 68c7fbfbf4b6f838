"""Handles of another run: a process outside the run has received them, and uses them as a client of that run.

Each method runs in the context of that client (`context_in`): its node sends the calls and owns the meshes that are
spawned, and the returned handles belong to the same run. Handles of the process's own run have no overhead from this.
"""

from __future__ import annotations

import contextvars
import functools
import logging
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.context import CURRENT, Instance, context_in, present_run
from meshbook.runtime.actor.endpoint import Arguments
from meshbook.runtime.actor.failure import MeshFailure
from meshbook.runtime.actor.future import Future
from meshbook.runtime.mesh.actors import ActorMesh
from meshbook.runtime.mesh.handle_pickling import FOREIGN_CLASSES, as_of, reduce_for_message, reduce_for_program
from meshbook.runtime.mesh.hosts import HostMesh
from meshbook.runtime.mesh.procs import ProcMesh
from meshbook.runtime.node.ledger import OwnedMesh

P = ParamSpec("P")
R = TypeVar("R")


def _in_its_run(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Wrap a method of a handle so that it runs as a client of the handle's run."""

    @functools.wraps(method)
    def run(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        here = context_in(self._run_url)
        made: R = as_of(self._run_url, here.run(functools.partial(method, self, *args, **kwargs)))
        return made

    return run


def _of_its_run(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Wrap a method that makes another handle and sends nothing."""

    @functools.wraps(method)
    def make(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        made: R = as_of(self._run_url, method(self, *args, **kwargs))
        return made

    return make


class ForeignActorMesh(ActorMesh):
    """Actors of another run."""

    _run_url: str

    _call = _in_its_run(ActorMesh._call)
    _call_each = _in_its_run(ActorMesh._call_each)
    _call_rank = _in_its_run(ActorMesh._call_rank)
    _call_one = _in_its_run(ActorMesh._call_one)
    _choose = _in_its_run(ActorMesh._choose)
    _stream = _in_its_run(ActorMesh._stream)
    _fold = _in_its_run(ActorMesh._fold)
    _broadcast = _in_its_run(ActorMesh._broadcast)
    _with_region = _of_its_run(ActorMesh._with_region)
    _undecorated = _of_its_run(ActorMesh._undecorated)
    stop = _in_its_run(ActorMesh.stop)
    reload = _in_its_run(ActorMesh.reload)

    def _send(
        self, endpoint: str, arguments: Arguments, *, chosen: bool, port: tuple[Any, int], has_port: bool
    ) -> None:
        here = context_in(self._run_url)
        if port[1] and (relay := here.actor_instance.node.relay) is not None:
            port = relay(*port, once=False)
        here.run(functools.partial(super()._send, endpoint, arguments, chosen=chosen, port=port, has_port=has_port))

    @property
    def initialized(self) -> Future[None]:
        ready: Future[None] = context_in(self._run_url).run(lambda: super(ForeignActorMesh, self).initialized)
        return ready

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_for_program(self._run_url, self._made())

    def _reduce_for_wire(self) -> tuple[Any, ...]:
        return reduce_for_message(self._run_url, self._made())


class ForeignProcMesh(ProcMesh):
    """Processes of another run."""

    _run_url: str

    ask_whether_ready = _in_its_run(ProcMesh.ask_whether_ready)
    _twin = _of_its_run(ProcMesh._twin)
    map = _in_its_run(ProcMesh.map)
    stop = _in_its_run(ProcMesh.stop)
    heal_ranks = _in_its_run(ProcMesh.heal_ranks)
    all_of = _in_its_run(ProcMesh.all_of)
    init_process_group = _in_its_run(ProcMesh.init_process_group)
    abort_process_groups = _in_its_run(ProcMesh.abort_process_groups)
    spares = _in_its_run(ProcMesh.spares)
    transfers = _in_its_run(ProcMesh.transfers)
    dismiss = _in_its_run(ProcMesh.dismiss)
    kill = _in_its_run(ProcMesh.kill)

    def resize(self, **sizes: int) -> ProcMesh:
        return _in_its_run(lambda procs: ProcMesh.resize(procs, **sizes))(self)

    def _spawn(
        self, name: str, cls: type[Actor], args: tuple[Any, ...], kwargs: dict[str, Any], *, on_main: bool
    ) -> ActorMesh:
        made = _in_its_run(ProcMesh._spawn)(self, name, cls, args, kwargs, on_main=on_main)
        _own(self._run_url, made._targets[0].actor)
        return made

    @property
    def actors(self) -> dict[str, Any]:
        known: dict[str, Any] = context_in(self._run_url).run(lambda: super(ForeignProcMesh, self).actors)
        return {name: as_of(self._run_url, mesh) for name, mesh in known.items()}

    async def logging_option(
        self, stream_to_client: bool = False, aggregate_window_sec: float | None = None, level: int = logging.INFO
    ) -> None:
        token = CURRENT.set(context_in(self._run_url))
        try:
            await super().logging_option(stream_to_client, aggregate_window_sec, level)
        finally:
            CURRENT.reset(token)

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_for_program(self._run_url, self._made())

    def _reduce_for_wire(self) -> tuple[Any, ...]:
        return reduce_for_message(self._run_url, self._made())


class ForeignHostMesh(HostMesh):
    """Hosts of another run."""

    _run_url: str

    _twin = _of_its_run(HostMesh._twin)
    shutdown = _in_its_run(HostMesh.shutdown)
    stop = _in_its_run(HostMesh.stop)

    def spawn_procs(self, *args: Any, **kwargs: Any) -> ProcMesh:
        made = _in_its_run(HostMesh.spawn_procs)(self, *args, **kwargs)
        _own(self._run_url, made.name)
        return made

    @property
    def stream_logs(self) -> bool:
        return bool(context_in(self._run_url).run(lambda: super(ForeignHostMesh, self).stream_logs))

    @property
    def initialized(self) -> Future[bool]:
        ready: Future[bool] = context_in(self._run_url).run(lambda: super(ForeignHostMesh, self).initialized)
        return ready

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_for_program(self._run_url, self._made())

    def _reduce_for_wire(self) -> tuple[Any, ...]:
        return reduce_for_message(self._run_url, self._made())


def _own(run: str, key: str) -> None:
    """Make the calling code the owner of a mesh that a client of another run has spawned for it."""
    owned_mesh = context_in(run).actor_instance.node.ledger.get(key)
    if owned_mesh is None or run == present_run():
        return
    handle = owned_mesh.handle
    owned_mesh.handle = lambda: as_of(run, handle())  # for the mesh of a MeshFailure
    if owned_mesh.policy is None:  # a policy acts in the client's context
        owned_mesh.context = contextvars.copy_context()  # a notebook shows a failure in the cell that spawned
    here = CURRENT.get()
    if here is not None and here.actor_instance.control is not None:
        _supervise_from_here(owned_mesh, here.actor_instance)


def _supervise_from_here(owned_mesh: OwnedMesh, owner: Instance) -> None:
    """Pass failures of a mesh in another run to an actor of this process; stop the mesh when the actor ends."""
    actors = owner.node.actors

    def supervise(failure: MeshFailure) -> bool:
        if (hosted := actors.find(owner.key)) is not None:
            hosted.supervise(owned_mesh, failure)
        return True

    def end(instance: Instance) -> None:
        if instance is owner:
            actors.when_ended.remove(end)
            owned_mesh.handle().stop("its owner has ended")

    owned_mesh.on_failure = supervise
    actors.when_ended.append(end)


FOREIGN_CLASSES.update({ActorMesh: ForeignActorMesh, ProcMesh: ForeignProcMesh, HostMesh: ForeignHostMesh})
