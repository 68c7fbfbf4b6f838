"""`HostMesh`: the handle of machines, each with a host agent, on which processes are spawned."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from meshbook.runtime import monarch_texts
from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.deferred import returns_future
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.actor.future import Future
from meshbook.runtime.config import OVERRIDES
from meshbook.runtime.errors import LaunchError, SupervisionError
from meshbook.runtime.geometry import SCALAR, Extent, MeshTrait, Region
from meshbook.runtime.interrupts import hold_interrupts
from meshbook.runtime.mesh.actors import ActorMesh, current_node
from meshbook.runtime.mesh.binding import Given
from meshbook.runtime.mesh.commands import Commands, Start, plan_starts, start_of_spares
from meshbook.runtime.mesh.handle_pickling import Made, reduce_for_message, reduce_for_program, run_of
from meshbook.runtime.mesh.host_ownership import HostOwnership, when_ended
from meshbook.runtime.mesh.ownership import Ownership, Spares, own
from meshbook.runtime.mesh.policies import OnFailure, Restarts, policy_of
from meshbook.runtime.mesh.process_actor import PROCESS
from meshbook.runtime.mesh.procs import ProcMesh
from meshbook.runtime.mesh.worker_specs import (
    MeshSpec,
    WorkerSpec,
    WorkerSpecs,
    inherited_environment,
    inherited_path,
    installed_path,
    starts_warm,
)
from meshbook.runtime.mesh.workspaces import (
    WORKSPACE,
    ReloadActor,
    WorkspaceActor,
    batches_of,
    folders_of,
    read_digests,
)
from meshbook.runtime.node.call_table import Target
from meshbook.runtime.resources import ensure_files_for_peers
from meshbook.runtime.transport.home import host_of
from meshbook.runtime.wire import pickling
from meshbook.runtime.wire.messages import Address

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

HOST = "host"  # the name of the host actor on every agent


def name_agent(host: str, mark: str) -> str:
    """Return the name of the node of a host's agent; `mark` tells agents of equal hosts apart."""
    return f"agent-{host}-{mark}"


class HostActor(Actor):
    """The endpoints of a host agent; `runtime.hosts.agent` implements them."""

    @endpoint
    def spawn_procs(self, specs: list[WorkerSpec]) -> None:
        """Start these workers. A worker that does not start is reported as ended."""
        raise NotImplementedError

    @endpoint
    def keep_spares(self, like: WorkerSpec, count: int) -> None:
        """Keep `count` spare workers ready for the mesh of this worker spec, until the mesh is stopped."""
        raise NotImplementedError

    @endpoint
    def spares(self, mesh: str) -> int:
        """Return the number of spares that are ready."""
        raise NotImplementedError

    @endpoint
    def stop_procs(self, nodes: list[str], reason: str, fence: str) -> None:
        """Ask these workers to exit, and kill those that do not exit in time. Each end is announced.

        A worker exits once it has received this fence, which the caller sends to it directly.
        """
        raise NotImplementedError

    @endpoint
    def kill(self, nodes: list[str], signal: int, sender: str = "") -> None:
        """Send a signal to these workers. The exit report of a worker that is killed names the sender."""
        raise NotImplementedError

    @endpoint
    def clients(self) -> int:
        """Return the number of processes that have joined the run as clients; only the first host has any."""
        raise NotImplementedError

    @endpoint
    def neighbours(self) -> tuple[list[Address], list[Address]]:
        """Return the addresses of the workers of this host, and of the agents of the other hosts."""
        raise NotImplementedError

    @endpoint
    def gpus(self) -> int:
        """Return the number of GPUs of the machine."""
        raise NotImplementedError

    @endpoint
    def shutdown(self, reason: str, loop_stays: bool = False) -> None:
        """Stop every worker, and end the agent once the last worker has ended.

        A worker loop that has started the agent ends too, unless it stays for the next client.
        """
        raise NotImplementedError


_OF_THE_RUNTIME = {
    *("adopt", "check_elastic", "count_spares", "is_fake_in_process", "keep_spares", "note_end", "ownership"),
    *("signal_procs", "stop_procs", "stream_logs", "was_drained"),
}


