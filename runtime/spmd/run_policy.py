"""The policy of one run of a script on many ranks: events in, actions out. No clock and no process.

    begin -> script_ended, process_ended ... -> actions -> is_over -> status

A rank whose script succeeded leaves at once, as its process would under torchrun, so that ranks that still wait for it
in a collective get an error. Rank 0 leaves last: it holds the store of the rendezvous. After a failure the other ranks
get a moment to report their own errors, then SIGTERM, then SIGKILL.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass

MOMENT = 0.5  # between the first failure and SIGTERM
INTERRUPT_SECONDS = 5.0  # between Ctrl-C and SIGTERM, which also ends ranks that ignore SIGINT in a collective
TERM_SECONDS = 30.0  # between SIGTERM and SIGKILL, as under torchrun


@dataclass(frozen=True, slots=True)
class EndRun:
    """The end of a script on one rank: the exit status and, if that is not 0, the reason and the place."""

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
    """One run. Times are in seconds of any monotonic clock."""

    def __init__(self, size: int) -> None:
        self.signal = 0  # the first one that the user sent
        self.endings: dict[int, EndRun] = {}  # by rank, in the order in which they came
        self.stopped: set[int] = set()  # the ranks that this policy ended
        self.size = size
        self._present = set(range(size))  # those whose process runs
        self._working = set(range(size))  # those whose script has not ended
        self._dismissed: set[int] = set()
        self._begun = False
        self._is_stopping = False
        self._plan: list[tuple[float, int]] = []  # (when, signal), in order of time

    # -- events ------------------------------------------------------------------

    def begin(self) -> bool:
        """Note that all ranks are reachable; return whether to start the scripts: the user may have cancelled."""
        self._begun = not self._plan and not self._is_stopping
        return self._begun

    def script_ended(self, rank: int, ending: EndRun, now: float) -> None:
        """Handle the end of a script; its process still runs."""
        self._note(rank, ending, now)

    def process_ended(self, rank: int, ending: EndRun, now: float) -> None:
        """Handle the end of a process, whether or not its script had ended."""
        self._present.discard(rank)
        if rank in self._working or ending.code:
            self._note(rank, ending, now)

    def signalled(self, number: int, now: float) -> None:
        """Handle SIGINT or SIGTERM to this process: end the run; the second time, at once."""
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

    # -- actions -----------------------------------------------------------------

    def actions(self, now: float) -> list[Action]:
        """Return the actions due now; each is returned once."""
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
        # A failed rank stays for the moment that the others have: its end would be an error to them, which they would
        # report.
        return not (self.endings[rank].code and self._working)

    @property
    def deadline(self) -> float | None:
        """When to call `actions` again, if no event comes before."""
        return self._plan[0][0] if self._plan else None

    @property
    def is_over(self) -> bool:
        """Whether all processes have ended."""
        return not self._present

    # -- results -------------------------------------------------------------------

    @property
    def failures(self) -> dict[int, EndRun]:
        """The ranks that failed by themselves: dead processes first, then in the order of time."""
        failed = [(rank, end) for rank, end in self.endings.items() if end.code and rank not in self.stopped]
        return dict(sorted(failed, key=lambda pair: not pair[1].died))  # other ranks may fail before a death is known

    @property
    def status(self) -> int:
        """The exit status: 0, the code that all failed ranks share, or 1; after a signal 128 plus its number."""
        if self.signal:
            return 128 + self.signal
        codes = {ending.code for ending in self.failures.values()}
        return codes.pop() if len(codes) == 1 else int(bool(codes))


def _sorted(ranks: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(ranks))
