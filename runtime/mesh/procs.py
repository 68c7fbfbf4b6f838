"""`ProcMesh`: the handle of worker processes; actors are spawned on it."""

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
from meshbook.runtime.mesh.actors import TAKEN, ActorMesh, current_node
from meshbook.runtime.mesh.groups import GroupRequest, abort
from meshbook.runtime.mesh.handle_pickling import Made, reduce_for_message, reduce_for_program, run_of
from meshbook.runtime.mesh.healing import heal
from meshbook.runtime.mesh.mapping import Chunksize, MapResult, begin_map, check_chunksize
from meshbook.runtime.mesh.ownership import Afterwards, Ownership, own
from meshbook.runtime.mesh.policies import OnFailure, Respawning, Restarts, policy_of
from meshbook.runtime.mesh.process_actor import PROCESS
from meshbook.runtime.mesh.resizing import Resize, check_sizes
from meshbook.runtime.mesh.runners import ActorRunner, Runner
from meshbook.runtime.mesh.scheduling import Scheduler, name_of
from meshbook.runtime.mesh.spawned import Spawned
from meshbook.runtime.mesh.traffic import ask_transfers
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


def heed_failures(mesh: Any, handle: Callable[[MeshFailure], object]) -> None:
    """Let `handle` hear first of what fails in a mesh that was spawned here; a true answer means that it is handled.

    It must not wait.
    """
    for key in mesh._keys:
        if (owned_mesh := current_node().ledger.get(key)) is not None:
            owned_mesh.on_failure = handle


