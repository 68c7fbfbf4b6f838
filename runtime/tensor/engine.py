"""The controller's side of the command stream: ordered batches, deletes, acknowledgements, bounded run-ahead.

A batch goes out when it is full, when a value is asked for, and `FLUSH_SECONDS` after its first command. The ranks
acknowledge each batch with the failures that began in it. If more than `AHEAD_COMMANDS` or `AHEAD_BYTES` are
unacknowledged, the controller waits for the oldest batch.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import functools
import itertools
import logging
import math
import pickle
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

import torch

from meshbook.runtime import devices
from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import MeshbookError, SupervisionError
from meshbook.runtime.geometry import Region
from meshbook.runtime.interrupts import hold_interrupts
from meshbook.runtime.mesh.actors import ActorMesh, current_node
from meshbook.runtime.mesh.procs import handle_failures
from meshbook.runtime.resources import count_gpus
from meshbook.runtime.tensor.failures import DeviceMeshError, Failed, RemoteException
from meshbook.runtime.tensor.groups import Grouping, Rendezvous
from meshbook.runtime.tensor.lanes import Lane, Ref
from meshbook.runtime.tensor.layouts import Layout
from meshbook.runtime.tensor.operators import Cache
from meshbook.runtime.tensor.streams import MAIN, Stream
from meshbook.runtime.tensor.templates import Command, frame_of, user_place
from meshbook.runtime.tensor.worker import TensorWorker
from meshbook.runtime.traces import Place, SourceLine
from meshbook.runtime.transport.home import host_of

if TYPE_CHECKING:
    from meshbook.runtime.mesh.procs import ProcMesh
    from meshbook.runtime.tensor.device_mesh import DeviceMesh
    from meshbook.runtime.tensor.recovery import Recovery

T = TypeVar("T")
logger = logging.getLogger(__name__)
BATCH_COMMANDS: Final = 256
BATCH_BYTES: Final = 16 << 20  # of constants in a batch
FLUSH_SECONDS: Final = 0.005
AHEAD_COMMANDS: Final = 16_384
AHEAD_BYTES: Final = 256 << 20  # of constants
IDLE_DELETES: Final = 64  # deletes that wait in a lane without commands
MOST_FAILURES: Final = 1000  # whose lines are kept
COLLECTIVE_SECONDS: Final = 1800.0
LOCALLY = torch._C._DisableTorchDispatch  # a block under it handles plain tensors only, even where a mesh is active


# lane, command, the user's line, size of its objects or None
_Item: TypeAlias = tuple[Lane, Command, Place | None, int | None]


class _Batch:
    """A batch that the ranks have not acknowledged yet."""

    __slots__ = ("count", "first", "future", "lane", "nbytes", "places", "raised")

    def __init__(self, lane: Lane, first: int, places: list[Place | None], nbytes: int, future: Future[Any]) -> None:
        self.lane = lane
        self.first = first
        self.count = len(places)
        self.places = places
        self.nbytes = nbytes
        self.future = future
        self.raised: float = math.inf  # the first command whose error was raised while the batch was under way


class _Awaited:
    """What a wait for tensors waits for: all ranks that run commands, since they may wait for each other."""

    def __init__(self, engine: Engine, pending_call: Any) -> None:
        self._engine = engine
        self._call = pending_call

    def cancel(self, index: int | None) -> bool:
        return self._call is not None and bool(self._call.cancel(index))

    def owing(self, index: int | None) -> list[Any]:
        return [] if self._call is None else list(self._call.owing(index))

    def describe(self, index: int | None) -> str:
        return f"the tensors of {self._engine.procs.name}"

    def unanswered(self) -> list[Any]:
        """Return the oldest batch that each rank has not run, and the call itself."""
        batches = [batch.future.pending_call for batch in self._engine._outstanding.copy()]
        calls = [each._call for each in (*batches, self) if isinstance(each, _Awaited) and each._call is not None]
        oldest: dict[int, Any] = {}
        for each in itertools.chain.from_iterable(call.unanswered() for call in calls):
            oldest.setdefault(each[1].rank, each)
        return [oldest[rank] for rank in sorted(oldest)]


class CommandRecorder(Protocol):
    """Takes down the commands of a function (`recordings`)."""

    def note(self, lane: Lane, command: Command) -> None: ...
    def hold(self, tensors: Iterable[Any]) -> None: ...


class RemoteModule(Protocol):
    """A module on the ranks (`modules.proxies`)."""

    reload: Callable[[], None] | None  # reads its last checkpoint

    def restore(self, plan: Recovery) -> bool: ...


class Engine:
    """The tensors and commands of one process mesh; with a layout, those of the global view."""

    _serial = itertools.count(1)

    def __init__(self, procs: ProcMesh, layout: Layout | None = None) -> None:
        self.procs = procs
        self.layout = layout
        self.device = "cpu"  # the type of the ranks' device, in the global view
        self.name = f"{procs.name}-{next(self._serial)}"
        self.node = self._find_node()
        self._context = contextvars.copy_context()
        self._dtype = torch.get_default_dtype()  # of the ranks' streams
        # Guards the ids, what the ranks know, the order of commands that belong together, and the sending: several
        # threads may use a mesh. Re-entrant: a finalizer may fetch while a batch is made.
        self.lock = threading.RLock()
        self._streams: dict[Stream, ActorMesh] = {}
        self.actors = self._actors_of(MAIN)
        note_heal = weakref.WeakMethod(self._note_heal)
        procs.note_tensor_engine(self)
        procs.after_heal(lambda mesh, ranks: note(ranks) if (note := note_heal()) is not None else None)
        self._lanes: dict[tuple[tuple[int, ...], Stream], Lane] = {}
        self.ids = itertools.count(1)
        self._tags = itertools.count(1)  # of values that streams hand off
        self._next = 1  # number of the next command
        self._pending: collections.deque[_Item] = collections.deque()
        self._is_due = False  # a flush on the I/O thread is planned
        self._outstanding: collections.deque[_Batch] = collections.deque()
        self._ahead = 0
        self._ahead_bytes = 0
        self._failures: dict[int, tuple[Failed, Place | None]] = {}  # by number of the command: first errors
        self._failed_checks: list[Failed] = []  # that no fetch has raised, as far as acknowledged
        self.trouble: BaseException | None = None  # why no command can run any more
        self._rendezvous: dict[bool, Rendezvous] = {}  # by whether it is for one host alone
        self.has_stopped = False
        self.templates = itertools.count()
        self.cache = Cache()
        # Connects the ranks again after one has left its process groups because of a failure (global view).
        self.reconnect: Callable[[], None] | None = None
        self.must_reconnect = False
        self._random: torch.Tensor | None = None  # the controller's random state when the ranks last got one
        self.holds = 0  # how many `coalescing` blocks hold the commands back
        self.recorder: CommandRecorder | None = None  # takes the commands down, while a function is recorded
        self.modules: weakref.WeakSet[RemoteModule] = weakref.WeakSet()  # to be made again on new ranks
        self.meshes: dict[
            Region, DeviceMesh
        ] = {}  # a `DeviceMesh` for each region, so that equal ones are the same object

    def _find_node(self) -> Any:
        return current_node()

    # -- issuing ----------------------------------------------------------------------

    def _actors_of(self, stream: Stream) -> ActorMesh:
        """Return the actors of a stream; the first call spawns them."""
        with self.lock:
            if stream not in self._streams:
                name = "tensor_engine" if stream is MAIN else "tensor_stream"
                spawn: Any = self.procs.spawn
                arguments: tuple[Any, ...] = self.name, COLLECTIVE_SECONDS, self.layout, stream.number, self._dtype
                actors = self._context.copy().run(spawn, name, TensorWorker, *arguments)
                handle_failures(actors, lambda failure: True)  # a fetch raises them
                self._streams[stream] = actors
            return self._streams[stream]

    def lane(self, actors: ActorMesh, stream: Stream = MAIN) -> Lane:
        """Return the lane of these ranks and this stream.

        In the global view operators have collectives, which need one order on all ranks: all streams are one there.
        """
        if self.layout is not None:
            stream = MAIN
        key = tuple(sorted(actors.region.ranks())), stream
        found = self._lanes.get(key)
        if found is None:
            own = self._actors_of(stream)._with_region(actors.region)
            found = self._lanes.setdefault(key, Lane(self, own, stream))
        return found

    @property
    def whole(self) -> Lane:
        return self.lane(self.actors)

    def hand_over(
        self, value: int, here: Lane, there: Lane, into: int | None = None, *, as_copy: bool = False
    ) -> Ref | None:
        """Hand a value off from one stream to another, which waits for it. None if the streams have one lane.

        Returns the value in the other stream. `into` is an id that exists there, or 0 to wait for this stream only.
        """
        if here is there:
            return None
        target = self.new_ids(1) if into is None else into
        tag, place = next(self._tags), user_place(1)
        self.issue(here, ("hand over", tag, value, as_copy), place)
        self.issue(there, ("accept", tag, target), place)
        return there.new_ref(target) if into is None else None

    def new_ids(self, count: int) -> int:
        """Return the first of `count` consecutive ids."""
        with self.lock:
            first = next(self.ids)
            for _ in range(count - 1):
                next(self.ids)
            return first

    def issue(self, lane: Lane, command: Command, place: Place | None, nbytes: int | None = None) -> None:
        """Append a command to the stream. `nbytes`: None for ids and numbers alone, else the size of its objects.

        The objects are pickled when the batch is sent, so nothing may change them.
        """
        if self.trouble is not None:
            raise self._explain_trouble()
        if torch.get_default_dtype() is not self._dtype:
            self._share_default_dtype()
        if self.recorder is not None:
            self.recorder.note(lane, command)
        pending = self._pending
        pending.append((lane, command, place, nbytes))
        if self.holds:
            return
        if len(pending) >= BATCH_COMMANDS or (nbytes is not None and nbytes >= BATCH_BYTES):
            self.flush()
        elif not self._is_due:
            self._is_due = True
            self.node.loop.call_later(FLUSH_SECONDS, self._flush_soon)

    def _share_default_dtype(self) -> None:
        with self.lock:
            self._dtype = torch.get_default_dtype()
            self._issue_to_streams("default_dtype", self._dtype)

    def flush(self) -> None:
        """Send what is unsent, and wait while the ranks are too far behind."""
        with self.lock:
            with hold_interrupts():  # commands that are taken and not sent would be lost
                self._send()
            self._collect()
            if self.must_reconnect and self.reconnect is not None and self.trouble is None:
                self.must_reconnect = False
                try:
                    self.reconnect()
                except MeshbookError as error:  # a rank has died meanwhile
                    self.trouble = self.trouble or error
            while self._is_too_far_ahead:
                _wait_for(self._outstanding[0].future)
                self._collect()

    def _flush_soon(self) -> None:
        """Send what is unsent, on the I/O thread: it never waits, neither for the ranks nor for another thread."""
        self._is_due = False
        if self.holds:
            return
        has_lock = self.lock.acquire(blocking=False)
        try:
            if has_lock:
                self._collect()
                if not self._is_too_far_ahead:
                    self._send()
            if self._pending:  # the next command may never come
                self._is_due = True
                self.node.loop.call_later(FLUSH_SECONDS, self._flush_soon)
        finally:
            if has_lock:
                self.lock.release()

    @property
    def _is_too_far_ahead(self) -> bool:
        return self._ahead > AHEAD_COMMANDS or self._ahead_bytes > AHEAD_BYTES

    def _send(self) -> None:
        """Send the unsent commands, one message for each run of one lane, and the deletes behind them."""
        last = self._pending[-1][0] if self._pending else None
        # The deletes are taken before the commands: an id in them has no command that is appended after this.
        deletes = [
            (lane, ids)
            for lane in list(self._lanes.values())
            if lane.dead and (lane is last or len(lane.dead) >= IDLE_DELETES) and (ids := _take(lane.dead))
        ]
        taken = _take(self._pending)
        taken += [(lane, ("delete", ids), None, None) for lane, ids in deletes if lane is last]
        taken += [(lane, ("delete", ids), None, None) for lane, ids in deletes if lane is not last]
        for lane, run in itertools.groupby(taken, key=itemgetter(0)):
            self._transmit(lane, list(run))

    def _transmit(self, lane: Lane, run: list[_Item]) -> None:
        if self.trouble is not None:
            # The values of the other commands are lost as well; `heal_mesh` finds out.
            lane.dead.extend(each for item in run if item[1][0] == "delete" for each in item[1][1])
            return
        commands = [item[1] for item in run]
        nbytes = [item[3] for item in run if item[3] is not None]
        body = commands if nbytes else pickle.dumps(commands, 5)
        # In the engine's own context: a finalizer may flush anywhere, and the I/O thread does.
        actors: Any = lane.actors
        with LOCALLY():
            future = self._context.copy().run(actors.run.call, self._next, body)
            future.set_pending_call(_Awaited(self, future.pending_call), None)
        self._outstanding.append(_Batch(lane, self._next, [item[2] for item in run], sum(nbytes), future))
        self._next += len(run)
        self._ahead += len(run)
        self._ahead_bytes += sum(nbytes)

    def _collect(self) -> None:
        """Take the acknowledgements that have arrived."""
        while self._outstanding and self._outstanding[0].future.done():
            batch = self._outstanding.popleft()
            self._ahead -= batch.count
            self._ahead_bytes -= batch.nbytes
            if (error := batch.future.exception()) is not None:
                self.trouble = self.trouble or error
                continue
            for _, failures in batch.future.get():
                for failed in failures:
                    self._note_failure(failed, batch)

    def _note_failure(self, failed: Failed, batch: _Batch) -> None:
        place = batch.places[failed.command - batch.first]
        self.must_reconnect |= failed.has_left
        if failed.is_check and failed.command < batch.raised and len(self._failed_checks) < MOST_FAILURES:
            self._failed_checks.append(failed)
        known = self._failures.get(failed.command)
        if known is None or (known[0].is_of_peer and not failed.is_of_peer):
            if len(self._failures) >= MOST_FAILURES:  # the oldest one loses its line
                del self._failures[next(iter(self._failures))]
            self._failures[failed.command] = failed, place
            line = "" if place is None else f"\n{SourceLine.of(place)}"
            logger.info("an operation failed on rank %d: %s%s", failed.rank, failed.headline, line)

    def forget_templates(self) -> None:
        """Make the ranks forget all templates; later ones have larger numbers."""
        with self.lock:
            limit = next(self.templates)
            for lane in list(self._lanes.values()):
                lane.known.clear()
            self._issue_to_streams("forget", limit)

    def _issue_to_streams(self, *command: Any) -> None:
        for stream in list(self._streams):
            self.issue(self.lane(self.actors, stream), command, None)

    def share_random(self) -> None:
        """Give the ranks the random state of this process, if the program has changed it: by a seed, by local draws.

        A mesh then draws what this process would draw. This process continues with another seed, made from that state:
        what it draws later must not be what the mesh has drawn.
        """
        with LOCALLY(), self.lock:
            present = torch.default_generator.get_state()
            if self._random is not None and torch.equal(present, self._random):
                return
            # A state is of one type of device.
            state = present if self.device == "cpu" else torch.initial_seed()
            self.issue(self.whole, ("random_state", state), None, 0)
            torch.default_generator.manual_seed(int(torch.randint(1 << 62, ())))
            self._random = torch.default_generator.get_state()

    def queued(self) -> dict[str, int]:
        """Return the number of commands that each rank has not run yet, by node; from any thread."""
        queued = dict.fromkeys((address.node for address in self.procs.nodes), 0)
        nodes = tuple(queued)
        for lane, *_ in self._pending.copy():
            for rank in lane.ranks:
                queued[nodes[rank]] += 1
        for batch in self._outstanding.copy():
            for target, _, _ in batch.future.owing():
                queued[target.address.node] += batch.count
        return queued

    # -- waiting ----------------------------------------------------------------------

    def wait(self) -> None:
        """Send everything, and wait until the ranks have run it. Raises DeviceMeshError if one has died."""
        with self.lock:
            self._send()
            while self._outstanding:
                _wait_for(self._outstanding[0].future)
                self._collect()
            if self.trouble is not None:
                raise self._explain_trouble()

    def check_can_wait(self) -> None:
        """Raise if values cannot be asked for now."""
        if self.holds:
            raise NotImplementedError(
                "values cannot be fetched in a coalescing() block, which sends its commands at the end: fetch them "
                "after it"
            )
        if self.recorder is not None:
            raise RuntimeError(
                "a function that compile() records cannot fetch values, since replays would not fetch them again: "
                "return the tensors, and fetch them outside of the function"
            )

    def fetch(self, rank: int, ids: Sequence[int], stream: Stream = MAIN) -> Future[list[Any]]:
        """Return a future of values of one rank and stream; it raises RemoteException or DeviceMeshError."""
        self.check_can_wait()
        return self.ask(rank, "fetch", list(ids), stream=stream).then(self.check_all)

    def fetch_now(self, rank: int, ids: Sequence[int], stream: Stream = MAIN) -> list[Any]:
        """Return values of one rank and stream; waits. Raises what `fetch` raises."""
        fetched = self.fetch(rank, ids, stream)
        _wait_for(fetched)
        return fetched.get()

    def fetch_whole(self, issue: Callable[[], Ref]) -> Any:
        """Return a value that all ranks put together on the first one; waits. `issue` issues the command for that.

        If a rank has left the process groups meanwhile, because something else had failed, they try again.
        """
        self.check_can_wait()
        for is_last in (False, True):
            ref = issue()
            fetched = self.ask(0, "fetch", [ref.id])
            _wait_for(fetched)
            values = fetched.get()
            if is_last or not any(type(value) is Failed and value.is_of_peer for value in values):
                break
            self.wait()
            self.flush()
        return self.check_all(values)[0]

    def describe(self, lane: Lane, value: int) -> list[Any]:
        """Return the description of a whole result by each rank; waits."""
        self.check_can_wait()
        self.flush()
        actors: Any = lane.actors
        answers = actors.describe.call(value)
        explained = self._explained(answers)
        _wait_for(explained)
        return [described for _, described in explained.get()]

    def call_on(self, rank: int, function: Any, tree: Any, stream: Stream = MAIN) -> Future[Any]:
        """Return a future of a remote function's result on one rank, in the order of a stream."""
        self.check_can_wait()
        return self.ask(rank, "call", function, tree, stream=stream).then(lambda value: self.check_all([value])[0])

    def send_all(self) -> None:
        """Send everything that was issued: a message to an actor of this engine comes after it.

        Raises what `check_can_wait` raises, and DeviceMeshError if a rank has died.
        """
        self.check_can_wait()
        self.flush()
        if self.trouble is not None:
            raise self._explain_trouble()

    @functools.cached_property
    def has_gpus_to_name(self) -> bool:
        """Whether the ranks have GPUs, and this process has none. Asks the first rank if it is of another host."""
        if devices.count():
            return False
        if self.layout is not None:
            return self.device == "cuda"
        if {host_of(node) for node in self.procs.nodes} == {host_of(self.node.address)} and not count_gpus():
            return False
        answer = self.ask(0, "survey")
        _wait_for(answer)
        return answer.exception() is None and bool(answer.get()[0])

    def infer(self, operator: str, args: Any, kwargs: Any) -> Any:
        """Return what an operator returns on the first rank for zeros, as metadata; waits. None: it raises there, too.

        `args` and `kwargs` have metadata in place of tensors.
        """
        if self.holds or self.recorder is not None:
            return None
        answer = self.ask(0, "infer", operator, args, kwargs)
        _wait_for(answer)
        return answer.get()

    def ask(self, rank: int, endpoint: str, *arguments: Any, stream: Stream = MAIN) -> Future[Any]:
        """Send everything, and return a future of what an endpoint returns on one rank."""
        self.flush()
        if self.trouble is not None:
            return Future.failed(self._explain_trouble())
        worker = self.lane(self.actors, stream).actors.slice(**dict(self.actors.extent.point(rank)))
        with LOCALLY():
            return self._explained(getattr(worker, endpoint).call_one(*arguments))

    def _explained(self, future: Future[Any]) -> Future[Any]:
        """Return a future whose SupervisionError is a DeviceMeshError."""
        twin: Future[Any] = Future.pending()

        def settle() -> None:
            with LOCALLY():  # this decodes the value, in the thread that fetches if the value is here already
                error = future.exception()
            if isinstance(error, SupervisionError):
                self.trouble = self.trouble or error
                twin.fail(self._explain_trouble())
            elif error is not None:
                twin.fail(error)
            else:
                twin.resolve(lambda: _decode(future))

        future.when_done(settle)
        twin.set_pending_call(_Awaited(self, future.pending_call), None)
        return twin

    def _explain_trouble(self) -> DeviceMeshError:
        if isinstance(self.trouble, DeviceMeshError):
            return DeviceMeshError(str(self.trouble))
        text = f"the tensor engine of {self.procs.name} has failed"
        if isinstance(self.trouble, SupervisionError):
            text = f"a rank of {self.procs.name} died; restart it with heal_mesh(mesh)"
        error = DeviceMeshError(f"{text}\n{self.trouble}")
        error.__cause__ = self.trouble
        return error

    # -- failures ---------------------------------------------------------------------

    def check_all(self, values: list[Any]) -> list[Any]:
        """Return the values; raise the first failure among them and the checks."""
        failed = [value for value in (*values, *self._failed_checks) if type(value) is Failed]
        if failed:
            raise self.explain(min(failed, key=lambda each: each.command))
        return values

    def explain(self, failed: Failed) -> RemoteException | DeviceMeshError:
        """Return the error of a failure, with the controller's line."""
        first = failed
        if failed.is_lost:
            return DeviceMeshError(failed.trace)
        with self.lock:
            if self.must_reconnect or failed.has_left:  # before the next commands
                self.must_reconnect = True
                self.wait()
                self.flush()
            if failed.is_of_peer:  # the other rank's own failure is in an acknowledgement, or will be
                self.wait()
                own = [n for n, (each, _) in self._failures.items() if n <= failed.command and not each.is_of_peer]
                # The other rank has failed at the same command, or earlier.
                if own:
                    failed = self._failures[failed.command if failed.command in own else min(own)][0]
            place = self._place_of(failed.command)
            self._settle(first.command)
            self._settle(failed.command)
        frames = None if place is None else [frame_of(place)]
        return RemoteException(failed.trace, frames, failed.rank)

    def _settle(self, command: int) -> None:
        """Restore the tensors that a failed command was to change: its error is raised now."""
        if self.trouble is not None:
            return
        self._issue_to_streams("settle", command)
        self._send()
        self._failed_checks = [each for each in self._failed_checks if each.command < command]
        for batch in self._outstanding:
            batch.raised = min(batch.raised, command)

    def _place_of(self, command: int) -> Place | None:
        if command in self._failures:
            return self._failures[command][1]
        for batch in self._outstanding:
            if batch.first <= command < batch.first + batch.count:
                return batch.places[command - batch.first]
        return None

    # -- process groups ---------------------------------------------------------------

    def rendezvous(self, other: Engine | None = None) -> Rendezvous:
        """Return a store of this mesh, which its first rank opens at the first request; waits then.

        It is reachable from all ranks of this mesh, and of another one.
        """
        hosts = {host_of(node) for engine in (self, other or self) for node in engine.procs.nodes}
        is_local = len(hosts) == 1
        if is_local not in self._rendezvous:
            opened = self.ask(0, "open_store", is_local)
            _wait_for(opened)
            host, port = opened.get()
            self._rendezvous[is_local] = Rendezvous(host, port, is_local)
        return self._rendezvous[is_local]

    def member(self, rank: int) -> str:
        """Return the name of a rank in process groups."""
        return f"{self.name}/{rank}"

    def join(self, lane: Lane, groups: Sequence[Sequence[int]]) -> str:
        """Make sure that these groups of ranks of a lane exist; return the name of the grouping."""
        name = ",".join("-".join(str(rank) for rank in ranks) for ranks in groups)
        with self.lock:
            if name not in lane.groupings:
                members = tuple(tuple(map(self.member, ranks)) for ranks in groups)
                self.issue(lane, ("group", Grouping(name, self.rendezvous(), members)), user_place(1), 0)
                lane.groupings.add(name)
        return name

    def join_other(self, other: Engine, stream: Stream) -> str:
        """Make sure that a group of all ranks of two engines exists for a stream; return its name."""
        name = f"{self.name}+{other.name}"
        if name not in self.lane(self.actors, stream).groupings:
            members = (*self._members(), *other._members())
            rendezvous = self.rendezvous(other)
            for engine in (self, other):
                lane = engine.lane(engine.actors, stream)
                engine.issue(lane, ("group", Grouping(name, rendezvous, (members,))), user_place(1), 0)
                lane.groupings.add(name)
                engine.flush()
        return name

    def _members(self) -> tuple[str, ...]:
        return tuple(map(self.member, range(len(self.actors))))

    def start_again(self) -> None:
        """Forget what was under way, and what the ranks know, after a rank has died."""
        with self.lock:
            self._pending.clear()
            self._outstanding.clear()
            self._ahead = self._ahead_bytes = 0
            for lane in list(self._lanes.values()):
                for known in (lane.known, lane.functions, lane.groupings):
                    known.clear()
            self._rendezvous.clear()
            self._failed_checks.clear()
            self.must_reconnect = False
            self.trouble = None

    def _note_heal(self, ranks: Sequence[int]) -> None:
        """After a heal or a resize, on the receiving thread: new processes have none of the values."""
        if ranks:
            listed = ", ".join(map(str, ranks))
            advice = (
                "Create the tensors again in `with procs.activate():`" if self.layout is None else "Call mesh.heal()"
            )
            self.trouble = DeviceMeshError(
                f"this tensor was lost: rank {listed} of {self.procs.name} runs in a new process. {advice}"
            )

    def close(self) -> None:
        """Drop the unsent commands and end the actors; later commands raise DeviceMeshError. May be called again."""
        with self.lock:
            if not isinstance(self.trouble, DeviceMeshError):
                self.trouble = DeviceMeshError(f"the tensor engine of {self.procs.name} has been stopped")
            self._pending.clear()
            self._outstanding.clear()
        if not self.has_stopped:
            self.has_stopped = True
            for actors in list(self._streams.values()):
                actors.stop("the tensor engine ends")


def _take(queue: collections.deque[T]) -> list[T]:
    """Empty a queue to which other threads and finalizers may append meanwhile."""
    return [queue.popleft() for _ in range(len(queue))]


def _wait_for(future: Future[Any]) -> None:
    """Wait until a future is settled, also in an event loop, where `get` would warn."""
    with contextlib.suppress(Exception):  # the reader of the future gets it
        future.wait_here()


def _decode(future: Future[T]) -> T:
    with LOCALLY():
        return future.get()
