"""`ProcMesh`: the handle of worker processes, on which actors are spawned."""

from __future__ import annotations

import functools
import logging
import math
import signal
import warnings
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

from meshbook.runtime import monarch_texts
from meshbook.runtime.actor.base import Actor, check_arguments, check_class, constructor_takes
from meshbook.runtime.actor.failure import MeshFailure
from meshbook.runtime.actor.future import Future, check_timeout
from meshbook.runtime.errors import BootstrapFailed, LaunchError, ProcessDied
from meshbook.runtime.geometry import Extent, MeshTrait, Region
from meshbook.runtime.interrupts import hold_interrupts
from meshbook.runtime.mesh.actors import TAKEN, ActorMesh, current_node
from meshbook.runtime.mesh.handle_pickling import Made, reduce_for_message, reduce_for_program, run_of
from meshbook.runtime.mesh.healing import heal
from meshbook.runtime.mesh.mapping import Chunksize, MapResult, begin_map, check_chunksize
from meshbook.runtime.mesh.ownership import Afterwards, Ownership, own
from meshbook.runtime.mesh.policies import OnFailure, Respawning, Restarts, policy_of
from meshbook.runtime.mesh.process_actor import PROCESS, ask_transfers
from meshbook.runtime.mesh.process_groups import GroupRequest, abort
from meshbook.runtime.mesh.resizing import NewShape, Resize, check_sizes
from meshbook.runtime.mesh.resizing import plan as plan_resize
from meshbook.runtime.mesh.runners import ActorRunner, Runner
from meshbook.runtime.mesh.scheduling import Scheduler, name_of
from meshbook.runtime.mesh.spawned import Spawned
from meshbook.runtime.mesh.tensors import TensorMesh
from meshbook.runtime.node.call_table import AllReplies, PerRank, Target
from meshbook.runtime.node.ledger import OwnedMesh
from meshbook.runtime.node.outbound import plan
from meshbook.runtime.telemetry.output import LogOptions
from meshbook.runtime.telemetry.spans import is_recorded
from meshbook.runtime.telemetry.traffic import TransferTable
from meshbook.runtime.wire.messages import Address

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from meshbook.runtime.mesh.hosts import HostMesh

A = TypeVar("A", bound=Actor)
R = TypeVar("R")


def handle_failures(mesh: Any, handle: Callable[[MeshFailure], object]) -> None:
    """Call `handle` first for each failure of a mesh that was spawned here. A true result means that it is handled.

    `handle` must not wait.
    """
    for key in mesh._keys:
        if (owned_mesh := current_node().ledger.get(key)) is not None:
            owned_mesh.on_failure = handle


_OF_THE_RUNTIME = {
    *("ask_whether_ready", "current_ranks", "dismiss", "heal_ranks", "host_ranks", "is_stopped", "making_engines"),
    *("note_end", "note_tensor_engine", "rank_tensors", "spawn_on_main", "tensor_engines"),
}


