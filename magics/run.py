"""One `%%mesh` cell from its source to its result: sent to the ranks, watched, interrupted, shown, raised.

Events come on the receiving thread (a rank answered, a rank printed); the coroutine of the cell wakes for the last
answer, for trouble, for Ctrl-C, and four times a second to show what there is.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import threading
from typing import Any, Literal

import cloudpickle

from meshbook.magics.course import Course, Watched
from meshbook.magics.interruptible import run_interruptible
from meshbook.magics.losses import error_of_lost, error_of_silent
from meshbook.magics.meshes import NotebookMesh
from meshbook.magics.options import CellOptions
from meshbook.magics.output import CellOutput
from meshbook.magics.publisher import Publisher
from meshbook.magics.results import MeshResult
from meshbook.magics.rollcall import call_roll
from meshbook.magics.selection import LastCell
from meshbook.magics.steps import PATIENCE, Patience
from meshbook.magics.tracebacks import make_cell_error
from meshbook.runtime.actor.context import CURRENT, Context
from meshbook.runtime.cells.outcome import CellCost, CellOutcome, RankError
from meshbook.runtime.errors import MeshbookError
from meshbook.runtime.geometry import Region
from meshbook.runtime.hosts.session import Session
from meshbook.runtime.telemetry.output import Chunk, DisplayChunk, OutputChunk
from meshbook.runtime.telemetry.spool import Spool

TICK = 0.25  # seconds between looks at what there is to show
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
        patience: Patience = PATIENCE,
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
        self._course = Course(
            Watched(mesh, self.origin, self._ranks, options.timeout, options.on_error == "stop"),
            patience,
            say=self._say,
            wake=self._wake.set,
        )
        self._is_late = False  # the cell has ended; text may still come
        self._late_planned = False

    # -- the coroutine ---------------------------------------------------------

    async def run(self, source: str) -> MeshResult:
        """Run the source; returns the result, or raises a CellError."""
        self._session.output.open(self.origin, self._take_chunk)
        await run_interruptible(self._run(source), self._course.interrupt)
        self._end()
        result = self._result()
        self._mesh.last = self._history()
        if self._failed:
            raise make_cell_error(self._errors(), self._failed, result, self._course.ending)
        return result

    async def _run(self, source: str) -> None:
        self._send(source)
        await self._wait()
        for rank, told in (await self._course.settle()).items():
            self._outcomes[rank] = dataclasses.replace(self._outcomes[rank], error=told)

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
        while not self._course.is_over:
            now = self._loop.time()
            self._publish_due(now)
            if silent := self._course.act(now):
                return await self._leave(silent)
            await self._sleep(max(0.0, min(TICK, self._course.next_at - now)))
        return None

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

    async def _leave(self, ranks: tuple[int, ...]) -> None:
        """End the cell without the ranks that do not answer; they stay busy with it."""
        roll = await call_roll(self._mesh, ranks)
        for rank in ranks:
            with self._lock:
                if rank in self._outcomes:
                    continue
                self._mesh.busy[rank] = self._number
                self._note(rank, CellOutcome(_NOTHING, error=error_of_silent(roll[rank])))

    def _say(self, line: str) -> None:
        with self._lock:
            self._output.remark(line)

    # -- from the receiving thread -------------------------------------------------

    def _answered(self, rank: int, future: Any) -> None:
        try:
            outcome = future.get()
        except MeshbookError as error:
            outcome = CellOutcome(_NOTHING, error=error_of_lost(rank, error))
        with self._lock:
            if outcome.names is not None:
                self._mesh.names[rank] = outcome.names
            if rank in self._outcomes:
                self._mesh.busy.pop(rank, None)
                return
            self._note(rank, outcome)
            is_over = self._course.is_over
        if is_over or outcome.error is not None:
            self._loop.call_soon_threadsafe(self._wake.set)

    def _note(self, rank: int, outcome: CellOutcome) -> None:
        self._outcomes[rank] = outcome
        self._output.finish(rank, failed=outcome.error is not None)
        self._course.answered(rank, outcome.error)
        if outcome.error is not None:
            self._failed.append(rank)

    def _take_chunk(self, chunk: Chunk) -> None:
        with self._lock:
            if isinstance(chunk, OutputChunk):
                self._spool(chunk)
                self._output.add(chunk.rank, chunk.stream, chunk.text, chunk.live)
            elif isinstance(chunk, DisplayChunk):
                self._output.display(chunk.rank, chunk.data, chunk.metadata)
            plan = self._is_late and not self._late_planned
            self._late_planned = self._late_planned or plan
        if plan:
            self._loop.call_soon_threadsafe(self._loop.call_later, TICK, self._publish_late)

    def _spool(self, chunk: OutputChunk) -> None:
        spool = self._spools.setdefault((chunk.rank, chunk.stream), Spool())
        spool.write(chunk.text)
        if chunk.live is not None:
            spool.live = chunk.live

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

    def _errors(self) -> dict[int, RankError]:
        errors = {rank: outcome.error for rank, outcome in self._outcomes.items() if outcome.error is not None}
        return {rank: self._course.judge(rank, error) for rank, error in errors.items()}

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
