"""Runs one `%%mesh` cell on its ranks, from its source to its result or error.

Answers arrive on the receiving thread, as events of the cell's inbox (`state`). The coroutine of the cell handles them.
It wakes for the last answer, for an error, for Ctrl-C, for ranks whose turn has come, and four times a second to
publish.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import itertools
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from meshbook.magics.cells.admission import AdmissionQueue, StartWave, format_waiting, plan_waves
from meshbook.magics.cells.cell import CellProgress, PreparedCell
from meshbook.magics.cells.escalation import GRACE_PERIODS, GracePeriods
from meshbook.magics.cells.rank_errors import (
    error_of_freed,
    error_of_lost,
    error_of_silent,
    error_of_skipped,
    explain_broken,
    explain_missing,
    format_remedy,
    note_lost_contexts,
)
from meshbook.magics.cells.state import CellInbox, CellState
from meshbook.magics.cells.supervision import CellSupervisor
from meshbook.magics.errors import CellDetached, CellError, make_cell_error
from meshbook.magics.meshes.registry import NotebookMesh
from meshbook.magics.meshes.whereabouts import collect_whereabouts, locate_ranks
from meshbook.magics.output.collector import OutputCollector
from meshbook.magics.output.model import CellOutput
from meshbook.magics.output.publisher import StreamText
from meshbook.magics.prompts.broker import OpenPrompt, PromptBroker
from meshbook.magics.results.costs import summarise_costs
from meshbook.magics.results.result import MeshResult, Sources
from meshbook.magics.shell.cell_interrupts import interruptible, run_interruptible
from meshbook.magics.syntax.selectors import LastCell
from meshbook.runtime.actor.context import CURRENT, Context
from meshbook.runtime.actor.future import Future
from meshbook.runtime.cells.outcome import CellCost, CellOutcome, RankError
from meshbook.runtime.errors import MeshbookError, ProcessDied, format_help
from meshbook.runtime.formats import format_label
from meshbook.runtime.gpu_errors import find_remedies

LEAVING_SECONDS = 2.0  # that the loop of a cell has to return its progress
TICK = 0.25  # seconds between two publications of output
_serial = itertools.count(1)


class CellExecution:
    """A running cell. `origin` names the execution everywhere; waiting cells show its `title`."""

    def __init__(
        self,
        cell: PreparedCell,
        *,
        title: str = "",
        periods: GracePeriods = GRACE_PERIODS,
        resumes: CellProgress | None = None,
    ) -> None:
        self._serial = next(_serial)
        # With the controller's incarnation: ranks of an attached run still have executions of other controllers.
        self.origin = (
            resumes.origin if resumes is not None else f"{cell.number}.{cell.session.incarnation}.{self._serial}"
        )
        self._resumes = resumes
        self.cell = cell
        self._mesh = mesh = cell.mesh
        self.title = title or f"cell {cell.number}"
        self._procs = mesh.procs.region  # as it is now: heal may replace the process of a rank before its turn
        self._cells = mesh.cells
        self._ranks = cell.region.ranks()
        self._source = ""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.current_thread()
        self._inbox = CellInbox()
        self._state = CellState(self._ranks)
        self._output = OutputCollector(self._make_output(), cell.publisher)
        self._futures: dict[int, Future[Any]] = {}
        self._bound: dict[str, None] = {}  # the names that its ranks report for the first time
        self._arrivals = itertools.count(1)
        self._wakes_for_each = False  # the loop wakes for each answer, not only for the last one
        self._has_left = False  # another notebook finishes it
        nodes = mesh.procs.nodes
        self._admission = AdmissionQueue(
            *(mesh.queues, {rank: nodes[rank].node for rank in self._ranks}, self._plan()),
            origin=self.origin,
            title=self.title,
        )
        self._supervisor = CellSupervisor(
            *(cell, self.origin, self._state, self._admission, periods),
            say=self._output.remark,
            wake=self._inbox.wake,
        )
        self._prompting = PromptBroker(
            *(mesh.procs.name, self._ranks, self._state.silent, cell.policy),
            inbox=self._inbox,
            output=self._output,
            whereabouts=functools.partial(locate_ranks, mesh),
            hold=self._supervisor.hold,
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

    def _plan(self) -> tuple[StartWave, ...]:
        if self._resumes is not None:
            return self._resumes.waves
        options, stops = self.cell.options, self.cell.options.on_error == "stop"
        return plan_waves(self._ranks, self.cell.first, one_by_one=options.seq, stops_on_error=stops)

    # -- the coroutine ---------------------------------------------------------

    async def run(self, source: str) -> MeshResult:
        """Run the source. Return the result, or raise a CellError."""
        self.begin(source)
        return await self.finish()

    def begin(self, source: str) -> None:
        """Send the source to the ranks whose turn has come."""
        self._source = source
        self._mesh.share_path()
        self.cell.session.output.open(self.origin, self._output.take)
        self.cell.session.questions.open(self.origin, self._prompting)
        try:
            if self._resumes is not None:
                self._resume(self._resumes)
            self._take_turns()
        except BaseException:  # it has not been sent: no output or prompt will arrive
            self.cell.session.output.close(self.origin)
            self.cell.session.questions.close(self.origin)
            raise

    async def finish(self) -> MeshResult:
        """Wait for the end of a cell that has begun, and return its result."""
        try:
            with interruptible(lambda: self._loop.call_soon_threadsafe(self.interrupt)):
                unanswered = await self._wait()
                self._note_lost()
                if unanswered or self._supervisor.has_to_settle:
                    await run_interruptible(self._settle(unanswered), self.interrupt)
        finally:  # however it has ended, open prompts are answered
            self.cell.session.questions.close(self.origin)
            self._prompting.close()
            self._inbox.close()
            self._output.close(self._footer)
            self.cell.session.output.end(self.origin)
        if self._has_left:
            raise CellDetached(f"{self.title} was detached and keeps running; take it back with %mesh attach")
        fetch = functools.partial(_fetch, self._mesh, self.origin)
        unsent = [rank for rank, each in self._state.outcomes.items() if each.value and each.value.pickled is None]
        release = functools.partial(_release, self._mesh, self.origin, unsent) if unsent else None
        sources = Sources(self._output.text, self._output.displays, fetch, self.cell.label, release)
        result = MeshResult(self.cell.region, dict(self._state.outcomes), sources)
        self._mesh.note_last(self._history())
        has_shown = bool(self._output.final)
        if self.cell.options.block:  # otherwise `%mesh result` may show it once more
            self._output.forget_final()
        if self._state.failed:
            raise self._error(result)
        if self.cell.by_mode and not (has_shown or result.has_value):
            # The user may have forgotten that the mode is on, and nothing else shows where the cell ran.
            self.cell.publisher.publish([StreamText("stdout", f"{self.cell.label}{format_label(self._ranks)} done\n")])
        return result

    def interrupt(self) -> None:
        """Interrupt the cell as Ctrl-C does, each time with more force. For its loop only."""
        self._inbox.handle()  # ranks that have answered are not interrupted
        self._prompting.interrupt()
        self._supervisor.interrupt()
        self._inbox.wake()

    @property
    def mesh(self) -> NotebookMesh:
        """The mesh that the cell runs on."""
        return self._mesh

    @property
    def ranks(self) -> Sequence[int]:
        """The ranks of the mesh that the cell runs on."""
        return self._ranks

    @property
    def answers(self) -> dict[int, RankError | None]:
        """The error of each rank that has answered, or None."""
        return {rank: outcome.error for rank, outcome in dict(self._state.outcomes).items()}

    @property
    def seconds(self) -> float:
        """Seconds since the cell began."""
        return self._output.seconds

    @property
    def pauses(self) -> Sequence[OpenPrompt]:
        """The prompts of ranks that wait for an answer."""
        return self._prompting.pauses

    @property
    def live_rows(self) -> Mapping[int, str]:
        """The rows of each rank's output that may still change."""
        return self._output.live_rows()

    @property
    def headline(self) -> str:
        """The progress of the cell, in a line."""
        self._show_waiting(self._admission.ahead())
        return self._output.headline()

    @property
    def waits_for(self) -> str:
        """What the cell waits for before it begins, as text; empty for nothing."""
        return format_waiting(self._admission.ahead(), len(self._ranks))

    @property
    def whereabouts(self) -> str:
        """Where the ranks were when last queried, if they were apart, as text."""
        return self._supervisor.whereabouts

    @property
    def final_output(self) -> Sequence[Any]:
        """The output that was published at the end of the cell."""
        return self._output.final

    async def _wait(self) -> tuple[int, ...]:
        """Wait until every rank has answered. Return the ranks that the cell ends without."""
        while True:
            self._inbox.handle()
            self._take_turns()
            if not self._state.silent:
                return ()
            ahead = self._admission.ahead()
            self._show_waiting(ahead)
            if not ahead:
                self._supervisor.begin()
            self._output.publish_due()
            now = self._loop.time()
            if unanswered := self._supervisor.act(now, self._withdraw):
                return unanswered
            self._prompting.act(now)
            next_at = min(self._supervisor.next_at, self._prompting.next_at)
            try:
                await self._inbox.wait(max(0.0, min(TICK, next_at - now)))
            except asyncio.CancelledError:  # by the kernel: an interrupt like any other
                if (caller := asyncio.current_task()) is not None:
                    caller.uncancel()
                self.interrupt()

    async def _settle(self, unanswered: tuple[int, ...]) -> None:
        """End the cell without the ranks that do not answer, which stay busy with it. Heal killed ranks."""
        if unanswered:
            whereabouts = await collect_whereabouts(self._mesh, unanswered)
            self._inbox.handle()
            for rank in self._state.silent.intersection(unanswered):
                self._mesh.busy[rank] = self.cell.number
                self._note(rank, CellOutcome(_NOTHING, error=error_of_silent(whereabouts[rank])))
        self._state.replace_errors(await self._supervisor.settle())

    # -- which ranks begin ---------------------------------------------------------

    def _take_turns(self) -> None:
        turn = self._admission.take_turn(self._state.silent, has_failed=bool(self._state.failed))
        self._wakes_for_each = self._wakes_for_each or bool(self._admission.not_begun)
        if turn.begins:
            self._send(turn.begins)
        self._skip(dict.fromkeys(turn.skipped, turn.reason))

    def _send(self, ranks: tuple[int, ...]) -> None:
        token = CURRENT.set(Context(self.cell.session.context.actor_instance, origin=self.origin))
        try:
            transfer = () if self.cell.transfers is None else (self.cell.transfers.there,)
            debugs = {"debugs": True} if self.cell.opens_debugger else {}
            futures = self._cells_of(ranks).run.call_each(self._source, self.cell.number, *transfer, **debugs)
        except BaseException:  # it cannot be pickled: these ranks do not run it, and no cell waits behind it there
            for rank in ranks:
                self._admission.leave(rank)
            raise
        finally:
            CURRENT.reset(token)
        self._expect(dict(zip(ranks, futures, strict=True)))

    def _expect(self, answers: dict[int, Future[Any]]) -> None:
        self._futures |= answers
        for rank, future in answers.items():
            future.when_done(lambda rank=rank, future=future: self._receive(rank, future))  # type: ignore[misc]

    def _skip(self, reasons: dict[int, str]) -> None:
        """End the cell on these ranks, on which it has not begun."""
        for rank, reason in reasons.items():
            if rank in self._state.silent:
                self._note(rank, CellOutcome(_NOTHING, error=error_of_skipped(reason)))

    def _withdraw(self, ranks: Collection[int]) -> list[int]:
        self._wakes_for_each = True  # withdrawn ranks may answer later than the last of the others
        dropped, sent = self._admission.withdraw(ranks)
        self._skip(dropped)
        return sent

    def _show_waiting(self, ahead: dict[int, str]) -> None:
        self._output.wait(self._admission.not_begun.union(ahead), format_waiting(ahead, len(self._ranks)))

    # -- detach and attach ---------------------------------------------------------

    def leave(self) -> CellProgress:
        """Begin on no further ranks, and return the progress for another notebook. From any thread."""
        if not self._loop.is_running() or threading.current_thread() is self._thread:
            return self._leave_run()

        async def leave() -> CellProgress:
            return self._leave_run()

        return asyncio.run_coroutine_threadsafe(leave(), self._loop).result(LEAVING_SECONDS)

    def _leave_run(self) -> CellProgress:
        self._has_left = True
        self._output.leave()
        waves = self._admission.release_waves()
        calls = {rank: call for rank, future in self._futures.items() for _, _, call in future.owing()}
        self._inbox.handle()
        outcomes, failed = dict(self._state.outcomes), tuple(self._state.failed)
        self._skip({rank: "the notebook that attaches will start it there" for wave in waves for rank in wave.ranks})
        return CellProgress(
            *(self.origin, self._source, outcomes, failed, waves, calls),
            written=self._output.written(),
            began=time.time() - self._output.seconds,
        )

    def _resume(self, progress: CellProgress) -> None:
        for chunk in progress.written:
            self._output.take(chunk)
        for rank in sorted(progress.outcomes, key=progress.place_of):
            self._note(rank, progress.outcomes[rank])
        self._admission.resume(progress.calls)
        [*targets] = (self._cells_of((rank,))._picked[0] for rank in progress.calls)
        answers = self.cell.session.node.calls.adopt(targets, list(progress.calls.values()), "run")
        self._expect(dict(zip(progress.calls, answers, strict=True)))

    # -- answers ---------------------------------------------------------------------

    def _receive(self, rank: int, future: Future[CellOutcome]) -> None:
        """Queue the answer of a rank, or the error that stands for it. Runs on the receiving thread."""
        try:
            outcome = future.get()
        except MeshbookError as error:
            outcome = CellOutcome(_NOTHING, error=error_of_lost(rank, error))
        self._admission.leave(rank)
        is_last = next(self._arrivals) >= len(self._futures)
        self._inbox.put(
            functools.partial(self._answered, rank, outcome),
            urgent=is_last or self._wakes_for_each or self._prompting.has_asked or outcome.error is not None,
        )

    def _answered(self, rank: int, outcome: CellOutcome) -> None:
        if outcome.error is not None and outcome.error.is_consequence and self._supervisor.was_broken:
            outcome = msgspec.structs.replace(outcome, error=error_of_freed(outcome.error))
        if self.cell.transfers is not None:
            outcome = self.cell.transfers.take(rank, outcome)
        if outcome.names is not None:
            known = set(self._mesh.names.get(rank, ()))
            self._bound |= dict.fromkeys(name for name in outcome.names if name not in known)
            self._mesh.names[rank] = outcome.names
        if rank in self._state.silent:
            self._note(rank, outcome)
        elif self._mesh.busy.get(rank) == self.cell.number:  # the cell has ended without it
            del self._mesh.busy[rank]

    def _note(self, rank: int, outcome: CellOutcome) -> None:
        self._state.note(rank, outcome)
        self._output.finish(rank, outcome.error and self._supervisor.judge(rank, outcome.error))
        self._supervisor.answered(outcome.error)
        self._prompting.ended(rank)

    def _note_lost(self) -> None:
        """Add the names that the cell has bound on other ranks to the lost names of ranks that died in it."""
        for rank, error in self._state.errors.items():
            if error.type_name == ProcessDied.__name__:
                self._mesh.note_lost(rank, self._bound)

    # -- result and error ----------------------------------------------------------

    def _cells_of(self, ranks: tuple[int, ...]) -> Any:
        region = self.cell.region if len(ranks) == len(self._ranks) else self._procs.pick(ranks)
        return self._cells if region == self._procs else self._cells._with_region(region)

    def _errors(self) -> dict[int, RankError]:
        return {rank: self._supervisor.judge(rank, error) for rank, error in self._state.errors.items()}

    def _error(self, result: MeshResult) -> CellError:
        errors = self._errors()
        dead = [rank for rank in errors if rank in self._mesh.dead]
        remedy = [format_remedy(self._mesh, dead)] if dead and not self._mesh.session.has_lost_agent else []
        hints = ["; ".join([*remedy, format_help(ProcessDied.page)])] if dead else []
        hints += explain_missing(errors, self._mesh, self.cell.variables)
        hints += note_lost_contexts(errors, self.cell.number, self._mesh)
        hints += find_remedies(error.message for error in errors.values())
        if cause := explain_broken(errors, self._mesh.broken):
            # The frames of torch would only hide it.
            errors = {rank: dataclasses.replace(error, rendered=()) for rank, error in errors.items()}
        ending = dataclasses.replace(self._supervisor.ending, cause=cause, hints=tuple(hints))
        if ending.aborted:
            self._mesh.note_broken(f"cell {self.cell.number}")
        return make_cell_error(errors, self._state.failed, result, ending, self.cell.label)

    def _footer(self) -> str:
        """The cost of the cell as text; empty where a table shows it."""
        costs = {rank: outcome.cost for rank, outcome in self._state.outcomes.items() if outcome.cost is not _NOTHING}
        if not costs or self.cell.options.time:
            return ""
        has_lost = any(rank not in costs and error.kind != "skipped" for rank, error in self._state.errors.items())
        return summarise_costs(costs, self.seconds if has_lost else 0.0)

    def _history(self) -> LastCell:
        failed = frozenset(self._state.failed)
        errors = self._errors().items()
        return LastCell(
            failed=failed,
            interrupted=frozenset(rank for rank, error in errors if error.kind == "interrupted"),
            ok=frozenset(self._ranks) - failed,
            changed=frozenset(rank for rank, outcome in self._state.outcomes.items() if outcome.changed),
            mesh=self._mesh.name,
            serial=self._serial,
        )


def _fetch(mesh: NotebookMesh, origin: str, rank: int) -> Any:
    """Fetch the value that stayed on the rank."""
    return mesh.pick(mesh.cells, [rank]).fetch.call_one(origin).get().open()["value"]


def _release(mesh: NotebookMesh, origin: str, ranks: Sequence[int]) -> None:
    """Let these ranks discard the value of a cell. A finalizer may call this."""
    if living := [rank for rank in ranks if rank in mesh.rank_of.values() and rank not in mesh.dead]:
        with contextlib.suppress(MeshbookError):  # they have just ended, and the values with them
            mesh.pick(mesh.cells, living).release.broadcast(origin)


_NOTHING = CellCost(wall=0.0, cpu=0.0, peak_rss=0)