class ProcMesh(TensorMesh, MeshTrait):
    """Worker processes with a shape; the last dimension is usually `gpus`. Created by `HostMesh.spawn_procs`."""

    def __init__(
        self,
        name: str,
        nodes: Sequence[Address],
        region: Region,
        hosts: HostMesh,
        *,
        ownership: Ownership | None = None,
        owned: bool = False,
        stream_logs: bool | None = None,
        policy: Respawning | None = None,
    ) -> None:
        self._name = name
        self._nodes = tuple(nodes)  # by rank of the mesh as it was spawned
        self._region = region
        self._hosts = hosts
        self._ownership = ownership or Ownership()
        self._owned = owned
        # Whether the output was to be forwarded at the spawn; None: as in this process.
        self._streams = stream_logs
        self._policy = policy  # for meshes that are spawned through this handle
        self._initialized: Future[bool] | None = None
        self._heals_before: int | None = None  # if a resize made this handle: the number of heals before it

    @property
    def name(self) -> str:
        return self._name

    @property
    def _keys(self) -> set[str]:
        """The keys of this mesh in its owner's ledger."""
        return {self._name}

    @property
    def region(self) -> Region:
        return self._region

    @property
    def host_mesh(self) -> HostMesh:
        """The hosts that these processes run on."""
        return self._hosts

    def sync_workspace(self, *args: Any, **kwargs: Any) -> Future[None]:
        """Raise NotImplementedError: hosts have files, and their processes share them."""
        raise NotImplementedError("copy the workspace to the hosts: procs.host_mesh.sync_workspace(...)")

    @property
    def nodes(self) -> tuple[Address, ...]:
        """The addresses of the processes of this mesh or slice, in rank order."""
        return tuple(self._nodes[rank] for rank in self._region.ranks())

    @property
    def _addresses(self) -> tuple[Address, ...]:
        """The addresses of its ranks, for a broadcast."""
        return self.nodes

    @property
    def host_ranks(self) -> tuple[int, ...]:
        """The index of the host of each process of this mesh or slice, in rank order."""
        per_host = len(self._nodes) // len(self._hosts)
        return tuple(rank // per_host for rank in self._region.ranks())

    @property
    def initialized(self) -> Future[bool]:
        """A future that resolves to True once all processes can take messages.

        It raises LaunchError if a process could not be started, BootstrapFailed (an ActorError) if its bootstrap
        raised, and otherwise SupervisionError with the exit report. A resize that failed raises its error until a heal.
        """
        known = self._initialized
        if known is None or (self._heals_before != self._ownership.heals and known.done() and known.exception()):
            known = self._initialized = self.ask_whether_ready()  # it may have been healed since
        return known

    def ask_whether_ready(self) -> Future[bool]:
        node = current_node()
        if set(self.nodes) == {node.address}:
            return Future.completed(True)  # a client's own process hosts no process actor to call
        reply_handler = AllReplies(self.extent.region, _explain_start)
        node.calls.send([Target(each, PROCESS) for each in self.nodes], "ready", ((), {}), self.extent, reply_handler)
        return reply_handler.future.then(lambda pids: True)

    def __await__(self) -> Generator[Any, None, Self]:
        """Wait until this mesh is initialized and return it; raises the same errors as `initialized`."""
        yield from self.initialized.__await__()
        return self

    def _with_region(self, region: Region) -> ProcMesh:
        return self._twin(self._nodes, region, owned=False, policy=self._policy)

    def _twin(self, nodes: Sequence[Address], region: Region, *, owned: bool, policy: Respawning | None) -> ProcMesh:
        """Return another handle of this mesh."""
        return ProcMesh(
            *(self._name, nodes, region, self._hosts),
            ownership=self._ownership,
            owned=owned,
            stream_logs=self._streams,
            policy=policy,
        )

    def with_policy(self, on_failure: OnFailure, restarts: Restarts | None = None) -> ProcMesh:
        """Return a handle of the same processes with a failure policy for the meshes that are spawned through it.

        `on_failure` is one of:

        - `"raise"`: the failure is passed to the owner's `__supervise__` or `unhandled_fault_hook`.
        - `"respawn"`: failed ranks are restarted automatically, as by `heal`: only the actor if its process lives,
          otherwise the process with all its actors.
        - a function: it is called with each MeshFailure and returns one of these words. It runs on a separate thread.

        The owner receives only failures that are not respawned: the policy is "raise", no code in this process owns the
        failed process, or the rank has been respawned as often as `restarts` allows (default `Restarts(most=3,
        within=60.0)`). Pending calls to a failed rank raise in any case; later calls reach the new one. `heal()` waits
        for a respawn that is under way.

        Raises ValueError for another word.
        """
        policy = policy_of(on_failure, restarts)
        return self._twin(self._nodes, self._region, owned=self._owned, policy=policy)

    def spawn(self, name: str, cls: type[A], *args: Any, **kwargs: Any) -> A:
        """Create an actor of `cls` on every process and return the actor mesh at once.

        The constructor runs remotely, before the first message. If it raises, calls on the mesh fail, and
        `mesh.initialized` raises the reason. The result is typed as `cls`: its endpoints are attributes. `on_failure=`
        and `restarts=` are those of `with_policy`, for these actors only; if the constructor has a parameter
        `on_failure`, it receives the argument instead.

        Raises ValueError for a class that cannot be spawned, TypeError for arguments that do not fit it, and
        RuntimeError for processes that have been stopped.
        """
        if not isinstance(name, str):
            raise TypeError(f"spawn(name, class, ...) takes a name first, such as 'trainers', not {name!r}")
        check_class(cls, TAKEN)
        if "on_failure" in kwargs and not constructor_takes(cls, "on_failure"):
            on_failure, restarts = kwargs.pop("on_failure"), kwargs.pop("restarts", None)
            return self.with_policy(on_failure, restarts).spawn(name, cls, *args, **kwargs)
        check_arguments(cls, args, kwargs)
        return cast("A", self._spawn(name, cls, args, kwargs, on_main=False))

    def _spawn(
        self, name: str, cls: type[Actor], args: tuple[Any, ...], kwargs: dict[str, Any], *, on_main: bool
    ) -> ActorMesh:
        if self._ownership.stopped is not None:
            raise RuntimeError(
                f"{monarch_texts.PROCS_STOPPED}: {self._name}; spawn another mesh with spawn_procs() of its hosts"
            )
        node = current_node()
        actor = node.supervision.name_actor(name)
        targets = [Target(address, actor, rank=rank) for rank, address in enumerate(self.nodes)]
        if not is_recorded(f"{cls.__module__}.{cls.__qualname__}"):
            node.recorder.quiet.add(actor)
        creation = plan(targets, (cls, args, kwargs), self.extent, on_main=on_main)
        reply_handler = AllReplies(self.extent.region)
        mesh = ActorMesh(name, cls, targets, self.extent.region, reply_handler.future.then(lambda _: None))
        ranks = {address.node: rank for rank, address in enumerate(self.nodes)}
        spawned = Spawned(node, name, cls, creation)
        try:
            with hold_interrupts(f"the actors {name!r} are stopped again"):
                own(actor, name, ranks, spawned.handle, spawned.recreate, policy=self._policy, spawned=spawned)
                node.calls.create(creation, range(len(targets)), reply_handler)
            return mesh
        except KeyboardInterrupt:
            mesh.stop("its spawn was interrupted")  # the caller gets no handle to stop it
            raise
        except BaseException:
            node.ledger.end(actor, ranks)
            raise

    def spawn_on_main(self, name: str, cls: type[A], *args: Any, **kwargs: Any) -> A:
        """Like `spawn`, for the one actor of each process on its main thread (the cell actor of notebooks)."""
        return cast("A", self._spawn(name, cls, args, kwargs, on_main=True))

    def map(
        self,
        function: Callable[..., R],
        /,
        *items: Iterable[Any],
        ordered: bool = True,
        chunksize: Chunksize = "auto",
        progress: bool = True,
    ) -> MapResult[R]:
        """Call `function` with each item, on the next free rank, and return a future for each call at once.

        With several iterables, each call takes one item of each, as in Python's `map`. Iterating over the result gives
        the values in the order of the items, or in order of completion with `ordered=False`. Each message carries
        `chunksize` items; "auto" chooses the number by the time that items take. Items that wait behind a slow one move
        to other ranks.

        An item that fails raises ItemError, and the others continue. Items of a rank that died are handed out again,
        and raise ItemLost after several deaths; no other item runs twice. The function is pickled once and sent once to
        each rank, where it runs on a separate thread. Notebooks show a progress bar, unless `progress=False`.

        Raises TypeError and ValueError for invalid arguments, PickleError if the function cannot be pickled, and
        RuntimeError for processes that have been stopped.
        """
        size = check_chunksize(chunksize)
        begin = functools.partial(begin_map, function, items, ordered=ordered)
        result: MapResult[R] = begin(lambda: Scheduler(self._make_runner(name_of(function)), name_of(function), size))
        if progress:
            current_node().on_map(result)
        return result

    def _make_runner(self, name: str) -> Runner:
        """Create the runner of a map's items on these processes."""
        return ActorRunner(self, name)

    def __dir__(self) -> list[str]:
        """Leave out what is for the runtime itself: completion would offer it."""
        return [name for name in super().__dir__() if name not in _OF_THE_RUNTIME]

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called for the whole mesh."""
        return self._ownership.stopped is not None

    def stop(self, reason: str = "stopped by client") -> Future[None]:
        """Stop the actors and the processes, and with them the meshes that the actors own.

        Resolves once all processes have ended. A process that does not exit within `Settings.stop_timeout` is killed.
        Stopping again is allowed. Raises ValueError on a slice or a received reference.
        """
        if not self._owned:
            raise ValueError(monarch_texts.PROCS_NOT_OWNED)
        with self._ownership.changing, hold_interrupts(f"{self._name} is being stopped"):
            if self._ownership.stopped is None:
                self._ownership.stopped = self._ownership.current._end(reason)
        return self._ownership.stopped

    def _end(self, reason: str) -> Future[None]:
        ledger, names = current_node().ledger, {address.node for address in self._nodes}
        ledger.end(self._name, names)
        stopped = self._hosts.stop_procs(self._nodes, reason)
        stopped.when_done(lambda: ledger.forget(names))  # actors in processes that had failed before
        return stopped

    def note_end(self, ended: Future[None]) -> None:
        """Record that this mesh ends with its hosts."""
        if self._ownership.stopped is None:
            self._ownership.stopped = ended

    def heal(self) -> Future[list[int]]:
        """Restart the dead processes of this mesh, and create their actors again.

        The actors are created with the arguments of the spawn. Then `__restore__()` is called, before any message, if
        the class defines it (`async def` if the endpoints are). Failed actors in living processes are created again as
        well. Healthy ranks are not touched and keep their state. All handles, slices and references reach the new
        processes and actors; failed calls are not repeated.

        Actors that other processes have spawned in a dead process are also created again, each by its owner; this call
        does not wait for them. Actors of other owners that failed in a living process are not. Stopped actors stay
        stopped.

        Resolves, once all constructors have run, to the healed ranks: an empty list if all were healthy. A second
        `heal` waits for the first.

        Raises if a rank cannot be healed or dies again; the heal can then be retried. LaunchError: a process does not
        start. SupervisionError: a constructor or a `__restore__` fails. RuntimeError: the mesh was stopped. ValueError:
        this is a slice or a received reference.
        """
        return self.heal_ranks()

    def heal_ranks(self, only: Collection[int] | None = None) -> Future[list[int]]:
        with self._ownership.changing, hold_interrupts(f"the heal of {self._name} continues"):
            current, owned_mesh = self._to_change("healed")
            self._ownership.heals += 1
            healed = heal(current_node(), owned_mesh, current._nodes, _ask_ready, current._follow_up, only=only)
            current._hosts.adopt(current)
        return healed

    def _to_change(self, what: str) -> tuple[ProcMesh, OwnedMesh]:
        """Return the current handle and ledger entry. RuntimeError, ValueError: it cannot be changed from here."""
        if not self._owned:
            raise ValueError(f"ProcMesh is not owned; must be {what} by an owner")
        if self._hosts.is_shut_down:
            raise RuntimeError(monarch_texts.HOSTS_SHUT_DOWN)
        owned_mesh = current_node().ledger.get(self._name)
        if owned_mesh is None or self._ownership.stopped is not None:
            raise RuntimeError(monarch_texts.PROCS_STOPPED)
        return self._ownership.current, owned_mesh

    def resize(self, **sizes: int) -> ProcMesh:
        """Change the sizes of this mesh and return a new handle at once: `procs = procs.resize(gpus=6)`.

        Coordinates identify a rank: ranks that are in the mesh before and after keep their processes, actors and state.
        New ranks get processes started as the first ones were (from spares if there are any), and the actors that were
        spawned from this process on the whole mesh. These are created with the arguments of the spawn, without
        `__restore__`. Removed ranks are stopped, with cleanup. Dead ranks are not healed, but may be removed.
        Dimensions of the hosts do not change here, but by `drain` and `join`.

        Handles are immutable. Other handles of this mesh still reach the processes that they were made for, and calls
        to removed ones raise SupervisionError. `stop` and `heal` act on the mesh as it is now, through any handle.
        `all_of` returns the new handle of an actor mesh. In the remaining processes, RANK, WORLD_SIZE and related
        variables are updated unless they were changed; so is `context().actor_instance.rank` of actors on the whole
        mesh. `current_rank()` still refers to the handle that was called. Actors on a slice stay on what is left of the
        slice.

        The new handle's `initialized` resolves when new processes and actors are up, removed ones have ended, and the
        callbacks of `after_heal` are done. Raises ValueError for invalid sizes, on a slice and on a received reference;
        RuntimeError once the mesh was stopped.
        """
        with self._ownership.changing, hold_interrupts(f"the resize of {self._name} continues"):
            current, owned_mesh = self._to_change("resized")
            after = check_sizes(current.extent, current._hosts.extent, sizes)
            if current.extent == after or self._ownership.specs is None:
                return current
            return current._change(owned_mesh, NewShape(after, plan_resize(current.extent, after), current._hosts))

    def drain(self, *hosts: str) -> ProcMesh:
        """Remove these hosts, by their names, and return a new handle at once: `procs = procs.drain("gpu2")`.

        Their ranks are stopped, with cleanup, as in a `resize`; what they run has `Settings.stop_timeout` to end. The
        other ranks keep their processes, actors and state, and get new numbers without a gap. Then the host's agent
        ends, with all other processes there, and the host returns to its launcher. A host on which another mesh has
        processes stays until that mesh is drained too. A lost host can be drained, so that the others go on without it.

        The new handle's `initialized` resolves when the hosts have ended. Raises ValueError for an unknown host, and if
        none would stay; else as `resize`.
        """
        with self._ownership.changing, hold_interrupts(f"the drain of {self._name} continues"):
            current, owned_mesh = self._to_change("drained")
            before = current._hosts
            rest = before.without(hosts)
            if len(rest) == len(before):
                return current
            gone = [agent for agent in before.agents if agent not in rest.agents]
            names = before.names
            stays: list[int | None] = [rank for rank, host in enumerate(current.host_ranks) if names[host] not in hosts]
            shape = NewShape(current._extent_on(rest), stays, rest)
            return current._change(owned_mesh, shape, lambda: [before.release(gone)])

    def join(self, hosts: HostMesh) -> ProcMesh:
        """Add hosts to this mesh and return a new handle at once: `procs = procs.join(meshbook.hosts.ssh(["gpu9"]))`.

        Each gets as many ranks as the others have. They follow after the present ranks, and start as those of a
        `resize` do; the present ones keep their state. The hosts end with those of this mesh. They keep as many spares
        as the others, unless this process has attached to the run.

        Raises ValueError for hosts that are in the mesh already, RuntimeError for hosts that are a reference or have
        been shut down; else as `resize`.
        """
        with self._ownership.changing, hold_interrupts(f"the hosts join {self._name}"):
            current, owned_mesh = self._to_change("joined")
            present = current._hosts
            more = present.joined(hosts)
            extent = current._extent_on(more)
            was, per_host = current.size(), current.size() // len(present)
            stays = [*range(was), *[None] * (extent.nelements - was)]
            joined = current._change(owned_mesh, NewShape(extent, stays, more))
            present.take_over(hosts)
            specs, spares = self._ownership.specs, self._ownership.spares
            if specs is not None and spares is not None:
                more.keep_spares(specs.all[was::per_host], spares)
            return joined

    def _extent_on(self, hosts: HostMesh) -> Extent:
        sizes = dict(self.extent) | dict(hosts.extent)
        return Extent(tuple(sizes), tuple(sizes.values()))

    def _change(
        self, owned_mesh: OwnedMesh, shape: NewShape, at_end: Callable[[], list[Future[Any]]] = list
    ) -> ProcMesh:
        """Give the mesh, whose current handle this is, another shape; `at_end` starts the last steps."""
        node, specs, before = current_node(), self._ownership.specs, self.extent
        if specs is None:
            raise ValueError("this mesh was not spawned from this process")
        # On the I/O thread, which records the end of a process completely before it runs this.
        change = node.loop.run(lambda: Resize(node, self._name, specs, before, shape))
        resized = self._twin(change.nodes, shape.extent.region, owned=True, policy=self._policy)
        resized._hosts = shape.hosts
        self._ownership.current = resized
        # First: a host is released at the end if the newest handle has no processes there.
        resized._hosts.adopt(resized)

        def follow_up(ranks: list[int]) -> list[Future[Any]]:
            return [*resized._follow_up(ranks, restarted=(), was=before.nelements), *at_end()]

        done = change.begin(self._hosts, _ask_ready, follow_up)
        resized._initialized, resized._heals_before = done.then(lambda ranks: True), self._ownership.heals
        text = f"from {dict(before)} to {dict(shape.extent)}"
        node.send_event("resized", owned_mesh.name, owned_mesh.procs, change.new, text)
        return resized

    def all_of(self, actors: A) -> A:
        """Return a handle of the same actors on all their current processes, including new ones after a `resize`.

        Raises ValueError if the actors were not spawned from this process, or have been stopped.
        """
        owned_mesh = current_node().ledger.get(next(iter(cast("Any", actors)._keys)))
        if owned_mesh is None:
            raise ValueError(f"{actors!r} were not spawned from this process, or have been stopped")
        return cast("A", owned_mesh.handle())

    @property
    def actors(self) -> dict[str, Any]:
        """The actor meshes that this process has spawned on this mesh or a slice, by name; the newest of equal names.

        Includes those spawned by another process whose run this process has attached to. Stopped ones are not included.
        """
        own = {address.node for address in self._nodes}
        owned_meshes = [
            owned_mesh for owned_mesh in current_node().ledger.actors() if not own.isdisjoint(owned_mesh.ranks)
        ]
        return {owned_mesh.name: owned_mesh.handle() for owned_mesh in owned_meshes}

    def after_heal(self, begin: Afterwards) -> None:
        """Call `begin(mesh, ranks)` after each heal, with the healed ranks, and after each resize, with the new ranks.

        It runs in the process that owns this mesh, once the processes are up and their actors constructed. After a
        resize the ranks may be empty. `begin` returns a future or None. The heal, or the new handle's `initialized`,
        waits for that future and fails if it fails. `begin` runs on a receiving thread, so it must not wait.
        """
        self._ownership.afterwards.append(begin)

    def _follow_up(self, ranks: list[int], restarted: Collection[int], was: int | None = None) -> list[Future[Any]]:
        """Start the steps after a heal or a resize. `restarted`: ranks with new processes; `was`: the size before."""
        begun = [begin(self, ranks) for begin in self._ownership.afterwards]
        if restarted or was is not None:
            begun += self._ownership.groups.make_again(self, restarted, was or self.size())
        return [future for future in begun if future is not None]

    def init_process_group(self, backend: str | None = None, timeout: float | timedelta | None = None) -> Future[None]:
        """Create torch.distributed's default process group from the ranks of this mesh or slice.

        The group is created from the caller's process: no rank calls `dist.init_process_group`, and the ranks' threads
        may be busy. Calling it again creates a new group. Ranks leave the group they are in: it is aborted, and
        operations that wait in it fail. Groups made of some of its ranks (`dist.new_group`, a DeviceMesh) and
        DistributedDataParallel models over it must be created again.

        `heal()` recreates a group in which a process had died, and `resize()` recreates a group of all ranks. A group
        of a slice that lost a rank in a resize is gone. Code that runs on a rank meanwhile, outside a collective, has
        its next collective in the new group. Therefore wait until all calls that lost a rank have ended, then heal.

        `backend` is torch's: "gloo", "nccl" or "cpu:gloo,cuda:nccl". The default is the last one if each rank has its
        own GPU, and otherwise gloo. `timeout`, in seconds or as a timedelta, limits each collective.

        Resolves to None once all ranks have joined. Raises GroupError, which names the rank that did not join; the
        other ranks are freed and are then in no group. Raises ValueError on a received reference, RuntimeError once the
        mesh was stopped.
        """
        self._check_groups()
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        check_timeout(seconds)
        current = self._ownership.current
        is_whole, started = set(self.nodes) == set(current.nodes), current._initialized
        is_up = started is not None and started.done() and started.exception() is None
        return self._ownership.groups.make(GroupRequest(self, backend, seconds, is_whole, is_up))

    @property
    def process_group_generation(self) -> int:
        """The number of process groups that `init_process_group` and `heal` have made on this mesh and its slices."""
        return self._ownership.groups.generation

    def abort_process_groups(self) -> Future[dict[int, tuple[str, ...]]]:
        """Free the ranks of this mesh or slice that are stuck in torch.distributed, and abort their groups.

        Operations that wait in a collective, or for a missing rank, fail with torch's error. Afterwards torch reports
        that the default group has not been initialized. `init_process_group` creates a new one, from here or on all
        ranks: all ranks of the mesh get a new MASTER_PORT. Resolves to descriptions of the aborted groups, by rank.
        Ranks that are dead or do not answer within 15 s are left out. Raises ValueError on a received reference.
        """
        self._check_groups()
        return abort(self, self._ownership.current)

    def _check_groups(self) -> None:
        if self._ownership.stopped is not None:
            raise RuntimeError(monarch_texts.PROCS_STOPPED)
        if current_node().ledger.get(self._name) is None:
            raise ValueError("ProcMesh is not owned; only its owner can create and abort its process groups")

    def spares(self) -> Future[int]:
        """Return the number of warm spare processes on all hosts of this mesh, ready to replace one that dies."""
        return self._hosts.count_spares(self._name)

    def transfers(self) -> Future[TransferTable]:
        """Return the bytes moved between memories of processes by `RDMABuffer` and everything built on it.

        Resolves to a list of `TransferRecord` rows, which pandas and polars accept. There is a row for each process of
        this mesh or slice, owner, transfer backend and direction, and for the transfers of this process from or to
        theirs. A transfer is counted when it is complete, by the process that requested it; a healed process starts
        from zero. Ranks that are dead, or do not answer within 5 s, are listed in `silent`. Raises RuntimeError once
        the mesh was stopped.
        """
        if self._ownership.stopped is not None:
            raise RuntimeError(monarch_texts.PROCS_STOPPED)
        return ask_transfers(self)

    def dismiss(self, reason: str) -> Future[None]:
        """Stop the processes of this mesh or slice ahead of the others, as `stop` does for all of them."""
        return self._hosts.stop_procs(self.nodes, reason)

    async def logging_option(
        self,
        stream_to_client: bool = False,
        aggregate_window_sec: float | None = None,
        level: int = logging.INFO,
    ) -> None:
        """Set how the output and log records of this mesh or slice are handled from now on, outside cells.

        - `stream_to_client`: whether the client shows the output. A script shows it in any case, unless
          MESHBOOK_SHOW_OUTPUT is 0.
        - `aggregate_window_sec`: lines that differ only in their numbers and arrive within this many seconds are shown
          once, with their count and ranks.
        - `level`: the level of the root logger, 0 to 255, from which on Python's logging is printed.

        `%%mesh` cells always show their output. Raises ValueError for an invalid level or window. Warns if the client
        forwards nothing (MESHBOOK_ENABLE_LOG_FORWARDING; in notebooks it does).
        """
        _check_logging(stream_to_client, aggregate_window_sec, level)
        node, everyone = current_node(), AllReplies(self.extent.region)
        streams = node.settings.enable_log_forwarding if self._streams is None else self._streams
        if stream_to_client and not streams:
            text = "stream_to_client=True has no effect: MESHBOOK_ENABLE_LOG_FORWARDING was off at the spawn"
            warnings.warn(text, UserWarning, stacklevel=2)
        if node.place is None and set(self.nodes) == {node.address}:  # a client's own process prints directly
            logging.getLogger().setLevel(level)
            return
        options = LogOptions(stream_to_client and streams, aggregate_window_sec)
        targets = [Target(each, PROCESS) for each in self.nodes]
        node.calls.send(targets, "set_logging", ((level, options), {}), self.extent, everyone)
        await everyone.future

    def kill(self, number: int = signal.SIGKILL, *, sender: str = "") -> Future[None]:
        """Send a signal to the processes of this mesh or slice, and to their child processes.

        If a `sender` is given, calls that wait for a killed process report that the sender ended it.
        """
        return self._hosts.signal_procs(self.nodes, number, sender)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def to_table(self) -> str:
        """Return a text table of the ranks: number, coordinates and process."""
        extent = self.extent
        points = [extent.point(rank) for rank in range(len(self))]
        rows = [["rank", *extent.labels, "process"]]
        rows += [
            [str(point.rank), *map(str, point.coordinates), node.node]
            for point, node in zip(points, self.nodes, strict=True)
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<ProcMesh {self._name} {dict(self.extent)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_for_program(run_of(self._nodes), self._made())

    def _reduce_for_wire(self) -> tuple[Any, ...]:
        return reduce_for_message(run_of(self._nodes), self._made())

    def _made(self) -> Made:
        made = functools.partial(ProcMesh, stream_logs=self._streams)
        return made, (self._name, self._nodes, self._region, self._hosts)


def _check_logging(stream: bool, window: float | None, level: int) -> None:
    if not 0 <= level <= 255:
        raise ValueError(f"Invalid logging level {level}: it must be 0 to 255")
    if window is not None and not (math.isfinite(window) and window > 0):
        raise ValueError(f"aggregate_window_sec must be a positive number of seconds, not {window!r}")
    if window is not None and not stream:
        raise ValueError("aggregate_window_sec requires stream_to_client=True")


def _ask_ready(nodes: Sequence[Address]) -> Sequence[Future[Any]]:
    """Ask these processes whether they can take messages; one future each."""
    targets, reply_handler = [Target(each, PROCESS) for each in nodes], PerRank(len(nodes), _explain_start)
    current_node().calls.send(targets, "ready", ((), {}), Extent.of(ranks=len(nodes)), reply_handler)
    return reply_handler.futures


def _explain_start(error: BaseException) -> BaseException:
    if isinstance(error, ProcessDied) and error.report.raised:
        return BootstrapFailed(str(error), error.report)
    never_started = isinstance(error, ProcessDied) and not error.report.pid
    return LaunchError(str(error)) if never_started else error
