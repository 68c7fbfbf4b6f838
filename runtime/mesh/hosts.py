"""`HostMesh`: the handle of machines, each with a host agent; processes are spawned on it."""

from __future__ import annotations

import contextlib
import functools
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import ExitReport, ProcessDied
from meshbook.runtime.geometry import Extent, MeshTrait, Region
from meshbook.runtime.mesh.actors import ActorMesh, current_node
from meshbook.runtime.mesh.birth import Birth, World, inherited_environment, inherited_path
from meshbook.runtime.mesh.procs import ProcMesh, own
from meshbook.runtime.node.calls import Target
from meshbook.runtime.node.node import Node
from meshbook.runtime.wire import pickling
from meshbook.runtime.wire.messages import Address

HOST = "host"  # the actor that every host agent hosts


class HostActor(Actor):
    """What a host agent does for others; the doing is in `runtime.hosts.agent`."""

    @endpoint
    def spawn_procs(self, births: list[Birth]) -> None:
        """Start these workers; one that does not come up is reported as ended."""
        raise NotImplementedError

    @endpoint
    def stop_procs(self, nodes: list[str], reason: str) -> None:
        """Ask these workers to leave; those that do not in time are killed. Each end is announced."""
        raise NotImplementedError

    @endpoint
    def kill(self, nodes: list[str], signal: int) -> None:
        """Send a signal to these workers."""
        raise NotImplementedError

    @endpoint
    def gpus(self) -> int:
        """How many GPUs the machine has."""
        raise NotImplementedError


class HostMesh(MeshTrait):
    """Machines with a shape; `this_host()` is the one without dimensions."""

    def __init__(self, agents: Sequence[Address], region: Region, inbox: str, *, owned: bool = False) -> None:
        self._agents = tuple(agents)
        self._region = region
        self._inbox = inbox  # the URL prefix of the inboxes of workers on these hosts
        self._owned = owned

    @property
    def region(self) -> Region:
        return self._region

    def _with_region(self, region: Region) -> HostMesh:
        return HostMesh(self._agents, region, self._inbox)

    def _picked(self) -> list[Address]:
        return [self._agents[rank] for rank in self._region.ranks()]

    def _hosts(self) -> ActorMesh:
        return ActorMesh("hosts", HostActor, [Target(agent, HOST) for agent in self._agents], self._region)

    def spawn_procs(
        self,
        per_host: Mapping[str, int] | None = None,
        bootstrap: Callable[[], Any] | None = None,
        name: str | None = None,
        *,
        env: Mapping[str, str] | None = None,
    ) -> ProcMesh:
        """Start worker processes on every host and return their mesh at once.

        Its dimensions are those of the hosts, then those of `per_host` (name -> size, for example `{"gpus": 4}`), in
        row-major order. `bootstrap` runs in each process before any actor; `env` is added to its environment.
        `mesh.initialized` resolves when all are up, or raises why one is not.
        Raises ValueError for a dimension that the hosts have already, or that has no size.
        """
        dims = _check_dims(dict(per_host or {}), self.extent)
        extent = Extent((*self.extent.labels, *dims), (*self.extent.sizes, *dims.values()))
        mesh = f"{_as_file_name(name or 'procs')}-{secrets.token_hex(4)}"
        local = Extent(tuple(dims), tuple(dims.values())).nelements
        nodes: list[Address] = []
        for index, agent in enumerate(self._picked()):
            world = self._world(mesh, extent, agent, bootstrap, env)
            births = [self._birth(world, index * local + place, place, local) for place in range(local)]
            nodes += [birth.address for birth in births]
            host = ActorMesh("hosts", HostActor, [Target(agent, HOST)], Extent((), ()).region)
            _mark_unborn(host.spawn_procs.call_one(births), births)
        procs = functools.partial(ProcMesh, mesh, nodes, extent.region, self, owned=True)
        ranks = {node.node: rank for rank, node in enumerate(nodes)}
        own(mesh, name or "procs", ranks, procs, are_processes=True)
        return procs()

    def _world(
        self,
        mesh: str,
        extent: Extent,
        agent: Address,
        bootstrap: Callable[[], Any] | None,
        env: Mapping[str, str] | None,
    ) -> World:
        node = current_node()
        return World(
            run=node.run,
            mesh=mesh,
            owner=node.address.node,
            controller=node.controller,
            agent=agent,
            labels=extent.labels,
            sizes=extent.sizes,
            environment=inherited_environment(env, node.place),
            directory=str(Path.cwd()),
            search_path=inherited_path(),
            settings=node.settings,
            bootstrap=b"" if bootstrap is None else bytes(pickling.dumps(bootstrap, "bootstrap")[0]),
        )

    def _birth(self, world: World, rank: int, local_rank: int, local_size: int) -> Birth:
        name = f"{world.mesh}.{rank}"
        address = Address(name, f"{self._inbox}{name}")
        return Birth(address=address, rank=rank, local_rank=local_rank, local_size=local_size, world=world)

    def _stop_procs(self, nodes: Sequence[Address], reason: str) -> Future[None]:
        names = [node.node for node in nodes]
        ended = when_ended(current_node(), names)
        self._hosts().stop_procs.call(names, reason)  # each agent ignores the names that are not its own
        return ended

    def _signal_procs(self, nodes: Sequence[Address], number: int) -> Future[None]:
        asked = self._hosts().kill.call([node.node for node in nodes], number)
        return asked.then(lambda _: None)

    def __repr__(self) -> str:
        return f"<HostMesh {dict(self.extent)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return HostMesh, (self._agents, self._region, self._inbox)


def when_ended(node: Node, names: Sequence[str]) -> Future[None]:
    """Resolves once each of these nodes has been reported as ended."""
    future: Future[None] = Future.pending()
    missing = set(names)

    def note(report: ExitReport) -> None:
        missing.discard(report.node)
        look()

    def look() -> None:
        if not missing and not future.done():
            with contextlib.suppress(ValueError):  # two threads may come here
                node.when_down.remove(note)
            future.resolve(lambda: None)

    # First listen, then ask: an end in between is heard of either way.
    node.when_down.append(note)
    missing -= {name for name in names if node.report_of(name) is not None}
    look()
    return future


def _mark_unborn(asked: Future[None], births: Sequence[Birth]) -> None:
    """Where the agent could not even be asked, its workers will never be: say so to whoever calls them."""
    node = current_node()

    def look() -> None:
        if (error := asked.exception()) is not None:
            for birth in births:
                node.announce_down(_report_unborn(error, birth.address.node), ())

    asked.when_done(look)


def _report_unborn(error: BaseException, node: str) -> ExitReport:
    if isinstance(error, ProcessDied):
        return error.report.of_guest(node)
    return ExitReport(node, 0, None, hint=f"its host agent could not start it: {error}")


def _as_file_name(name: str) -> str:
    """A mesh's name as it can stand in the path of a socket: short, and without slashes and spaces."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name)[:24]


def _check_dims(dims: dict[str, int], hosts: Extent) -> dict[str, int]:
    for name, size in dims.items():
        if name in hosts.labels:
            raise ValueError(f"per_host: {name!r} is a dimension of the hosts already: {dict(hosts)}")
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"per_host: {name!r} needs a size of at least 1, not {size!r}")
    return dims
