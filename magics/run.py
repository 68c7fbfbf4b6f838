"""One `%%mesh` cell from its source to its result: sent to the ranks, watched, interrupted, shown, raised.

Events come on the receiving thread (a rank answered, a rank printed); the coroutine of the cell wakes for the last
answer, for trouble, for Ctrl-C, and four times a second to show what there is.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import cloudpickle

from meshbook.magics.meshes import MeshError, NotebookMesh
from meshbook.magics.options import CellOptions
from meshbook.magics.output import CellOutput
from meshbook.magics.publisher import Publisher
from meshbook.magics.results import MeshResult
from meshbook.magics.selection import LastCell
from meshbook.magics.tracebacks import make_cell_error
from meshbook.runtime.actor.context import CURRENT, Context
from meshbook.runtime.cells.outcome import CellCost, CellOutcome, Frame, RankError
from meshbook.runtime.errors import MeshbookError, ProcessDied
from meshbook.runtime.geometry import Region
from meshbook.runtime.geometry.ranges import name_ranks
from meshbook.runtime.hosts.session import Session
from meshbook.runtime.telemetry.output import Chunk, DisplayChunk, OutputChunk
from meshbook.runtime.telemetry.spool import Spool

TICK = 0.25  # seconds between looks at what there is to show
GRACE = 0.5  # after a first error, for the others to come to theirs, before they are interrupted
DEATH_WAIT = 0.3  # after a rank died, for the others to answer an interrupt, before the cell ends without them
STUCK_WAIT = 5.0  # the same after an error: a rank in a collective does not hear an interrupt
WHERE_WAIT = 0.5  # for ranks to say where they are
_serial = itertools.count(1)
StreamName = Literal["stdout", "stderr"]


class CellRun:
    """A running cell. `origin` names the execution everywhere."""

    def __init__(
        self,
        session: Session,
        mesh: NotebookMesh,
        region: Region,
        options: CellOptions,
        shown: frozenset[int] | None,
        publisher: Publisher,
        number: int,
    ) -> None:
        self.origin = f"{number}.{next(_serial)}"
        self._session = session
        self._mesh = mesh
        self._region = region
        self._ranks = region.ranks()
        self._options = options
        self._publisher = publisher
        self._number = number
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        # Guards what the receiving thread and the loop both touch: the output model, the spools, the outcomes.
        self._lock = threading.Lock()
        self._output = CellOutput(
            self._ranks, started=self._loop.time(), shown=shown, quiet=options.quiet, group=options.group
        )
        self._spools: dict[tuple[int, StreamName], Spool] = {}
        self._outcomes: dict[int, CellOutcome] = {}
        self._failed: list[int] = []  # in the order in which they failed
        self._has_death = False
        self._interrupts = 0
        self._sent_interrupt = False
        self._is_late = False  # the cell has ended; text may still come
        self._late_planned = False

    # -- the coroutine ---------------------------------------------------------

    async def run(self, source: str) -> MeshResult:
        """Run the source; returns the result, or raises a CellError."""
        self._session.output.open(self.origin, self._take_chunk)
        with interruptible(lambda: self._loop.call_soon_threadsafe(self.interrupt)):
            self._send(source)
            await self._wait()
        self._end()
        result = self._result()
        self._mesh.last = self._history()
        if self._failed:
            errors = {rank: outcome.error for rank, outcome in self._outcomes.items() if outcome.error is not None}
            raise make_cell_error(self._judged(errors), self._failed, result)
        return result

    def _send(self, source: str) -> None:
        token = CURRENT.set(Context(self._session.context.actor_instance, origin=self.origin))
        try:
            futures = self._cells().run.call_each(source, self._number)
        finally:
            CURRENT.reset(token)
        for rank, future in zip(self._ranks, futures, strict=True):
            future.when_done(lambda rank=rank, future=future: self._answered(rank, future))

    async def _wait(self) -> None:
        """Until every rank has answered, or there is no use in waiting for those that have not."""
        interrupt_at = end_at = math.inf
        while len(self._outcomes) < len(self._ranks):
            now = self._loop.time()
            self._publish_due(now)
            if self._failed and self._options.on_error == "stop":
                interrupt_at = min(interrupt_at, now + (0.0 if self._has_death else GRACE))
            if now >= interrupt_at and not self._sent_interrupt:
                self._interrupt_ranks()
            if self._has_death:
                end_at = min(end_at, now + DEATH_WAIT)
            elif self._sent_interrupt and not self._interrupts:  # because a rank failed; a person is more patient
                end_at = min(end_at, now + STUCK_WAIT)
            if now >= end_at or self._interrupts > 1:
                await self._give_up()
                return
            due = end_at if self._sent_interrupt else min(interrupt_at, end_at)
            await self._sleep(min(TICK, due - now))

    async def _sleep(self, seconds: float) -> None:
        alarm = self._loop.call_later(seconds, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            alarm.cancel()
        self._wake.clear()

    def _end(self) -> None:
        with self._lock:
            publications = self._output.close(self._loop.time())
            self._is_late = True
        self._publisher.publish(publications)

    # -- interrupts --------------------------------------------------------------

    def interrupt(self) -> None:
        """First: KeyboardInterrupt on every rank that still runs. Second: do not wait for them any more."""
        self._interrupts += 1
        self._interrupt_ranks()
        self._wake.set()

    def _interrupt_ranks(self) -> None:
        self._sent_interrupt = True
        running = [rank for rank in self._ranks if rank not in self._outcomes]
        if running:
            self._control(running).interrupt.broadcast(self.origin)

    async def _give_up(self) -> None:
        """End the cell without the ranks that do not answer; they stay busy with it."""
        silent = [rank for rank in self._ranks if rank not in self._outcomes]
        places = self._control(silent).where.call_each() if silent else []
        for rank, place in zip(silent, places, strict=True):
            try:
                frame = await asyncio.wait_for(place.as_asyncio(), WHERE_WAIT)
            except (TimeoutError, MeshbookError):
                frame = None
            self._note_silent(rank, (frame,) if frame else ())

    def _note_silent(self, rank: int, frames: tuple[Frame, ...]) -> None:
        error = RankError("interrupted", "no answer", "the rank does not hear interrupts and is still busy", frames)
        with self._lock:
            if rank not in self._outcomes:
                self._mesh.busy[rank] = self._number
                self._note(rank, CellOutcome(_NOTHING, error=error))

    # -- from the receiving thread -------------------------------------------------

    def _answered(self, rank: int, future: Any) -> None:
        try:
            outcome = future.get()
        except MeshbookError as error:
            outcome = CellOutcome(_NOTHING, error=_lost(rank, error))
        with self._lock:
            if rank in self._outcomes:
                self._mesh.busy.pop(rank, None)
                return
            self._note(rank, outcome)
            is_over = len(self._outcomes) == len(self._ranks)
        if is_over or outcome.error is not None:
            self._loop.call_soon_threadsafe(self._wake.set)

    def _note(self, rank: int, outcome: CellOutcome) -> None:
        self._outcomes[rank] = outcome
        self._output.finish(rank, failed=outcome.error is not None)
        if outcome.error is not None:
            self._failed.append(rank)
            self._has_death = self._has_death or outcome.error.kind == "died"

    def _take_chunk(self, chunk: Chunk) -> None:
        with self._lock:
            if isinstance(chunk, OutputChunk):
                self._spools.setdefault((chunk.rank, chunk.stream), Spool()).write(chunk.text)
                self._output.add(chunk.rank, chunk.stream, chunk.text)
            elif isinstance(chunk, DisplayChunk):
                self._output.display(chunk.rank, chunk.data, chunk.metadata)
            plan = self._is_late and not self._late_planned
            self._late_planned = self._late_planned or plan
        if plan:
            self._loop.call_soon_threadsafe(self._loop.call_later, TICK, self._publish_late)

    def _publish_late(self) -> None:
        """What threads of the cell print after its end goes to it all the same."""
        with self._lock:
            self._late_planned = False
            publications = self._output.due(self._loop.time())
            if not publications and self._output.has_late_text:
                self._late_planned = True
                self._loop.call_later(TICK, self._publish_late)
        self._publisher.publish(publications)

    def _publish_due(self, now: float) -> None:
        with self._lock:
            publications = self._output.due(now)
        self._publisher.publish(publications)

    # -- what is left ----------------------------------------------------------------

    def _cells(self) -> Any:
        if self._region == self._mesh.procs.region:
            return self._mesh.cells
        return self._mesh.cells._with_region(self._region)

    def _control(self, ranks: list[int]) -> Any:
        region = self._mesh.procs.region.pick(ranks)
        return self._mesh.control._with_region(region)

    def _judged(self, errors: dict[int, RankError]) -> dict[int, RankError]:
        """Interrupts that we sent because another rank failed are consequences, and not what the user did."""
        if self._interrupts:
            return errors
        return {
            rank: dataclasses.replace(error, is_consequence=True) if error.kind == "interrupted" else error
            for rank, error in errors.items()
        }

    def _history(self) -> LastCell:
        failed = frozenset(self._failed)
        return LastCell(failed=failed, ok=frozenset(self._ranks) - failed, mesh=self._mesh.name)

    def _result(self) -> MeshResult:
        def text(rank: int, stream: StreamName) -> str:
            with self._lock:
                spool = self._spools.get((rank, stream))
                return spool.read() if spool is not None else ""

        def fetch(rank: int) -> Any:
            cells = self._mesh.cells._with_region(self._mesh.procs.region.pick([rank]))
            return cloudpickle.loads(cells.fetch.call_one(self.origin).get())

        return MeshResult(self._region, dict(self._outcomes), text, fetch)


_NOTHING = CellCost(wall=0.0, cpu=0.0, peak_rss=0)


def _lost(rank: int, error: MeshbookError) -> RankError:
    """A rank that will not answer, as an error of the cell."""
    if not isinstance(error, ProcessDied):
        return RankError("died", type(error).__name__, str(error))
    report = error.report
    name = f"{report.signal_name}: " if report.signal_name else ""
    who = f"rank {rank} (pid {report.pid})" if report.pid else f"rank {rank}"
    # Where nobody saw it end, the hint's first line is the cause.
    hint = report.hint.splitlines()[report.returncode is None :]
    message = "\n".join([f"{who} died during the cell: {name}{report.cause}", *hint])
    lines = ("last lines of its stderr:", *(f"    {line}" for line in report.stderr)) if report.stderr else ()
    return RankError("died", "ProcessDied", message, rendered=lines)


@contextmanager
def interruptible(act: Callable[[], object]) -> Iterator[None]:
    """Ctrl-C does this, and nothing else: the kernel's own handler does not wake the loop, and is seconds late."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, lambda number, frame: act())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def check_able(mesh: NotebookMesh, region: Region) -> None:
    """MeshError where a rank that a cell is meant for is dead, or still busy with an earlier cell."""
    ranks = set(region.ranks())
    if dead := sorted(ranks & mesh.dead.keys()):
        has_others = len(mesh.dead) < mesh.extent.nelements
        raise MeshError(
            f"{name_ranks(dead)} of {mesh.name} died ({mesh.dead[dead[0]].cause}). "
            f"{f'{_others(dead)} or start' if has_others else 'Start'} afresh: %mesh down, then %mesh up"
        )
    if busy := sorted(ranks & mesh.busy.keys()):
        raise MeshError(
            f"{name_ranks(busy)} of {mesh.name} did not answer in cell {mesh.busy[busy[0]]} and still run it. Wait, or "
            f"{_others(busy).lower()} or start afresh: %mesh down --now, then %mesh up"
        )


def _others(ranks: list[int]) -> str:
    return f"Run on the others with %%mesh !{','.join(map(str, ranks))},"
