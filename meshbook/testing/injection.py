"""`chaos`: inject the faults of a plan into the processes of a mesh, undo them at the end, and report them."""

from __future__ import annotations

import asyncio
import collections
import contextvars
import functools
import heapq
import itertools
import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

import msgspec

from meshbook.runtime.errors import MeshbookError
from meshbook.runtime.mesh.actors import ActorMesh, current_node
from meshbook.runtime.mesh.process_actor import PROCESS, ProcessActor
from meshbook.runtime.mesh.procs import ProcMesh
from meshbook.runtime.node.call_table import Target
from meshbook.testing.plan import Event, Range, Rates, plan

if TYPE_CHECKING:
    from types import TracebackType


logger = logging.getLogger(__name__)
PATIENCE = 10.0  # seconds for a reply from a host agent or a live process


def chaos(
    mesh: ProcMesh,
    *,
    kill: float = 0.0,
    stop: float = 0.0,
    delay: float = 0.0,
    drop: float = 0.0,
    seed: int = 0,
    only: Collection[int] | None = None,
    spare_ranks: Collection[int] = (),
    lasting: Range = (0.05, 0.5),
    latency: float = 0.05,
    seconds: float = math.inf,
    most: int | None = None,
) -> Chaos:
    """While the block runs, inject faults into the processes of a mesh: for tests of programs that must survive them.

        procs = this_host().spawn_procs(per_host={"gpus": 4})
        workers = procs.spawn("workers", Worker)
        with chaos(procs, kill=0.5, stop=1, seed=7) as report:
            train(procs, workers)  # heals when a rank dies
        assert report.counts()["kill"] > 0, report

    `kill`, `stop`, `delay` and `drop` are mean numbers a second, over all ranks. The intervals, kinds and ranks are
    random, and the same for the same seed. A kill is a SIGKILL. A stopped process (SIGSTOP) continues after a time
    within `lasting`, in seconds. For such a time a delayed process sends each message `latency` seconds late, and a
    process whose link is dropped sends and receives nothing; then all messages arrive, in order, and none is lost.

    `only` or `spare_ranks` choose the ranks, as counted in this mesh or slice. The faults end after `seconds`, or after
    `most` faults, and with the block. The block's exit waits until all processes run and all links are up: a dropped
    link comes back by itself. Killed processes stay dead until the mesh is healed. A rank that is dead when its fault
    is due is skipped, and the report says so.

    Also `async with`, in a cell or an async endpoint. Workers that are threads have no signals and no links. Raises
    ValueError for an invalid rate or time, and for ranks that the mesh does not have.
    """
    rates = Rates(kill, stop, delay, drop)
    _check(rates, lasting, latency)
    size = len(mesh)
    if unknown := sorted({*(only or ()), *spare_ranks} - set(range(size))):
        raise ValueError(f"the mesh has ranks 0 to {size - 1}, not {', '.join(map(str, unknown))}")
    ranks = [rank for rank in range(size) if (only is None or rank in only) and rank not in spare_ranks]
    events = plan(seed, ranks, rates, lasting=lasting, seconds=seconds, most=most)
    return Chaos(mesh, events, ChaosReport(seed), latency)


class Chaos:
    """The faults of a mesh; made by `chaos`. Entering it returns the `ChaosReport` of the faults so far."""

    def __init__(self, mesh: ProcMesh, events: Iterator[Event], report: ChaosReport, latency: float) -> None:
        self._events = events
        self._report = report
        self._ranks = _TargetRanks(mesh, latency)
        self._over = threading.Event()
        self._error: BaseException | None = None  # the error that ended the thread early
        # The thread runs in the context of its creator, and sends in its name.
        run = contextvars.copy_context().run
        self._thread = threading.Thread(target=run, args=(self._run,), name="meshbook chaos", daemon=True)

    def __enter__(self) -> ChaosReport:
        self._thread.start()
        return self._report

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    async def __aenter__(self) -> ChaosReport:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    def _run(self) -> None:
        try:
            self._inject()
        except BaseException as trouble:
            self._error = trouble
        finally:
            self._ranks.restore()

    def _inject(self) -> None:
        begun = time.monotonic()
        for at, event, begins in with_ends(self._events):
            if self._over.wait(max(0.0, begun + at - time.monotonic())):
                return
            if begins:
                outcome = self._ranks.begin(event)
                self._report.events.append(Injected(event, time.monotonic() - begun, outcome))
            else:
                self._ranks.end(event)