class HostMesh(MeshTrait):
    """Machines with a shape. `this_host()` is the one without dimensions."""

    def __init__(
        self,
        agents: Sequence[Address],
        region: Region,
        *,
        owned: bool = False,
        python: str = "",
        is_fake_in_process: bool = False,
        ownership: HostOwnership | None = None,
    ) -> None:
        self._agents = tuple(agents)
        self._region = region
        self._owned = owned
        self._python = python  # the interpreter of processes; empty: this one, forked
        self._is_fake = is_fake_in_process
        self._ownership = ownership or HostOwnership(agents)

    @property
    def region(self) -> Region:
        return self._region

    @property
    def stream_logs(self) -> bool:
        """Whether the client shows the output of processes that are spawned now (MESHBOOK_ENABLE_LOG_FORWARDING)."""
        return OVERRIDES.applied_to_mesh(current_node().settings).enable_log_forwarding

    @property
    def agents(self) -> tuple[Address, ...]:
        """The addresses of the agents, in rank order."""
        return tuple(self._picked())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the hosts, in rank order: those given to their launcher. Empty for the controller's own host."""
        return tuple(agent.node.removeprefix("agent").removeprefix("-").rpartition("-")[0] for agent in self._picked())

    @property
    def initialized(self) -> Future[bool]:
        """A future that resolves to True once every host takes requests.

        It raises SupervisionError, with the exit report, if a host is gone.
        """
        if self._ownership.is_over:
            return Future.failed(SupervisionError(f"{monarch_texts.HOSTS_SHUT_DOWN}: its session has ended"))
        return self._hosts().gpus.call().then(lambda gpus: True)

    @property
    def ownership(self) -> HostOwnership:
        """The state that all handles of these hosts share in this process."""
        return self._ownership

    @property
    def is_fake_in_process(self) -> bool:
        """Whether processes on these hosts are threads of the client's own process, as in tests."""
        return self._is_fake

    def __dir__(self) -> list[str]:
        """Leave out what is for the runtime itself: completion would offer it."""
        return [name for name in super().__dir__() if name not in _OF_THE_RUNTIME]

    @property
    def is_shut_down(self) -> bool:
        """Whether `shutdown` was called, or the session has ended."""
        return self._ownership.shutdown is not None

    def with_python_executable(self, path: str | os.PathLike[str]) -> HostMesh:
        """Return the same hosts, with this interpreter for their processes and for all processes that those spawn.

        `path` is a path, which is not resolved (a virtual environment is a link), or a name that is looked up on PATH.
        The interpreter must have the same Python version and the packages that meshbook needs; this is checked when it
        starts. It keeps its own packages; meshbook itself and the user's folders are those of this process.
        """
        python = os.fspath(path)
        if not python:
            raise ValueError("with_python_executable needs the path of an interpreter, not an empty string")
        return self._twin(
            self._region, owned=self._owned, python=str(Path(python).absolute()) if os.sep in python else python
        )

    def _with_region(self, region: Region) -> HostMesh:
        return self._twin(region, owned=False, python=self._python)

    def _twin(self, region: Region, *, owned: bool, python: str) -> HostMesh:
        return HostMesh(
            self._agents,
            region,
            owned=owned,
            python=python,
            is_fake_in_process=self._is_fake,
            ownership=self._ownership,
        )

    def without(self, names: Sequence[str]) -> HostMesh:
        """Return the other hosts; `drain` of a mesh removes its ranks from these.

        ValueError for an unknown name, if none would stay, and for hosts that have more dimensions than one.
        """
        self.check_elastic("drain")
        if unknown := [name for name in names if name not in self.names]:
            raise ValueError(f"drain: no host is named {unknown[0]!r}; the hosts are {', '.join(self.names)}")
        stays = [agent for agent, name in zip(self.agents, self.names, strict=True) if name not in names]
        if not stays:
            raise ValueError("drain: no host would stay; stop the mesh instead")
        return self._of(stays)

    def joined(self, more: HostMesh) -> HostMesh:
        """Return these hosts and more, which `take_over` gives the owner of these hosts.

        RuntimeError for hosts that are not owned, or are shut down; ValueError for hosts that are among these already.
        """
        self.check_elastic("join")
        more._check_owned()
        if more.is_shut_down:
            raise RuntimeError(monarch_texts.HOSTS_SHUT_DOWN)
        if not more.names or not set(more.agents).isdisjoint(self.agents):
            raise ValueError("join: the hosts are part of the mesh already, or are this machine's own")
        return self._of([*self.agents, *more.agents])

    def take_over(self, more: HostMesh) -> None:
        """Make the owner of these hosts that of more hosts, which end with them from now on."""
        if more._ownership is not self._ownership:  # of two meshes that share hosts, the second joins hosts of theirs
            for mesh in more._ownership.meshes.values():
                self._ownership.add(mesh)
            self._ownership.agents += more._ownership.agents
            more._ownership = self._ownership

    def check_elastic(self, what: str) -> None:
        """Raise ValueError unless hosts can be removed and added: they have one dimension, as a launcher's have."""
        if len(self.extent) != 1 or not self.names:
            dims = dict(self.extent) or "none"
            raise ValueError(f"{what} needs hosts with one dimension, as a launcher starts them; these have {dims}")

    def _of(self, agents: Sequence[Address]) -> HostMesh:
        [label] = self.extent.labels
        region = Extent.of(**{label: len(agents)}).region
        return HostMesh(agents, region, owned=self._owned, python=self._python, ownership=self._ownership)

    def _picked(self) -> list[Address]:
        return [self._agents[rank] for rank in self._region.ranks()]

    def _hosts(self) -> ActorMesh:
        return ActorMesh("hosts", HostActor, [Target(agent, HOST) for agent in self._agents], self._region)

    def spawn_procs(
        self,
        per_host: Mapping[str, int] | None = None,
        bootstrap: Callable[[], Any] | None = None,
        name: str | None = None,
        proc_bind: Sequence[Given] | None = None,
        bootstrap_command: Commands | None = None,
        *,
        env: Mapping[str, str] | None = None,
        spares: int = 0,
        on_failure: OnFailure = "raise",
        restarts: Restarts | None = None,
    ) -> ProcMesh:
        """Start worker processes on every host and return their mesh at once.

        The dimensions are those of the hosts, then those of `per_host` (name -> size, for example `{"gpus": 4}`), in
        row-major order. `mesh.initialized` resolves when all processes are up, or raises the reason why one is not.

        - `bootstrap` runs in each process before any actor.
        - `proc_bind` has a dict for each process of a host: `{"cpus": "0-3"}` sets the affinity; `cpunodebind`,
          `membind`, `physcpubind`, `interleave` and `preferred` are options of numactl.
        - `bootstrap_command` starts the processes by a command instead of a fork: a BootstrapCommand, or a function
          that returns one for each point of the mesh.
        - `env` is added to the environment of each process.
        - `spares`: the number of additional processes on each host, started like the others, with `bootstrap` run.
          `heal` and `resize` use them instead of starting processes; each used spare is replaced. Spares have no rank:
          RANK and related variables are not set when their bootstrap runs, and the bootstrap can call no actors. A
          bootstrap that fails in a spare ends it without a replacement; `events()` reports this.
        - `on_failure` selects what happens to processes that die, and to the actors spawned on them: "raise", "respawn"
          or a function that decides, as in `ProcMesh.with_policy`. Other processes that have spawned actors there
          always receive the failures of their own actors.

        Raises ValueError for a dimension that the hosts already have or that has no size, for a `proc_bind` that does
        not fit, and for spares if each rank has its own command; TypeError for an argument of another type;
        RuntimeError once the hosts have been shut down.
        """
        if self.is_shut_down:
            raise RuntimeError(monarch_texts.HOSTS_SHUT_DOWN)
        _check_kinds(per_host, bootstrap, name, spares)
        dims = _check_dims(dict(per_host or {}), self.extent)
        extent = Extent((*self.extent.labels, *dims), (*self.extent.sizes, *dims.values()))
        short_name = re.sub(r"[^A-Za-z0-9_-]+", "-", name or "procs")[:24]  # for the paths of sockets
        mesh = f"{short_name}-{secrets.token_hex(4)}"
        local = Extent(tuple(dims), tuple(dims.values())).nelements
        plan = functools.partial(
            plan_starts, proc_bind=proc_bind, commands=bootstrap_command, python=self._python, env=env
        )
        starts = plan(extent, local)
        if trouble := ensure_files_for_peers(extent.nelements):
            raise LaunchError(trouble)
        policy = policy_of(on_failure, restarts)
        spare_start = start_of_spares(starts) if spares else None
        is_warm = starts_warm(OVERRIDES.applied_to_mesh(current_node().settings), local)
        worker_specs: list[WorkerSpec] = []
        for index, agent in enumerate(self._picked()):
            world = self._world(mesh, extent, agent, bootstrap, env, is_warm=is_warm)
            worker_specs += [self._spec(world, index * local + place, place, local, starts) for place in range(local)]
        specs, nodes = WorkerSpecs(worker_specs, ask_for, plan), [spec.address for spec in worker_specs]
        ownership = Ownership(specs)
        procs = ownership.current = ProcMesh(
            *(mesh, nodes, extent.region, self),
            ownership=ownership,
            owned=True,
            stream_logs=self.stream_logs,
            policy=policy,
        )
        ranks = {node.node: rank for rank, node in enumerate(nodes)}
        try:
            with hold_interrupts(f"the processes of {mesh} are stopped again"):
                specs.start(range(len(nodes)))
                if spare_start is not None:
                    ownership.spares = Spares(spares, spare_start)
                    self.keep_spares(worker_specs[::local], ownership.spares)
                own(
                    *(mesh, name or "procs", ranks, ownership.handle, specs.start_again),
                    are_processes=True,
                    policy=policy,
                )
                self._ownership.add(procs)
            return procs
        except BaseException as error:
            is_interrupt = isinstance(error, KeyboardInterrupt)
            why = "its spawn was interrupted" if is_interrupt else f"its spawn failed: {error!r}"
            with hold_interrupts():  # the caller gets no handle to stop them
                current_node().ledger.end(mesh, ranks)
                self.stop_procs(nodes, why)
            raise

    def keep_spares(self, firsts: Sequence[WorkerSpec], spares: Spares) -> None:
        """Keep spares on the hosts of these workers, which are the first ones there."""
        for first in firsts:
            like = msgspec.structs.replace(first, start=spares.start)
            _on_agent(first.world.agent).keep_spares.broadcast(like, spares.count)

    def _world(
        self,
        mesh: str,
        extent: Extent,
        agent: Address,
        bootstrap: Callable[[], Any] | None,
        env: Mapping[str, str] | None,
        *,
        is_warm: bool = True,
    ) -> MeshSpec:
        node = current_node()
        search_path = inherited_path()
        return MeshSpec(
            run=node.run,
            mesh=mesh,
            owner=node.address.node,
            controller=node.controller,
            agent=agent,
            agents=tuple(self._picked()),
            host_labels=self.extent.dims[0],
            labels=extent.dims[0],
            sizes=extent.dims[1],
            environment=inherited_environment(env, node.place),
            chosen_variables=dict(env or {}),
            directory=str(Path.cwd()),
            search_path=search_path,
            prefix=sys.prefix,
            installed=installed_path(search_path),
            settings=OVERRIDES.applied_to_mesh(node.settings),
            is_warm=is_warm,
            bootstrap=b"" if bootstrap is None else bytes(pickling.dumps(bootstrap, "bootstrap")[0]),
            python=self._python,
            is_fake_host=self._is_fake,
        )

    def _spec(
        self, world: MeshSpec, rank: int, local_rank: int, local_size: int, starts: Sequence[Start]
    ) -> WorkerSpec:
        name = f"{world.mesh}.{rank}"
        return WorkerSpec(
            address=Address(name, f"{host_of(world.agent)}{name}"),
            rank=rank,
            local_rank=local_rank,
            local_size=local_size,
            world=world,
            start=starts[rank],
        )

    @returns_future
    async def sync_workspace(
        self, workspace: Any, conda: bool = False, auto_reload: bool = False
    ) -> dict[str, list[str]]:
        """Copy folders to every host; return the files that were written or removed, by the name of the host.

        `workspace` is a folder, a list of folders, a dict (folder here -> folder there), or an object with such `dirs`.
        By default a folder has the same path there. Only files that differ are sent; files there that no sync has
        written stay. With `auto_reload`, the processes that this handle has spawned import changed modules again; an
        error of such an import is raised.

        Raises ValueError for a folder that does not exist, RuntimeError on a slice or a received reference, and
        NotImplementedError for `conda`: environments are not copied.
        """
        if not self._owned:
            raise RuntimeError("sync_workspace needs the hosts as they were started, not a slice or a reference")
        if conda:
            raise NotImplementedError(
                "sync_workspace does not copy conda environments; use a path that all hosts share"
            )
        folders = folders_of(workspace)
        changed: dict[str, list[str]] = {}
        for here, there in folders.items():
            ours = await asyncio.to_thread(read_digests, here)
            for name, agent in zip(self.names, self._agents, strict=True):
                files = changed.setdefault(name or "this host", [])
                target = cast(WorkspaceActor, _actor_on(agent, WORKSPACE, WorkspaceActor))
                theirs = await target.digests.call_one(there)
                files += await target.remove_others.call_one(there, list(ours))  # first: a file may become a folder
                for batch in batches_of(here, [file for file in ours if theirs.get(file) != ours[file]]):
                    files += await target.write.call_one(there, batch)
        if auto_reload:
            every = sorted({file for files in changed.values() for file in files})
            for procs in list(self._ownership.meshes.values()):
                actors = procs.spawn("workspace", ReloadActor)
                await actors.reload_modules.call(list(folders.values()), every)
                cast(ActorMesh, actors).stop("the modules are imported")
        return changed

    # -- the end -----------------------------------------------------------------

    def shutdown(self) -> Future[None]:
        """End the hosts: all processes on them, by any owner, then the agents.

        Resolves once everything has ended. Processes that do not exit within `Settings.stop_timeout` are killed.
        Afterwards `spawn_procs` raises RuntimeError, and so does the future of a second `shutdown`, unless the session
        has ended. Raises RuntimeError on a slice or a received reference.
        """
        self._check_owned()
        if (known := self._ownership.shutdown) is not None:
            return known if self._ownership.is_over else Future.failed(RuntimeError(monarch_texts.HOSTS_SHUT_DOWN))
        agents = self._ownership.agents  # also hosts that have joined
        with hold_interrupts("the hosts are being shut down"):
            self._ownership.shutdown = when_ended(current_node(), [agent.node for agent in agents])
            self._ownership.end_meshes(self._ownership.shutdown)
            for agent in agents:
                _on_agent(agent).shutdown.broadcast("its host was shut down")
        return self._ownership.shutdown

    def release(self, agents: Sequence[Address]) -> Future[None]:
        """End these of its hosts, unless a mesh that was spawned through these handles has processes there.

        All other processes there end too, and the hosts return to their launcher. Resolves when they have ended. Does
        nothing in an actor, since the client owns the hosts.
        """
        if current_node().place is not None:
            return Future.completed(None)
        unused = [agent for agent in agents if not self._ownership.uses(agent)]
        for agent in unused:
            self._ownership.drained.add(agent.node)
            current_node().casts.remove_agent(agent)  # later calls do not go through it
            _on_agent(agent).shutdown.broadcast("its host was drained", loop_stays=True)
        return when_ended(current_node(), [agent.node for agent in unused])

    def was_drained(self, agent: str) -> bool:
        """Whether the host of this agent, by the name of its node, was drained."""
        return agent in self._ownership.drained

    def stop(self) -> Future[None]:
        """Detach from the hosts: stop the processes that this handle, its slices and its copies have spawned here.

        The agents and the processes of other owners keep running. Resolves once the stopped processes have ended.
        Raises RuntimeError on a slice or a received reference.
        """
        self._check_owned()
        if self._ownership.shutdown is not None:
            return self._ownership.shutdown
        meshes = list(self._ownership.meshes.values())
        for mesh in meshes:
            mesh.stop("its host mesh was stopped")
        return when_ended(current_node(), [address.node for mesh in meshes for address in mesh.nodes])

    def adopt(self, procs: ProcMesh) -> None:
        """Add a mesh on these hosts, spawned by another process that this one has replaced as the owner."""
        self._ownership.add(procs)

    def note_end(self) -> None:
        """Record that the session and its hosts have ended: from now on nothing can be spawned here."""
        self._ownership.is_over = True
        if self._ownership.shutdown is None:
            self._ownership.shutdown = Future.completed(None)
            self._ownership.end_meshes(self._ownership.shutdown)

    def _check_owned(self) -> None:
        if not self._owned:
            raise RuntimeError(monarch_texts.HOSTS_NOT_OWNED)

    async def __aenter__(self) -> Self:
        self._check_owned()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.is_shut_down:
            await self.shutdown()

    # -- for the meshes on them ----------------------------------------------------

    def count_gpus(self) -> Future[int]:
        """Return the number of GPUs that every host has: the least of them."""
        return self._hosts().gpus.call().then(lambda counts: min(counts.values()))

    def count_spares(self, mesh: str) -> Future[int]:
        return self._hosts().spares.call(mesh).then(lambda counts: sum(counts.values()))

    def stop_procs(self, nodes: Sequence[Address], reason: str) -> Future[None]:
        names = [node.node for node in nodes]
        ended = when_ended(current_node(), names)
        # The agent asks the workers to exit, since it must know first that their end is expected. Earlier messages of
        # this process take another path and must arrive before that, so a fence follows them.
        fence = secrets.token_hex(4)
        # Each agent ignores names of other agents' workers.
        self._hosts_of(nodes).stop_procs.call(names, reason, fence)
        targets = [Target(node, PROCESS) for node in nodes]
        current_node().calls.send(targets, "fence", ((fence,), {}), SCALAR, None)
        return ended

    def signal_procs(self, nodes: Sequence[Address], number: int, sender: str) -> Future[None]:
        asked = self._hosts_of(nodes).kill.call([node.node for node in nodes], number, sender)
        return asked.then(lambda _: None)

    def _hosts_of(self, nodes: Sequence[Address]) -> ActorMesh:
        """Return the agents of these processes only: an agent of another host may be lost."""
        prefixes = {host_of(node) for node in nodes}
        targets = [Target(agent, HOST) for agent in self._agents if host_of(agent) in prefixes]
        return ActorMesh("hosts", HostActor, targets, Extent.of(hosts=len(targets)).region)

    def __repr__(self) -> str:
        return f"<HostMesh {dict(self.extent)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_for_program(run_of(self._agents), self._made())

    def _reduce_for_wire(self) -> tuple[Any, ...]:
        return reduce_for_message(run_of(self._agents), self._made())

    def _made(self) -> Made:
        made = functools.partial(HostMesh, python=self._python, is_fake_in_process=self._is_fake)
        return made, (self._agents, self._region)


