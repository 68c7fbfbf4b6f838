"""One `%%mesh` cell from its source to its result: sent to the ranks, watched, interrupted, shown, raised.

Events come on the receiving thread (a rank answered, a rank printed); the coroutine of the cell wakes for the last
answer, for trouble, for Ctrl-C, for ranks whose turn it is, and four times a second to show what there is.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from meshbook.magics.attendance import Attendance
from meshbook.magics.cell import Cell
from meshbook.magics.costs import summarise_costs
from meshbook.magics.course import Course, Watched
from meshbook.magics.interruptible import run_interruptible
from meshbook.magics.losses import error_of_lost, error_of_silent, error_of_skipped, tell_remedy
from meshbook.magics.meshes import NotebookMesh
from meshbook.magics.missing import explain_missing
from meshbook.magics.mistakes import Mistake
from meshbook.magics.output import CellOutput
from meshbook.magics.printing import Printing
from meshbook.magics.progress import Progress
from meshbook.magics.prompting import Asking, Prompting
from meshbook.magics.publications import Stream
from meshbook.magics.queues import tell_waiting
from meshbook.magics.results import MeshResult, Sources
from meshbook.magics.rollcall import call_roll
from meshbook.magics.schedule import Wave, plan_waves
from meshbook.magics.selection import LastCell
from meshbook.magics.steps import PATIENCE, Patience
from meshbook.magics.tracebacks import CellError, make_cell_error
from meshbook.runtime.actor.context import CURRENT, Context
from meshbook.runtime.actor.future import Future
from meshbook.runtime.cells.outcome import CellCost, CellOutcome, RankError
from meshbook.runtime.errors import MeshbookError
from meshbook.runtime.geometry.ranges import format_label
from meshbook.runtime.node.call_table import PerRank

LEAVING_SECONDS = 2.0  # that the loop of a cell has to say how far that is
TICK = 0.25  # seconds between looks at what there is to show
_serial = itertools.count(1)


class CellDetached(Mistake, MeshbookError):
    """The run of a cell was detached: its ranks go on without this notebook."""


class CellRun:
    """A running cell. `origin` names the execution everywhere; `title` is what cells are told that wait for it."""

    def __init__(
        self, cell: Cell, *, title: str = "", patience: Patience = PATIENCE, resumes: Progress | None = None
    ) -> None:
        self._serial = next(_serial)
        # Of the controller's present life: ranks of a run that was attached to still know executions of others.
        self.origin = resumes.origin if resumes is not None else f"{cell.number}.{cell.session.life}.{self._serial}"
        self._resumes = resumes
        self.cell = cell
        self._mesh = mesh = cell.mesh
        self.title = title or f"cell {cell.number}"
        self._procs = mesh.procs.region  # as it is now: a rank that has its turn later may by then be another one
        self._cells = mesh.cells
        self._ranks = cell.region.ranks()
        self._source = ""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.current_thread()
        self._wake = asyncio.Event()
        self._lock = threading.Lock()  # guards the outcomes, which the receiving thread notes and the loop reads
        self._printing = Printing(self._make_output(), cell.publisher)
        self._outcomes: dict[int, CellOutcome] = {}
        self._futures: dict[int, Future[Any]] = {}
        self._failed: list[int] = []  # in the order in which they failed
        self._has_left = False  # another notebook sees it to its end
        options, stops = cell.options, cell.options.on_error == "stop"
        self._attendance = Attendance(
            mesh.queues,
            {rank: mesh.procs.nodes[rank].node for rank in self._ranks},
            self._plan(),
            origin=self.origin,
            title=self.title,
        )
        self._course = Course(
            Watched(mesh, self.origin, self._ranks, options.timeout, stops, self._withdraw, self._attendance.at_work),
            patience,
            say=self._printing.remark,
            wake=self._wake.set,
        )

        self._prompting = Prompting(
            *(mesh.procs.name, self._ranks, cell.manner),
            area=self._printing,
            whereabouts=self._whereabouts,
            hold=self._course.hold,
        )

    def _make_output(self) -> CellOutput:
        options = self.cell.options
        return CellOutput(
            self._ranks,
            started=self._loop.time() - (time.time() - self._resumes.began if self._resumes is not None else 0.0),
            shown=self.cell.shown,
            quiet=options.quiet,
            group=options.group,
            mesh=self.cell.label,
            limits=self.cell.limits,
        )

    def _plan(self) -> tuple[Wave, ...]:
        if self._resumes is not None:
            return self._resumes.waves
        options, stops = self.cell.options, self.cell.options.on_error == "stop"
        return plan_waves(self._ranks, self.cell.first, one_by_one=options.seq, stops_on_error=stops)

    # -- the coroutine ---------------------------------------------------------

    async def run(self, source: str) -> MeshResult:
        """Run the source; returns the result, or raises a CellError."""
        self.begin(source)
        return await self.finish()

    def begin(self, source: str) -> None:
        """Send it to those ranks whose turn it is."""
        self._source = source
        self.cell.session.output.open(self.origin, self._printing.take)
        self.cell.session.questions.open(self.origin, self._prompting)
        try:
            if self._resumes is not None:
                self._resume(self._resumes)
            self._take_turns()
        except BaseException:  # it has not been sent: nothing comes back from it
            self.cell.session.output.close(self.origin)
            self.cell.session.questions.close(self.origin)
            raise

    async def finish(self) -> MeshResult:
        """See it to its end, once it has begun."""
        try:
            await run_interruptible(self._see_through(), self.interrupt)
        finally:  # who asks is answered, however it has ended
            self.cell.session.questions.close(self.origin)
            self._prompting.close()
            self._printing.close(self._footer)
            self.cell.session.output.end(self.origin)
        if self._has_left:
            raise CellDetached(f"{self.title} was detached and runs on: %mesh attach takes it over")
        result = self._result()
        self._mesh.note_last(self._history())
        has_shown = bool(self._printing.final)
        if self.cell.options.block:  # else `%mesh result` may show it once more
            self._printing.forget_final()
        if self._failed:
            raise self._error(result)
        if self.cell.by_mode and not (has_shown or result.has_value):
            # A person may have forgotten that the mode is on, and nothing else says where this has run.
            self.cell.publisher.publish([Stream("stdout", f"{self.cell.label}{format_label(self._ranks)} done\n")])
        return result

    def interrupt(self) -> None:
        """As Ctrl-C does, each time with more force; in its loop."""
        self._prompting.interrupt()
        self._course.interrupt()

    @property
    def mesh(self) -> NotebookMesh:
        """What it runs on."""
        return self._mesh

    @property
    def ranks(self) -> Sequence[int]:
        """Those of the mesh that it runs on."""
        return self._ranks

    @property
    def answers(self) -> dict[int, RankError | None]:
        """What each rank that has answered has failed with, or None."""
        with self._lock:
            return {rank: outcome.error for rank, outcome in self._outcomes.items()}

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self._printing.seconds

    @property
    def pauses(self) -> Sequence[Asking]:
        """Which ranks wait for a person."""
        return self._prompting.asking()

    @property
    def live_rows(self) -> Mapping[int, str]:
        """What each rank has written that may still change."""
        return self._printing.live_rows()

    @property
    def headline(self) -> str:
        """How far it is, in a line."""
        self._show_who_waits(self._attendance.ahead())
        return self._printing.headline()

    @property
    def waits_for(self) -> str:
        """What it waits for before it begins, in words; empty for nothing."""
        return tell_waiting(self._attendance.ahead(), len(self._ranks))

    @property
    def final_output(self) -> Sequence[Any]:
        """What was published of its output at its end."""
        return self._printing.final

    async def _see_through(self) -> None:
        await self._wait()
        for rank, told in (await self._course.settle()).items():
            self._outcomes[rank] = msgspec.structs.replace(self._outcomes[rank], error=told)

    async def _wait(self) -> None:
        """Until every rank has answered, or there is no use in waiting for those that have not."""
        while not self._course.is_over:
            now = self._loop.time()
            self._take_turns()
            self._look_who_waits()
            self._printing.publish_due()
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

    async def _leave(self, ranks: tuple[int, ...]) -> None:
        """End the cell without the ranks that do not answer; they stay busy with it."""
        roll = await call_roll(self._mesh, ranks)
        for rank in ranks:
            with self._lock:
                if rank in self._outcomes:
                    continue
                self._mesh.busy[rank] = self.cell.number
                self._note(rank, CellOutcome(_NOTHING, error=error_of_silent(roll[rank])))

    # -- who begins ----------------------------------------------------------------

    def _take_turns(self) -> None:
        turn = self._attendance.take_turn()
        if turn.begins:
            self._send(turn.begins)
        self._skip(dict.fromkeys(turn.skipped, turn.reason))

    def _send(self, ranks: tuple[int, ...]) -> None:
        token = CURRENT.set(Context(self.cell.session.context.actor_instance, origin=self.origin))
        try:
            transfer = () if self.cell.transfers is None else (self.cell.transfers.there,)
            debugs = {"debugs": True} if self.cell.opens_debugger else {}
            futures = self._cells_of(ranks).run.call_each(self._source, self.cell.number, *transfer, **debugs)
        except BaseException:  # it cannot travel: these ranks are not at it, and nobody waits behind it there
            for rank in ranks:
                self._attendance.answered(rank, failed=True)
            raise
        finally:
            CURRENT.reset(token)
        self._expect(dict(zip(ranks, futures, strict=True)))

    def _expect(self, answers: dict[int, Future[Any]]) -> None:
        self._futures |= answers
        for rank, future in answers.items():
            future.when_done(lambda rank=rank, future=future: self._answered(rank, future))  # type: ignore[misc]

    def _skip(self, reasons: dict[int, str]) -> None:
        """End it on these ranks, where it has not begun."""
        with self._lock:
            for rank, reason in reasons.items():
                if rank not in self._outcomes:
                    self._note(rank, CellOutcome(_NOTHING, error=error_of_skipped(reason)))

    def _withdraw(self, ranks: Sequence[int]) -> list[int]:
        given_up, sent = self._attendance.withdraw(ranks)
        self._skip(given_up)
        return sent

    def _look_who_waits(self) -> None:
        ahead = self._attendance.ahead()
        self._show_who_waits(ahead)
        if not ahead:
            self._course.begin()

    def _show_who_waits(self, ahead: dict[int, str]) -> None:
        self._printing.wait(self._attendance.to_come.union(ahead), tell_waiting(ahead, len(self._ranks)))

    # -- from one notebook to another ----------------------------------------------

    def leave(self) -> Progress:
        """How far it is, for another notebook that sees it to its end: here no other rank begins. From any thread."""
        if not self._loop.is_running() or threading.current_thread() is self._thread:
            return self._leave_run()

        async def leave() -> Progress:
            return self._leave_run()

        return asyncio.run_coroutine_threadsafe(leave(), self._loop).result(LEAVING_SECONDS)

    def _leave_run(self) -> Progress:
        self._has_left = True
        self._printing.leave()
        waves = self._attendance.give_away()
        with self._lock:
            outcomes, failed = dict(self._outcomes), tuple(self._failed)
        self._skip({rank: "it begins in the notebook that attaches" for wave in waves for rank in wave.ranks})
        return Progress(
            *(self.origin, self._source, outcomes, failed, waves),
            calls={rank: call for rank, future in self._futures.items() for _, _, call in future.owing()},
            written=self._printing.written(),
            began=time.time() - self._printing.seconds,
        )

    def _resume(self, progress: Progress) -> None:
        for chunk in progress.written:
            self._printing.take(chunk)
        with self._lock:
            for rank in sorted(progress.outcomes, key=progress.place_of):
                self._note(rank, progress.outcomes[rank])
        self._attendance.resume(progress.calls, has_failed=bool(progress.failed))
        answers = PerRank(len(progress.calls))
        [*targets] = (self._cells_of((rank,))._picked[0] for rank in progress.calls)
        self.cell.session.node.calls.adopt(targets, list(progress.calls.values()), "run", answers)
        self._expect(dict(zip(progress.calls, answers.futures, strict=True)))

    # -- from the receiving thread -------------------------------------------------

    def _answered(self, rank: int, future: Any) -> None:
        try:
            outcome = future.get()
            if self.cell.transfers is not None:
                outcome = self.cell.transfers.take(rank, outcome)
        except MeshbookError as error:
            outcome = CellOutcome(_NOTHING, error=error_of_lost(rank, error))
        self._attendance.answered(rank, failed=outcome.error is not None)
        with self._lock:
            if outcome.names is not None:
                self._mesh.names[rank] = outcome.names
            if rank in self._outcomes:
                if self._mesh.busy.get(rank) == self.cell.number:
                    del self._mesh.busy[rank]
                return
            self._note(rank, outcome)
            is_over = self._course.is_over
        if is_over or outcome.error is not None or self._attendance.to_come:
            self._loop.call_soon_threadsafe(self._wake.set)

    def _note(self, rank: int, outcome: CellOutcome) -> None:
        self._outcomes[rank] = outcome
        self._printing.finish(rank, outcome.error and self._course.judge(rank, outcome.error))
        self._course.answered(rank, outcome.error)
        self._prompting.ended(rank)
        if outcome.error is not None:
            self._failed.append(rank)

    # -- from the thread of the prompts ----------------------------------------------

    def _whereabouts(self, ranks: Collection[int]) -> dict[int, str]:
        """Where these ranks are, in words."""
        return {rank: str(where) for rank, where in asyncio.run(call_roll(self._mesh, ranks)).items()}

    # -- what is left ----------------------------------------------------------------

    def _cells_of(self, ranks: tuple[int, ...]) -> Any:
        region = self.cell.region if len(ranks) == len(self._ranks) else self._procs.pick(ranks)
        return self._cells if region == self._procs else self._cells._with_region(region)

    def _errors(self) -> dict[int, RankError]:
        errors = {rank: outcome.error for rank, outcome in self._outcomes.items() if outcome.error is not None}
        return {rank: self._course.judge(rank, error) for rank, error in errors.items()}

    def _error(self, result: MeshResult) -> CellError:
        errors = self._errors()
        dead = [rank for rank in errors if rank in self._mesh.dead]
        hints = [tell_remedy(self._mesh, dead)] if dead and not self._mesh.session.has_lost_agent else []
        hints += explain_missing(errors, self._mesh, self.cell.variables)
        ending = dataclasses.replace(self._course.ending, hints=tuple(hints))
        return make_cell_error(errors, self._failed, result, ending, self.cell.label)

    def _footer(self) -> str:
        """What the cell has cost, unless a table is to say so."""
        costs = {rank: outcome.cost for rank, outcome in self._outcomes.items() if outcome.cost is not _NOTHING}
        return summarise_costs(costs) if costs and not self.cell.options.time else ""

    def _history(self) -> LastCell:
        failed = frozenset(self._failed)
        errors = self._errors().items()
        return LastCell(
            failed=failed,
            interrupted=frozenset(rank for rank, error in errors if error.kind == "interrupted"),
            ok=frozenset(self._ranks) - failed,
            changed=frozenset(rank for rank, outcome in self._outcomes.items() if outcome.changed),
            mesh=self._mesh.name,
            serial=self._serial,
        )

    def _result(self) -> MeshResult:
        def fetch(rank: int) -> Any:
            cells = self._mesh.cells._with_region(self._mesh.procs.region.pick([rank]))
            return cells.fetch.call_one(self.origin).get().open()["value"]

        return MeshResult(
            self.cell.region,
            dict(self._outcomes),
            Sources(self._printing.text, self._printing.displays, fetch, self.cell.label),
        )


_NOTHING = CellCost(wall=0.0, cpu=0.0, peak_rss=0)