def with_ends(events: Iterator[Event]) -> Iterator[tuple[float, Event, bool]]:
    """Yield the start of each fault, and the end of each that must be ended explicitly, in the order of time."""
    ends: list[tuple[float, int, Event]] = []  # the number breaks ties between equal ends
    for number, event in enumerate(events):
        while ends and ends[0][0] <= event.at:
            at, _, ended = heapq.heappop(ends)
            yield at, ended, False
        yield event.at, event, True
        if event.kind == "stop":
            heapq.heappush(ends, (event.at + event.seconds, number, event))
    for at, _, ended in sorted(ends):
        yield at, ended, False


class _TargetRanks:
    """The processes of a mesh; starts and ends faults of each."""

    def __init__(self, mesh: ProcMesh, latency: float) -> None:
        self._latency = latency
        self._parts = [mesh.slice(**mesh.extent.point(rank)) for rank in range(len(mesh))]
        self._stopped: set[int] = set()
        self._disturbed: dict[int, float] = {}  # rank -> the latest end

    def begin(self, event: Event) -> str:
        """Start a fault; returns "done", or why it was not done."""
        (address,) = self._parts[event.rank].nodes
        if current_node().peers.report_of(address.node) is not None:
            return "the rank was dead"
        return _try(functools.partial(self._begin, event)) or "done"

    def _begin(self, event: Event) -> None:
        rank = event.rank
        if event.kind == "kill":
            self._signal(rank, signal.SIGKILL)
        elif event.kind == "stop":
            self._stopped.add(rank)
            self._signal(rank, signal.SIGSTOP)
        else:
            self._disturbed[rank] = time.monotonic() + event.seconds
            self._disturb(event)

    def _disturb(self, event: Event) -> None:
        link = self._links(event.rank)
        # No wait for the reply: a process that is cut off replies only afterwards.
        if event.kind == "delay":
            link.slow.call(event.seconds, self._latency)
        else:
            link.cut.call(event.seconds)

    def end(self, event: Event) -> None:
        """Continue a stopped process."""
        self._continue(event.rank)

    def restore(self) -> None:
        """Continue all stopped processes, and restore all links, whatever state they are in."""
        for rank in sorted(self._stopped):
            self._continue(rank)
        replies = {rank: self._links(rank).mend.call() for rank in sorted(self._disturbed)}
        for rank, mended in replies.items():
            try:
                # A process that is cut off receives this only afterwards; one that has ended has no link to restore.
                mended.exception(max(0.0, self._disturbed[rank] - time.monotonic()) + PATIENCE)
            except TimeoutError:
                logger.warning("chaos could not restore the link of rank %d: the rank does not answer", rank)

    def _continue(self, rank: int) -> None:
        self._stopped.discard(rank)
        if trouble := _try(functools.partial(self._signal, rank, signal.SIGCONT)):
            logger.warning("chaos could not continue rank %d: %s", rank, trouble)

    def _signal(self, rank: int, number: int) -> None:
        self._parts[rank].kill(number).get(PATIENCE)

    def _links(self, rank: int) -> ActorMesh:
        part = self._parts[rank]
        return ActorMesh(
            "links", ProcessActor, [Target(address, PROCESS) for address in part.nodes], part.extent.region
        )


def _try(work: Callable[[], None]) -> str:
    """Run `work`, and return its error; empty on success."""
    try:
        work()
    except (MeshbookError, TimeoutError) as error:
        return str(error) or type(error).__name__
    return ""


def _check(rates: Rates, lasting: Range, latency: float) -> None:
    numbers = dict(rates._asdict(), latency=latency)
    for name, value in itertools.chain(numbers.items(), (("lasting", each) for each in lasting)):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be a finite number that is not negative, not {value!r}")
    if lasting[0] > lasting[1]:
        raise ValueError(f"lasting must be (shortest, longest), not {lasting!r}")


class Injected(msgspec.Struct, frozen=True):
    """A fault that was due, and its outcome: "done", or why not."""

    event: Event
    at: float  # seconds after the start
    outcome: str

    @property
    def is_done(self) -> bool:
        return self.outcome == "done"

    def __str__(self) -> str:
        event = self.event
        length = f" for {event.seconds:.2f} s" if event.seconds else ""
        suffix = "" if self.is_done else f": {self.outcome}"
        return f"{self.at:8.2f} s  {event.kind} rank {event.rank}{length}{suffix}"


class ChaosReport(msgspec.Struct):
    """The faults so far, in the order of time; `seed` reproduces them."""

    seed: int
    events: list[Injected] = []

    def counts(self) -> dict[str, int]:
        """Return how many faults of each kind were done."""
        return dict(collections.Counter(each.event.kind for each in self.events if each.is_done))

    def to_json(self) -> str:
        """Return the whole report."""
        return msgspec.json.encode(self).decode()

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(self.counts().items())) or "nothing done"
        return "\n".join([f"chaos(seed={self.seed}): {counts}", *map(str, self.events)])