def _on_agent(agent: Address) -> ActorMesh:
    return _actor_on(agent, HOST, HostActor)


def _actor_on(agent: Address, name: str, cls: type[Actor]) -> ActorMesh:
    return ActorMesh("hosts", cls, [Target(agent, name)], SCALAR.region)


def ask_for(agent: Address, specs: list[WorkerSpec]) -> Future[None]:
    """Ask the agent of a host to start these workers."""
    return _on_agent(agent).spawn_procs.call_one(specs)


def _check_kinds(per_host: object, bootstrap: object, name: object, spares: object) -> None:
    if per_host is not None and not isinstance(per_host, Mapping):
        raise TypeError(f"per_host must map names to sizes, such as {{'gpus': 4}}, not {per_host!r}")
    if bootstrap is not None and not callable(bootstrap):
        raise TypeError(f"bootstrap must be a function that each process calls, not {bootstrap!r}")
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name must be a string, such as 'trainers', not {name!r}")
    if not isinstance(spares, int) or isinstance(spares, bool):
        raise TypeError(f"spares must be a number of processes for each host, not {spares!r}")
    if spares < 0:
        raise ValueError(f"spares must be zero or more, not {spares}")


def _check_dims(dims: dict[str, int], hosts: Extent) -> dict[str, int]:
    for name, size in dims.items():
        if not isinstance(name, str):
            raise TypeError(f"per_host must map names to sizes, such as {{'gpus': 4}}; {name!r} is not a name")
        if name in hosts.labels:
            raise ValueError(f"per_host: {name!r} is already a dimension of the hosts, {dict(hosts)}")
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"per_host: {name!r} needs a size of at least 1, not {size!r}")
    return dims