class ProcMesh(MeshTrait):
    """Worker processes with a shape; the last dimension is usually `gpus`. Made by `HostMesh.spawn_procs`."""

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
        self._streams = stream_logs  # whether its output was to be forwarded at the spawn; None: as this process's is
        self._policy = policy  # for what is spawned by this handle
        self._initialized: Future[bool] | None = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def _keys(self) -> set[str]:
        """Under what the ledger of its owner has it."""
        return {self._name}

    @property
    def region(self) -> Region:
        return self._region

    @property
    def host_mesh(self) -> HostMesh:
        """The hosts that these processes run on."""
        return self._hosts

    @property
    def nodes(self) -> tuple[Address, ...]:
        """The addresses of the processes of this mesh or slice, in rank order."""
        return tuple(self._nodes[rank] for rank in self._region.ranks())

    @property
    def _addresses(self) -> tuple[Address, ...]:
        """Where its ranks are, for a broadcast."""
        return self.nodes

    @property
    def host_ranks(self) -> tuple[int, ...]:
        """For each process of this mesh or slice, in rank order: which of the hosts it runs on."""
        per_host = len(self._nodes) // len(self._hosts)
        return tuple(rank // per_host for rank in self._region.ranks())

    @property
    def initialized(self) -> Future[bool]:
        """Resolves to True once every process takes messages.

        Raises LaunchError where one could not be started, BootstrapFailed (an ActorError) where its bootstrap raised,
        and else SupervisionError, with how it ended.
        """
        known = self._initialized
        if known is None or (known.done() and known.exception() is not None):  # it may have been healed since
            known = self._initialized = self._ask_whether_ready()
        return known

    def _ask_whether_ready(self) -> Future[bool]:
        node = current_node()
        if set(self.nodes) == {node.address}:
            return Future.completed(True)  # a client hosts no actor that could say so
        reply_handler = AllReplies(self.extent.region, _explain_start)
        node.calls.send([Target(each, PROCESS) for each in self.nodes], "ready", ((), {}), self.extent, reply_handler)
        return reply_handler.future.then(lambda pids: True)

    def __await__(self) -> Generator[Any, None, Self]:
        """This mesh, once it is initialized; raises what `initialized` raises."""
        yield from self.initialized.__await__()
        return self

    def _with_region(self, region: Region) -> ProcMesh:
        return self._twin(self._nodes, region, owned=False, policy=self._policy)

    def _twin(self, nodes: Sequence[Address], region: Region, *, owned: bool, policy: Respawning | None) -> ProcMesh:
        """Another handle of this mesh."""
        return ProcMesh(
            *(self._name, nodes, region, self._hosts),
            ownership=self._ownership,
            owned=owned,
            stream_logs=self._streams,
            policy=policy,
        )

    def with_policy(self, on_failure: OnFailure, restarts: Restarts | None = None) -> ProcMesh:
        """The same processes; what is spawned by the handle that this returns is treated like this when it fails.

        `"raise"`: its owner is told, by `__supervise__` or `unhandled_fault_hook`. `"respawn"`: ranks that fail come
        back by themselves, as by `heal`: the actor alone where its process lives, else the process with all its actors.
        A function is asked each time, with the MeshFailure, and answers with one of these words; it runs on a thread of
        its own. The owner only hears of what is not respawned: the answer is "raise", or nobody here owns the process,
        or a rank was respawned as often as `restarts` allows (`Restarts(most=3, within=60.0)`). Calls to a rank that
        fails raise in any case; the next ones reach the new one. `heal()` waits for a respawn that is under way.
        Raises ValueError for another word.
        """
        policy = policy_of(on_failure, restarts)
        return self._twin(self._nodes, self._region, owned=self._owned, policy=policy)

    def spawn(self, name: str, cls: type[A], *args: Any, **kwargs: Any) -> A:
        """Create an actor of `cls` on every process and return the actor mesh at once.

        The constructor runs remotely, before the first message; if it raises, calls on the mesh fail, and
        `mesh.initialized` tells why. The result is typed as `cls`: its endpoints are attributes. `on_failure=` and
        `restarts=` are those of `with_policy`, for these actors alone; a constructor that takes `on_failure` gets it.
        Raises ValueError for a class that cannot be spawned, TypeError for arguments that do not fit it, RuntimeError
        on processes that have been stopped.
        """
        if not isinstance(name, str):
            raise TypeError(f"spawn(name, class, ...) begins with a name, as 'trainers', not with {name!r}")
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
                f"{monarch_texts.PROCS_STOPPED}: {self._name}; spawn_procs() of its hosts makes another one"
            )
        node = current_node()
        actor = node.supervision.name_actor(name)
        targets = [Target(address, actor) for address in self.nodes]
        if not is_recorded(f"{cls.__module__}.{cls.__qualname__}"):
            node.recorder.quiet.add(actor)
        creation = plan(targets, (cls, args, kwargs), self.extent, on_main=on_main)
        reply_handler = AllReplies(self.extent.region)
        mesh = ActorMesh(name, cls, targets, self.extent.region, reply_handler.future.then(lambda _: None))
        ranks = {address.node: rank for rank, address in enumerate(self.nodes)}
        spawned = Spawned(node, name, cls, creation)
        own(actor, name, ranks, spawned.handle, spawned.again, policy=self._policy, spawned=spawned)
        try:
            node.calls.create(creation, range(len(targets)), reply_handler)
        except BaseException:
            node.ledger.end(actor, ranks)
            raise
        return mesh

    def spawn_on_main(self, name: str, cls: type[A], *args: Any, **kwargs: Any) -> A:
        """Like `spawn`, for the one actor of each process that runs on its main thread (notebook cells do)."""
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
        """Call `function` with each item, on whichever rank is free, and return a future for each at once.

        Of several iterables it takes an item each, as Python's own `map`. The result is iterated in the order of the
        items, or as they are done with `ordered=False`. `chunksize` items travel in one message; "auto" chooses that by
        the time they take. What waits behind a slow item goes to other ranks.

        An item that fails raises ItemError, and the others go on. Items of a rank that died are handed out again, and
        raise ItemLost after some deaths; no other item is done twice. The function is pickled once, and sent once to
        each rank; it runs on a thread of its own. In a notebook a bar shows the progress, unless `progress=False`.
        Raises TypeError and ValueError for arguments that cannot be, PickleError for the function, RuntimeError on
        processes that have been stopped.
        """
        size = check_chunksize(chunksize)
        begin = functools.partial(begin_map, function, items, ordered=ordered)
        result: MapResult[R] = begin(lambda: Scheduler(self._make_runner(name_of(function)), name_of(function), size))
        if progress:
            current_node().on_map(result)
        return result

    def _make_runner(self, name: str) -> Runner:
        """What runs the items of a map on these processes."""
        return ActorRunner(self, name)

    def stop(self, reason: str = "stopped by client") -> Future[None]:
        """Stop the actors and the processes, and with them the meshes that they own.

        Resolves once every process has ended; who does not leave within `Settings.stop_timeout` is killed. Stopping
        again is no error. ValueError on a slice or a received reference.
        """
        if not self._owned:
            raise ValueError(monarch_texts.PROCS_NOT_OWNED)
        with self._ownership.changing:
            if self._ownership.stopped is None:
                self._ownership.stopped = self._ownership.current._end(reason)
        return self._ownership.stopped

    def _end(self, reason: str) -> Future[None]:
        ledger, names = current_node().ledger, {address.node for address in self._nodes}
        ledger.end(self._name, names)
        stopped = self._hosts._stop_procs(self._nodes, reason)
        stopped.when_done(lambda: ledger.forget(names))  # actors in those that had failed before
        return stopped

    def note_end(self, ended: Future[None]) -> None:
        """Its hosts are being stopped, and so it is."""
        if self._ownership.stopped is None:
            self._ownership.stopped = ended

    def heal(self) -> Future[list[int]]:
        """Start the processes of this mesh again that have died, and create their actors again.

        The actors are made with the arguments of the spawn; then `__restore__()` is called, before any message, where
        the class defines it (`async def` where the endpoints are). Actors that failed while their process lives are
        created again as well. What is well is not touched, and keeps its state. Handles, slices and references reach
        the new ones, wherever they are; a call that failed is not made again.

        Actors that other processes than this one have spawned in a process that died come back, too: each by its owner,
        which this does not wait for. Those of others that failed in a living process do not. What was stopped stays so.

        Resolves, once all are constructed, to the ranks that were healed: none where all are well. Raises where a rank
        cannot be healed, or dies again, and it may be healed another time: LaunchError where a process does not start,
        SupervisionError for a constructor or a `__restore__` that fails. A second `heal` waits for the first.
        RuntimeError once the mesh was stopped; ValueError on a slice or a received reference.
        """
        return self._heal()

    def _heal(self, only: Collection[int] | None = None) -> Future[list[int]]:
        with self._ownership.changing:
            current, owned_mesh = self._to_change("healed")
            healed = heal(current_node(), owned_mesh, current._nodes, _ask_ready, current._follow_up, only=only)
            self._hosts._ownership.add(current)
        return healed

    def _to_change(self, what: str) -> tuple[ProcMesh, OwnedMesh]:
        """This mesh as it is now; RuntimeError or ValueError where it cannot be changed from here."""
        if not self._owned:
            raise ValueError(f"ProcMesh is not owned; must be {what} by an owner")
        if self._hosts.is_shut_down:
            raise RuntimeError(monarch_texts.HOSTS_SHUT_DOWN)
        owned_mesh = current_node().ledger.get(self._name)
        if owned_mesh is None or self._ownership.stopped is not None:
            raise RuntimeError(monarch_texts.PROCS_STOPPED)
        return self._ownership.current, owned_mesh

    def resize(self, **sizes: int) -> ProcMesh:
        """Let this mesh have other sizes, as `procs = procs.resize(gpus=6)`, and return a handle of it at once.

        A rank is its coordinates: those that are in the mesh before and after keep their processes, actors and state.
        Those that are new get processes as the first ones did (from spares where there are any), and the actors that
        were spawned from this process on the whole mesh: made with the arguments of the spawn, and not restored. Those
        that are gone are stopped, with cleanup. Dead ranks are not healed, but may be removed. Dimensions of the hosts
        do not change.

        Handles are immutable. Others of this mesh go on reaching the processes that they are of, and calls to removed
        ones raise SupervisionError; `stop` and `heal` are of the mesh as it is now, by whichever handle. `all_of` gives
        the new handle of an actor mesh. In the processes that stay, RANK, WORLD_SIZE and their like are set anew unless
        they were changed, and so is `context().actor_instance.rank` of the actors that are on the whole mesh;
        `current_rank()` is of the handle that was called, as ever. Actors on a slice stay on what is left of it.

        The new handle's `initialized` resolves when new processes and actors are up, removed ones have ended, and what
        follows is over (`after_heal`). ValueError for sizes that cannot be, on a slice and on a received reference;
        RuntimeError once the mesh was stopped.
        """
        with self._ownership.changing:
            current, owned_mesh = self._to_change("resized")
            before, after = current.extent, check_sizes(current.extent, self._hosts.extent, sizes)
            specs = self._ownership.specs
            if before == after or specs is None:
                return current
            node = current_node()
            # On the I/O thread, which notes the end of a process completely before it does this.
            change = node.loop.run(lambda: Resize(node, self._name, specs, before, after))
            resized = current._twin(change.nodes, after.region, owned=True, policy=current._policy)
            self._ownership.current = resized
            follow_up = functools.partial(resized._follow_up, reborn=(), was=before.nelements)
            done = change.begin(self._hosts, _ask_ready, follow_up)
            resized._initialized = done.then(lambda ranks: True)
            self._hosts._ownership.add(resized)
        text = f"from {dict(before)} to {dict(after)}"
        current_node().send_event("resized", owned_mesh.name, owned_mesh.procs, change.new, text)
        return resized

    def all_of(self, actors: A) -> A:
        """The handle of the same actors on all of their processes as these are now: after a `resize`, on the new ones.

        ValueError where they were not spawned from this process, or have been stopped.
        """
        owned_mesh = current_node().ledger.get(next(iter(cast("Any", actors)._keys)))
        if owned_mesh is None:
            raise ValueError(f"{actors!r} were not spawned from here, or have been stopped")
        return cast("A", owned_mesh.handle())

    @property
    def actors(self) -> dict[str, Any]:
        """The actor meshes that were spawned from this process on this mesh or a slice, by name; the newest of several.

        Also those that another process has spawned, whose run this one has attached to. What was stopped is not there.
        """
        own = {address.node for address in self._nodes}
        owned_meshes = [
            owned_mesh for owned_mesh in current_node().ledger.actors() if not own.isdisjoint(owned_mesh.ranks)
        ]
        return {owned_mesh.name: owned_mesh.handle() for owned_mesh in owned_meshes}

    def after_heal(self, begin: Afterwards) -> None:
        """Let `begin(mesh, ranks)` be called after each heal, with the ranks that were healed, and after each resize.

        It is called where this mesh is owned, once their processes are up and their actors constructed. After a resize
        the ranks are the new ones, and may be none. What it returns, a future or None, is waited for by the heal or by
        the new handle's `initialized`, which fail where that does. It runs on a receiving thread, so it begins things
        and does not wait for them.
        """
        self._ownership.afterwards.append(begin)

    def _follow_up(self, ranks: list[int], reborn: Collection[int], was: int | None = None) -> list[Future[Any]]:
        """What comes after a heal or a resize. `reborn`: whose processes are new; `was`: the size before."""
        begun = [begin(self, ranks) for begin in self._ownership.afterwards]
        if reborn or was is not None:
            begun += self._ownership.groups.make_again(self, reborn, was or self.size())
        return [future for future in begun if future is not None]

    def init_process_group(self, backend: str | None = None, timeout: float | timedelta | None = None) -> Future[int]:
        """Make torch.distributed's default process group of the ranks of this mesh or slice.

        From here, so no rank calls `dist.init_process_group`, and whatever its threads do. Calling it again makes a new
        one. Ranks that are in a group leave it: it is aborted, what waits in it fails, and groups made of some
        of its ranks (`dist.new_group`, a DeviceMesh) and DistributedDataParallel models over it have to be made anew.
        `heal()` makes a new group by itself where a process of this one had died, and `resize()` where it was of all
        ranks; a group of a slice that lost a rank by that is over. What runs on a rank just then, and is in no
        collective, has its next one in the new group: wait until all calls that have lost a rank have ended, then heal.

        `backend` is torch's: "gloo", "nccl", "cpu:gloo,cuda:nccl"; if it is not given, the last where each rank has a
        GPU of its own, and else gloo. `timeout`, in seconds or as a timedelta, is how long a collective may take.
        Resolves, once all ranks have joined, to the generation of the group (`process_group_generation`). Raises
        GroupError, which names the rank that did not come; the others are freed, and in no group then.
        ValueError on a received reference, RuntimeError once the mesh was stopped.
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
        """How many process groups `init_process_group` and `heal` have made on this mesh and its slices."""
        return self._ownership.groups.generation

    def abort_process_groups(self) -> Future[dict[int, tuple[str, ...]]]:
        """Free the ranks of this mesh or slice that are stuck in torch.distributed, and take their groups apart.

        What waits in a collective, or for a rank that does not come, fails with torch's error; then torch says that the
        default group has not been initialized. `init_process_group` makes one again, from here or on all ranks: all of
        the mesh are given a MASTER_PORT that is new. Resolves to what was aborted, by rank, in words; ranks that are
        dead or do not answer within 15 s are not among them. ValueError on a received reference.
        """
        self._check_groups()
        return abort(self, self._ownership.current)

    def _check_groups(self) -> None:
        if self._ownership.stopped is not None:
            raise RuntimeError(monarch_texts.PROCS_STOPPED)
        if current_node().ledger.get(self._name) is None:
            raise ValueError("ProcMesh is not owned; its process groups are made and aborted by its owner")

    def spares(self) -> Future[int]:
        """How many processes wait to take the place of one that dies: warm ones, on all hosts of this mesh."""
        return self._hosts._count_spares(self._name)

    def transfers(self) -> Future[TransferTable]:
        """Who has moved how many bytes from and to whose memory: what `RDMABuffer` and all that uses it have moved.

        A row for each process of this mesh or slice, owner, way and direction, and for what this process has moved from
        or to theirs. It resolves to a list of `Moved`, which pandas and polars take. A transfer counts when it is done,
        with whoever asked for it; a process that was healed begins anew. Who is dead, or does not answer within 5 s, is
        named in `silent`. RuntimeError once the mesh was stopped.
        """
        if self._ownership.stopped is not None:
            raise RuntimeError(monarch_texts.PROCS_STOPPED)
        return ask_transfers(self)

    def dismiss(self, reason: str) -> Future[None]:
        """Let the processes of this mesh or slice leave ahead of the others, as `stop` does for all of them."""
        return self._hosts._stop_procs(self.nodes, reason)

    async def logging_option(
        self,
        stream_to_client: bool = False,
        aggregate_window_sec: float | None = None,
        level: int = logging.INFO,
    ) -> None:
        """Say what happens from now on to what the processes of this mesh or slice print outside cells, and log.

        `stream_to_client`: whether the client shows it; a script does in any case, unless MESHBOOK_SHOW_OUTPUT is 0.
        `aggregate_window_sec`: lines that differ in their numbers alone, and come within so many seconds, are shown
        once, with their count and ranks. `level`: that of the root logger, 0 to 255, from which on Python's logging is
        printed. `%%mesh` cells show their output in any case.
        Raises ValueError for a level or a window that cannot be; warns where the client forwards nothing
        (MESHBOOK_ENABLE_LOG_FORWARDING; in notebooks it does).
        """
        _check_logging(stream_to_client, aggregate_window_sec, level)
        node, everyone = current_node(), AllReplies(self.extent.region)
        streams = node.settings.enable_log_forwarding if self._streams is None else self._streams
        if stream_to_client and not streams:
            text = "stream_to_client=True has no effect: MESHBOOK_ENABLE_LOG_FORWARDING was off at the spawn"
            warnings.warn(text, UserWarning, stacklevel=2)
        if node.place is None and set(self.nodes) == {node.address}:  # a client's own process prints by itself
            logging.getLogger().setLevel(level)
            return
        options = LogOptions(stream_to_client and streams, aggregate_window_sec)
        targets = [Target(each, PROCESS) for each in self.nodes]
        node.calls.send(targets, "set_logging", ((level, options), {}), self.extent, everyone)
        await everyone.future

    def kill(self, number: int = signal.SIGKILL, *, sender: str = "") -> Future[None]:
        """Send a signal to the processes of this mesh or slice, and to what they started.

        Whoever waits for one that is killed is told that the `sender` ended it, where there is one.
        """
        return self._hosts._signal_procs(self.nodes, number, sender)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def to_table(self) -> str:
        """A table of the ranks as text: number, coordinates and process of each."""
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
        raise ValueError(f"Invalid logging level {level}: it goes from 0 to 255")
    if window is not None and not (math.isfinite(window) and window > 0):
        raise ValueError(f"aggregate_window_sec is {window!r}: it needs a number of seconds above zero")
    if window is not None and not stream:
        raise ValueError("aggregate_window_sec needs stream_to_client=True: without it there is nothing to aggregate")


def _ask_ready(nodes: Sequence[Address]) -> Sequence[Future[Any]]:
    """Ask these processes whether they take messages."""
    targets, reply_handler = [Target(each, PROCESS) for each in nodes], PerRank(len(nodes), _explain_start)
    current_node().calls.send(targets, "ready", ((), {}), Extent.of(ranks=len(nodes)), reply_handler)
    return reply_handler.futures


def _explain_start(error: BaseException) -> BaseException:
    if isinstance(error, ProcessDied) and error.report.raised:
        return BootstrapFailed(str(error), error.report)
    never_started = isinstance(error, ProcessDied) and not error.report.pid
    return LaunchError(str(error)) if never_started else error
