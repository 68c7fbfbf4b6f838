"""One `%%mesh` cell from its source to its result: sent to the ranks, watched, interrupted, shown, raised.

Events come on the receiving thread (a rank answered, a rank printed); the coroutine of the cell wakes for the last
answer, for trouble, for Ctrl-C, and four times a second to show what there is.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import math
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Literal, TypeVar

import cloudpickle

from meshbook.magics.divergence import Watch
from meshbook.magics.interruptible import interruptible
from meshbook.magics.losses import error_of_killed, error_of_lost, error_of_silent
from meshbook.magics.meshes import NotebookMesh
from meshbook.magics.options import CellOptions
from meshbook.magics.output import CellOutput
from meshbook.magics.publisher import Publisher
from meshbook.magics.results import MeshResult
from meshbook.magics.rollcall import Whereabouts, answers_of, ask_ranks, call_roll, describe_roll
from meshbook.magics.selection import LastCell
from meshbook.magics.steps import PATIENCE, Order, Patience, Step, Steps
from meshbook.magics.tracebacks import Ending, make_cell_error
from meshbook.runtime.actor.context import CURRENT, Context
from meshbook.runtime.actor.future import Future
from meshbook.runtime.cells.outcome import CellCost, CellOutcome, RankError
from meshbook.runtime.errors import MeshbookError
from meshbook.runtime.geometry import Region
from meshbook.runtime.hosts.session import Session
from meshbook.runtime.telemetry.output import Chunk, DisplayChunk, OutputChunk
from meshbook.runtime.telemetry.spool import Spool

TICK = 0.25  # seconds between looks at what there is to show
ABORT_WITHIN = 3.0  # seconds; mostly it takes milliseconds, but a rendezvous tries again once a second
_serial = itertools.count(1)
StreamName = Literal["stdout", "stderr"]
T = TypeVar("T")


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
        self._steps = Steps(self._ranks, stops_on_error=options.on_error == "stop", patience=patience)
        self._watch = Watch(self._loop.time())
        self._limit = math.inf if options.timeout is None else self._loop.time() + options.timeout
        self._aside: asyncio.Task[None] | None = None  # one roll call at a time, beside the waiting
        self._roll: dict[int, Whereabouts] = {}  # where silent ranks were before an abort
        self._timed_out = ""  # what to say of a time limit that has passed
        self._aborted: set[int] = set()
        self._broken: set[str] = set()  # process groups, in words
        self._killed: set[int] = set()
        self._healing: asyncio.Future[Any] | None = None
        self._is_late = False  # the cell has ended; text may still come
        self._late_planned = False

    # -- the coroutine ---------------------------------------------------------

    async def run(self, source: str) -> MeshResult:
        """Run the source; returns the result, or raises a CellError."""
        self._session.output.open(self.origin, self._take_chunk)
        with interruptible(lambda: self._loop.call_soon_threadsafe(self.interrupt)):
            self._send(source)
            await self._wait()
            await self._heal()
            if self._aborted and self._aside is not None:
                await self._aside  # the next cell may make groups again
        self._end()
        result = self._result()
        self._mesh.last = self._history()
        if self._failed:
            errors = {rank: outcome.error for rank, outcome in self._outcomes.items() if outcome.error is not None}
            ending = Ending(self._timed_out, tuple(sorted(self._broken)))
            raise make_cell_error(self._judged(errors), self._failed, result, ending)
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
        while self._steps.silent:
            now = self._loop.time()
            self._publish_due(now)
            self._look_around(now)
            with self._lock:
                orders = self._steps.due(now)
                pause = min(TICK, self._steps.next_at - now)
            for order in orders:
                if order.step is Step.LEAVE:
                    return await self._leave(order.ranks)
                self._carry_out(order)
            await self._sleep(max(0.0, pause))
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

    # -- interrupts --------------------------------------------------------------

    def interrupt(self) -> None:
        """First: KeyboardInterrupt on every rank that still runs. Second: break their process groups. Third: kill."""
        now = self._loop.time()
        with self._lock:
            self._steps.press(now)
            self._watch.hurry(now)
        self._wake.set()
        if self._healing is not None:
            self._healing.cancel()

    def _carry_out(self, order: Order) -> None:
        ranks = self._mesh.procs.region.pick(order.ranks)
        match order.step:
            case Step.INTERRUPT:
                ask_ranks(self._mesh, order.ranks).interrupt.broadcast(self.origin)
            case Step.ABORT:
                self._aborted.update(order.ranks)
                self._begin_aside(self._abort(order))
            case Step.KILL:
                self._killed.update(order.ranks)
                self._mesh.procs._with_region(ranks).kill()

    async def _abort(self, order: Order) -> None:
        """Break the process groups of these ranks; then of all, since a part of a group is no use."""
        # In this order: once one of them lets go, the others are elsewhere, too.
        self._roll |= await call_roll(self._mesh, order.ranks)
        broken = await self._break_groups(order.ranks, self.origin, forced=order.forced)
        if broken:
            others = set(range(self._mesh.extent.nelements)) - broken.keys() - self._mesh.dead.keys()
            broken |= await self._break_groups(sorted(others), "", forced=True)
        self._broken |= {group for groups in broken.values() for group in groups}

    async def _break_groups(self, ranks: Sequence[int], origin: str, *, forced: bool) -> dict[int, list[str]]:
        """Which groups were broken, in words, by rank; only the ranks that had some."""
        asked = ask_ranks(self._mesh, ranks).abort.call_each(origin, forced) if ranks else []
        answers = await answers_of(asked, ABORT_WITHIN)
        return {rank: groups for rank, groups in zip(ranks, answers, strict=True) if groups}

    async def _leave(self, ranks: tuple[int, ...]) -> None:
        """End the cell without the ranks that do not answer; they stay busy with it."""
        roll = await call_roll(self._mesh, ranks)
        for rank in ranks:
            with self._lock:
                if rank in self._outcomes:
                    continue
                self._mesh.busy[rank] = self._number
                self._note(rank, CellOutcome(_NOTHING, error=error_of_silent(roll[rank])))

    async def _heal(self) -> None:
        """Start the ranks again that were killed."""
        if not self._killed:
            return
        started, said = time.monotonic(), "and is not back: %mesh heal starts it again"
        try:
            self._healing = asyncio.ensure_future(_answer(self._mesh.procs.heal()))
            await self._healing
            said = f"and is back after {time.monotonic() - started:.2f} s"
        except (MeshbookError, RuntimeError, asyncio.CancelledError) as error:
            said = f"{said} ({error})" if str(error) else said
        for rank in self._killed & self._outcomes.keys():
            frames = self._roll[rank].frames if rank in self._roll else ()
            told = error_of_killed(said, self._mesh.lost.get(rank, ()), frames)
            self._outcomes[rank] = dataclasses.replace(self._outcomes[rank], error=told)

    # -- where ranks are ------------------------------------------------------------

    def _look_around(self, now: float) -> None:
        if self._aside is not None and not self._aside.done():
            return
        if now >= self._limit:
            self._limit = math.inf
            self._begin_aside(self._run_out_of_time())
        elif self._watch.is_due(now):
            self._begin_aside(self._look_at_ranks())

    def _begin_aside(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._aside = asyncio.ensure_future(coroutine)

    async def _run_out_of_time(self) -> None:
        roll = await call_roll(self._mesh, tuple(self._steps.silent))
        self._timed_out = f"timed out after {self._options.timeout:g} s: {describe_roll(roll)}"
        with self._lock:
            self._steps.time_is_up(self._loop.time())
        self._wake.set()

    async def _look_at_ranks(self) -> None:
        roll = await call_roll(self._mesh, tuple(self._steps.silent))
        with self._lock:
            running = {rank: where for rank, where in roll.items() if rank not in self._outcomes}
            line = self._watch.take(running, sorted(self._outcomes), self._loop.time())
            if self._steps.is_wanted and running:
                line = f"interrupted, but {describe_roll(running)}; {self._steps.advice}"
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
            is_over = not self._steps.silent
        if is_over or outcome.error is not None:
            self._loop.call_soon_threadsafe(self._wake.set)

    def _note(self, rank: int, outcome: CellOutcome) -> None:
        error, now = outcome.error, self._loop.time()
        self._outcomes[rank] = outcome
        self._output.finish(rank, failed=error is not None)
        self._steps.answered(rank, now, failed=error is not None, died=error is not None and error.kind == "died")
        self._watch.answered(now)
        if error is not None:
            self._failed.append(rank)

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

    def _judged(self, errors: Mapping[int, RankError]) -> dict[int, RankError]:
        return {rank: self._judge(rank, error) for rank, error in errors.items()}

    def _judge(self, rank: int, error: RankError) -> RankError:
        """What we did because another rank failed has consequences; what we did for a person is an interrupt."""
        if rank in self._aborted and (error.is_consequence or error.kind == "interrupted"):
            error = self._as_interrupted(rank, error)
        is_ours = error.kind == "interrupted" and not self._steps.is_wanted
        return dataclasses.replace(error, is_consequence=True) if is_ours else error

    def _as_interrupted(self, rank: int, error: RankError) -> RankError:
        """The error of a rank whose process groups were broken: it tells less of where it was than the roll call."""
        where = self._roll.get(rank)
        frames = where.frames if where is not None and where.frames else error.frames
        if error.kind == "interrupted":
            return dataclasses.replace(error, frames=frames)
        return RankError("interrupted", "KeyboardInterrupt", "", frames)

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


async def _answer(future: Future[T]) -> T:
    return await future
