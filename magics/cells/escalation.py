"""Decides when a cell that is to end is interrupted, aborted or killed, and on which ranks.

    a person                      interrupt -> again, or no answer for 5 s: abort -> again: kill
    an error, or a time limit     interrupt -> no answer for 1 s: abort
    after the last grace period   leave: the cell ends without the ranks that do not answer

An abort without a person's request is only for ranks in a collective; computing ranks keep their groups. A rank that is
still silent half-way to the end is aborted in any case: it may wait where no frame shows a collective.

Pure: it returns the actions that are due, given events and times. `supervision` carries them out.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum


class EscalationStep(Enum):
    """The steps, in this order, each for the ranks that have not answered the one before."""

    INTERRUPT = 1  # KeyboardInterrupt in the cell's code
    ABORT = 2  # break the process groups, so that ranks that wait in a collective return
    KILL = 3  # end the process, and start it again
    LEAVE = 4  # end the cell without these ranks, which are busy with it


@dataclass(frozen=True, slots=True)
class EscalationAction:
    """A step that is due now. An abort that is not `forced` is only for ranks in a collective."""

    step: EscalationStep
    ranks: tuple[int, ...]
    forced: bool = False


@dataclass(frozen=True, slots=True)
class GracePeriods:
    """Seconds between steps."""

    grace: float = 0.5  # after a first error, for the other ranks to raise theirs
    after_interrupt: float = 5.0  # after a person's interrupt: the cleanup of user code may take that long
    after_error: float = 1.0  # after an interrupt because another rank has raised, or by a time limit
    after_death: float = 0.3  # the same if that rank died: no rank can wait for it
    end: float = 5.0  # after an abort or a kill
    end_after_death: float = 1.0
    kill: float = 1.0  # at least, from an abort to a kill: a killed rank loses its state


GRACE_PERIODS = GracePeriods()


class EscalationPolicy:
    """The escalation of one cell. `silent` are the ranks that have not answered, as the cell keeps them.

    `stops_on_error`: whether the error of a rank ends the others.
    """

    def __init__(self, silent: Collection[int], *, stops_on_error: bool, periods: GracePeriods = GRACE_PERIODS) -> None:
        self._silent = silent
        self._stops_on_error = stops_on_error
        self._periods = periods
        self.is_held = False  # a person is in the debugger: meanwhile the error of another rank ends nothing
        self._presses = 0
        self._is_timed_out = False
        self._has_death = False
        self._due: dict[EscalationStep, float] = {}
        self._taken: dict[EscalationStep, float] = {}

    @property
    def is_wanted(self) -> bool:
        """Whether a person or a time limit has ended the cell, rather than the error of a rank."""
        return self._presses > 0

    @property
    def advice(self) -> str:
        """A hint for a person: the effect of the next interrupt."""
        return ("", "interrupt again to break process groups", "interrupt again to kill ranks that do not answer")[
            min(self._presses, 2)
        ]

    def failed(self, now: float, *, died: bool = False) -> None:
        """Record that a rank has answered with an error, or never will answer."""
        if self._stops_on_error and not self.is_wanted:
            self._has_death = self._has_death or died
            self._plan(EscalationStep.INTERRUPT, now + (0.0 if died else self._periods.grace))
            if died and EscalationStep.INTERRUPT in self._taken:
                self._plan(EscalationStep.ABORT, now + self._periods.after_death)

    def press(self, now: float) -> None:
        """Record an interrupt by a person; each one adds force."""
        self._presses += 1
        if self._presses == 1:
            self._due.clear()  # times that are due because of an error are too soon for a person's cleanup
            self._taken.clear()
            self._plan(EscalationStep.INTERRUPT, now)
        elif self._presses == 2:
            self._taken.pop(EscalationStep.ABORT, None)  # drop an abort that was not forced
            self._due.pop(EscalationStep.LEAVE, None)
            self._taken.pop(EscalationStep.INTERRUPT, None)  # user code may swallow an unexpected interrupt
            self._plan(EscalationStep.INTERRUPT, now)
            self._plan(EscalationStep.ABORT, now)
        else:
            self._plan(EscalationStep.KILL, max(now, self._taken.get(EscalationStep.ABORT, now) + self._periods.kill))

    def time_is_up(self, now: float) -> None:
        """Record that the time limit of the cell has passed."""
        self._is_timed_out = True
        self.press(now)

    def due(self, now: float) -> list[EscalationAction]:
        """Return the actions that are due now, each once."""
        if self.next_at > now:
            return []
        orders = []
        for step in EscalationStep:
            if self._due.get(step, math.inf) <= now and self._silent:
                del self._due[step]
                forced = self._presses > 1 or (step is EscalationStep.ABORT and step in self._taken)
                self._take(step, now, forced)
                orders.append(EscalationAction(step, tuple(sorted(self._silent)), forced))
        return orders

    @property
    def next_at(self) -> float:
        """When an action may be due; infinite if none is planned."""
        if self.is_held and not self.is_wanted:
            return math.inf
        return min(self._due.values(), default=math.inf)

    def _plan(self, step: EscalationStep, at: float) -> None:
        if step not in self._taken:
            self._due[step] = min(at, self._due.get(step, math.inf))

    def _take(self, step: EscalationStep, now: float, forced: bool) -> None:
        self._taken[step] = now
        follows_death = self._has_death and not self.is_wanted
        end = now + (self._periods.end_after_death if follows_death else self._periods.end)
        if step is EscalationStep.INTERRUPT:
            self._plan(EscalationStep.ABORT, now + self._until_abort())
        elif step is EscalationStep.ABORT:
            self._plan(EscalationStep.LEAVE, end)
            if not forced:
                self._due[EscalationStep.ABORT] = (now + end) / 2
        elif step is EscalationStep.KILL:
            self._due[EscalationStep.LEAVE] = end

    def _until_abort(self) -> float:
        if self._has_death and not self.is_wanted:
            return self._periods.after_death
        return self._periods.after_interrupt if self.is_wanted and not self._is_timed_out else self._periods.after_error
