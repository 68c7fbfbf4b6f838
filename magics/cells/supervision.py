"""Supervises a running cell: applies the actions of `escalation` to its ranks, and collects their whereabouts.

It acts in the loop of the cell, which passes the time in (`act`). Output and results belong to `execution`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import time
from collections.abc import Callable, Collection, Coroutine
from typing import Any, TypeVar

from meshbook.magics.cells.admission import AdmissionQueue
from meshbook.magics.cells.cell import PreparedCell
from meshbook.magics.cells.divergence import DivergenceWatch
from meshbook.magics.cells.escalation import EscalationAction, EscalationPolicy, EscalationStep, GracePeriods
from meshbook.magics.cells.rank_errors import error_of_killed
from meshbook.magics.cells.state import CellState
from meshbook.magics.meshes.whereabouts import (
    RankWhereabouts,
    answers_of,
    ask_ranks,
    collect_whereabouts,
    format_remaining,
    format_whereabouts,
)
from meshbook.magics.results.error_groups import EndedBy
from meshbook.runtime.actor.future import Future
from meshbook.runtime.cells.outcome import RankError
from meshbook.runtime.errors import MeshbookError

logger = logging.getLogger(__name__)
ABORT_WITHIN = 3.0  # seconds; mostly it takes milliseconds, but a rendezvous retries once a second
T = TypeVar("T")


Withdraw = Callable[[Collection[int]], list[int]]


class CellSupervisor:
    """Supervises one cell, in its loop. `say` shows a line in the running cell; `wake` makes the loop call `act` soon.

    It collects whereabouts only after `begin`. Before that, the ranks are busy with an earlier cell.
    """

    def __init__(
        self,
        cell: PreparedCell,
        origin: str,
        state: CellState,
        admission: AdmissionQueue,
        periods: GracePeriods,
        *,
        say: Callable[[str], None],
        wake: Callable[[], None],
    ) -> None:
        self._mesh = cell.mesh
        self._origin = origin
        self._ranks = cell.region.ranks()
        self._silent = state.silent
        self._admission = admission
        self._timeout = cell.options.timeout
        self._say = say
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        stops_on_error = cell.options.on_error == "stop"
        self._policy = EscalationPolicy(self._silent, stops_on_error=stops_on_error, periods=periods)
        in_cell = set(self._ranks)
        self._absent = [rank for rank in cell.mesh.procs.region.ranks() if rank not in in_cell]
        self._watch = DivergenceWatch(self._loop.time(), self._absent)
        self._limit = math.inf
        self._has_begun = False
        self._breaks = self._mesh.breaks
        self._aside: set[asyncio.Task[None]] = set()  # queries that run beside the wait; an abort waits for none
        self._before_abort: dict[int, RankWhereabouts] = {}  # where silent ranks were before an abort
        self._timed_out = ""  # the text of a time limit that has passed
        self._aborted: set[int] = set()
        self._broken: set[str] = set()  # process groups, as text
        self._killed: set[int] = set()
        self.whereabouts = ""  # of ranks that are apart, as shown in the running cell
        self._healing: asyncio.Future[list[int]] | None = None

    @property
    def ending(self) -> EndedBy:
        """What was done to end the cell."""
        return EndedBy(self._timed_out, aborted=tuple(sorted(self._broken)))

    # -- events --------------------------------------------------------------------

    def begin(self) -> None:
        """Start the time limit: the ranks run the cell. Idempotent."""
        if not self._has_begun:
            now = self._loop.time()
            self._has_begun, self._watch = True, DivergenceWatch(now, self._absent)
            self._breaks = self._mesh.breaks
            self._limit = math.inf if self._timeout is None else now + self._timeout

    def answered(self, error: RankError | None) -> None:
        """Record that a rank has answered, or never will."""
        now = self._loop.time()
        if error is not None:
            self._policy.failed(now, died=error.kind == "died")
        self._watch.answered(now)

    def hold(self, is_held: bool) -> None:
        """Set whether a rank is in the debugger. Meanwhile neither an error nor a time limit ends the cell."""
        self._policy.is_held = is_held

    def interrupt(self) -> None:
        """First: KeyboardInterrupt on every rank that still runs. Second: break process groups. Third: kill."""
        now = self._loop.time()
        self._policy.press(now)
        self._watch.hurry(now)
        if self._healing is not None:
            self._healing.cancel()

    # -- actions -------------------------------------------------------------------

    def act(self, now: float, withdraw: Withdraw) -> tuple[int, ...]:
        """Run the actions that are due. Return the ranks that the cell is to end without.

        `withdraw` cancels the cell on these ranks where it has not begun, and returns the ranks that have received it.
        No reference to it is kept, so that an ended cell is freed at once and not by the garbage collector.
        """
        self._look_around(now)
        for action in self._policy.due(now):
            if action.step is EscalationStep.LEAVE:
                return action.ranks
            self._carry_out(action, withdraw)
        return ()

    @property
    def next_at(self) -> float:
        """When an action may be due, apart from queries of whereabouts."""
        return self._policy.next_at

    def _carry_out(self, action: EscalationAction, withdraw: Withdraw) -> None:
        match action.step:
            case EscalationStep.INTERRUPT:
                if concerned := withdraw(action.ranks):
                    ask_ranks(self._mesh, concerned).interrupt.broadcast(self._origin)
            case EscalationStep.ABORT:
                self._aborted.update(action.ranks)
                self._begin_aside(self._abort(action))
            case EscalationStep.KILL:
                self._killed.update(action.ranks)
                self._mesh.pick(self._mesh.procs, action.ranks).kill(sender="a third Ctrl-C")

    async def _abort(self, action: EscalationAction) -> None:
        """Break the process groups of these ranks, then of the whole mesh, since a part of a group is of no use."""
        # In this order: once one rank leaves the collective, the others are elsewhere, too.
        self._before_abort |= await collect_whereabouts(self._mesh, action.ranks)
        asked = ask_ranks(self._mesh, action.ranks).abort.call_each(self._origin, action.forced)
        broken = {group for groups in await answers_of(asked, ABORT_WITHIN) for group in groups or ()}
        if broken:  # also for ranks that left the groups: new groups need a new rendezvous of all ranks
            await answers_of([self._mesh.procs.abort_process_groups()], ABORT_WITHIN)
        self._broken |= broken

    @property
    def was_broken(self) -> bool:
        """Whether a command has broken the process groups since the cell began."""
        return self._mesh.breaks > self._breaks

    @property
    def has_to_settle(self) -> bool:
        """Whether `settle` has something to do."""
        return bool(self._aborted or self._killed)

    async def settle(self) -> dict[int, RankError]:
        """After the last answer, wait for open queries and heal killed ranks. Return the errors of the killed ranks."""
        if self._aborted and self._aside:
            await asyncio.wait(self._aside)  # the next cell may make groups again
        return await self._heal() if self._killed else {}

    async def _heal(self) -> dict[int, RankError]:
        started, healed, trouble = time.monotonic(), [], ""
        try:
            self._healing = asyncio.ensure_future(_answer(self._mesh.procs.heal()))
            healed = await self._healing
        except (MeshbookError, RuntimeError, asyncio.CancelledError) as error:
            trouble = f" ({error})" if str(error) else ""
        back = f"and restarted in {time.monotonic() - started:.2f} s"
        gone = f"but could not be restarted{trouble}; restart it with %mesh heal{self._mesh.selector()}"
        errors = {}
        for rank in self._killed:
            frames = self._before_abort[rank].frames if rank in self._before_abort else ()
            errors[rank] = error_of_killed(back if rank in healed else gone, self._mesh.lost.get(rank, ()), frames)
        return errors

    # -- whereabouts ---------------------------------------------------------------

    def _look_around(self, now: float) -> None:
        if self._aside or not self._has_begun:
            return
        if now >= self._limit and not self._policy.is_held:
            self._limit = math.inf
            self._begin_aside(self._run_out_of_time())
        elif self._watch.is_due(now):
            self._begin_aside(self._look_at_ranks())

    def _begin_aside(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._aside.add(task)
        task.add_done_callback(self._end_aside)

    def _end_aside(self, task: asyncio.Task[None]) -> None:
        self._aside.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("failed to query the ranks of a running cell", exc_info=error)

    async def _run_out_of_time(self) -> None:
        whereabouts = await collect_whereabouts(self._mesh, self._admission.at_work(self._silent))
        self._timed_out = f"timed out after {self._timeout:g} s: {format_whereabouts(whereabouts)}"
        self._policy.time_is_up(self._loop.time())
        self._wake()

    async def _look_at_ranks(self) -> None:
        whereabouts = await collect_whereabouts(self._mesh, self._admission.at_work(self._silent))
        running = {rank: where for rank, where in whereabouts.items() if rank in self._silent}
        done = [rank for rank in self._ranks if rank not in self._silent]
        line = self._watch.take(running, done, self._loop.time())
        if self._policy.is_wanted and running:
            line = f"interrupted, but {format_remaining(running)}; {self._policy.advice}"
        self.whereabouts = line
        self._say(line)

    # -- errors --------------------------------------------------------------------

    def judge(self, rank: int, error: RankError) -> RankError:
        """Classify an error: our interrupt after another rank's failure is a consequence, a person's is not."""
        if rank in self._aborted and (error.is_consequence or error.kind == "interrupted"):
            error = self._as_interrupted(rank, error)
        is_ours = error.kind == "interrupted" and not self._policy.is_wanted
        return dataclasses.replace(error, is_consequence=True) if is_ours else error

    def _as_interrupted(self, rank: int, error: RankError) -> RankError:
        """The error of a rank whose process groups were broken, with the more exact frames from before the abort."""
        where = self._before_abort.get(rank)
        frames = where.frames if where is not None and where.frames else error.frames
        if error.kind == "interrupted":
            return dataclasses.replace(error, frames=frames)
        return RankError("interrupted", "KeyboardInterrupt", "", frames)


async def _answer(future: Future[T]) -> T:
    return await future
