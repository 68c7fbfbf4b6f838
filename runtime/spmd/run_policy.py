"""The course of one run of a script on many ranks: told what happens, it says what to do. No clock and no process.

    begin -> script_ended, process_ended ... -> actions -> is_over -> status

A rank whose script went well leaves at once, as its process would under torchrun, so that others which still wait for
it in a collective hear of it. Rank 0 leaves last: it holds the store at which the others meet. After a failure the
others get a moment, for what they have to say about it, then SIGTERM, then SIGKILL.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass

MOMENT = 0.5  # between the first failure and SIGTERM
INTERRUPT_SECONDS = 5.0  # between Ctrl-C and SIGTERM, which ends those too that are deaf in a collective
TERM_SECONDS = 30.0  # between SIGTERM and SIGKILL: as long as torchrun gives them


@dataclass(frozen=True, slots=True)
class EndRun:
    """How a script ended on one rank: the exit status and, if that is not 0, why and where."""

    code: int
    text: str = ""
    place: str = ""
    interrupted: bool = False
    died: bool = False  # the process ended before the script did


@dataclass(frozen=True, slots=True)
class Dismiss:
    """Let the processes of these ranks leave."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Signal:
    """Send a signal to the processes of these ranks."""

    number: int
    ranks: tuple[int, ...]


Action = Dismiss | Signal


class RunPolicy:
    """One run. Times are seconds of any clock that does not go back."""

    def __init__(self, size: int) -> None:
        self.signal = 0  # the first one that the user sent
        self.endings: dict[int, EndRun] = {}  # by rank, in the order in which they came
        self.stopped: set[int] = set()  # the ranks that we ended
        self.size = size
        self._present = set(range(size))  # those whose process lives
        self._working = set(range(size))  # those whose script has not ended
        self._dismissed: set[int] = set()
        self._begun = False
        self._is_stopping = False
        self._plan: list[tuple[float, int]] = []  # (when, signal), in order of time

    # -- what happens ----------------------------------------------------------

    def begin(self) -> bool:
        """All ranks can be reached: whether the scripts are to start, for the user may want no more of it."""
        self._begun = not self._plan and not self._is_stopping
        return self._begun

    def script_ended(self, rank: int, ending: EndRun, now: float) -> None:
        """A script has ended; its process is still there."""
        self._note(rank, ending, now)

    def process_ended(self, rank: int, ending: EndRun, now: float) -> None:
        """A process has ended, whether or not its script had."""
        self._present.discard(rank)
        if rank in self._working or ending.code:
            self._note(rank, ending, now)

    def signalled(self, number: int, now: float) -> None:
        """The user wants the run to end: SIGINT or SIGTERM to this process. The second time, at once."""
        if self.signal or not self._begun:
            self._plan = [(now, signal.SIGKILL)]
        elif number == signal.SIGINT:
            end = now + INTERRUPT_SECONDS
            self._plan = [(now, number), (end, signal.SIGTERM), (end + TERM_SECONDS, signal.SIGKILL)]
        else:
            self._plan = [(now, signal.SIGTERM), (now + TERM_SECONDS, signal.SIGKILL)]
        self.signal = self.signal or number

    def _note(self, rank: int, ending: EndRun, now: float) -> None:
        self._working.discard(rank)
        before = self.endings.pop(rank, EndRun(0))
        if self._is_stopping and ending.code and not before.code:
            self.stopped.add(rank)
        self.endings[rank] = before if before.code else ending
        if ending.code and not self._plan and not self._is_stopping:
            end = now + MOMENT
            self._plan = [(end, signal.SIGTERM), (end + TERM_SECONDS, signal.SIGKILL)]

    # -- what to do --------------------------------------------------------------

    def actions(self, now: float) -> list[Action]:
        """What to do now; each thing is said once."""
        found: list[Action] = []
        while self._plan and self._plan[0][0] <= now:
            _, number = self._plan.pop(0)
            self._is_stopping = True
            ranks = self._present if number == signal.SIGKILL else self._present & self._working
            found += [Signal(number, _sorted(ranks))] if ranks else []
        if leaving := {rank for rank in self._present - self._working - self._dismissed if self._may_leave(rank)}:
            self._dismissed |= leaving
            found.append(Dismiss(_sorted(leaving)))
        return found

    def _may_leave(self, rank: int) -> bool:
        if self._is_stopping:
            return True
        if rank == 0:
            return self._present == {0}
        # One that failed stays for the moment that the others have: its end would be an error to them, and they would
        # tell of that.
        return not (self.endings[rank].code and self._working)

    @property
    def deadline(self) -> float | None:
        """When to ask for actions again, if nothing happens before."""
        return self._plan[0][0] if self._plan else None

    @property
    def is_over(self) -> bool:
        """Whether all processes have ended."""
        return not self._present

    # -- how it ended --------------------------------------------------------------

    @property
    def failures(self) -> dict[int, EndRun]:
        """The ranks that failed by themselves: dead processes first, then in the order of time."""
        failed = [(rank, end) for rank, end in self.endings.items() if end.code and rank not in self.stopped]
        return dict(sorted(failed, key=lambda pair: not pair[1].died))  # others may fall before a death is known

    @property
    def status(self) -> int:
        """The exit status: 0, the code that all failed ranks share, or 1; after a signal what shells make of it."""
        if self.signal:
            return 128 + self.signal
        codes = {ending.code for ending in self.failures.values()}
        return codes.pop() if len(codes) == 1 else int(bool(codes))


def _sorted(ranks: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(ranks))
