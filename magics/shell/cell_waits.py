"""What an ordinary cell waits for: after a few seconds, it names the endpoint, the ranks, and the cell of the call.

    waits for trainer.step() on ranks 0-3, called in cell 12

That may be another endpoint than the one whose answer the cell awaits: an actor runs one message at a time.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import get_ident
from typing import Any

from meshbook.runtime.actor.context import spawner_of
from meshbook.runtime.actor.future import HOW_TO_CANCEL, Future
from meshbook.runtime.clock import monotonic
from meshbook.runtime.formats import name_ranks
from meshbook.runtime.node.call_table import PendingCall, Unanswered, ask_places, format_place
from meshbook.runtime.node.execution import CallPlace
from meshbook.runtime.node.node import Node

NOTED_AFTER = 3.0  # seconds


@dataclass(eq=False, slots=True)
class _Wait:
    future: Future[Any]
    since: float
    is_noted: bool = False


class CellWaits:
    """The waits of one cell, on the thread that creates this. `show` publishes a line in the cell, from any thread.

    The I/O thread looks at the waits. At most one timer is due at a time, whatever the number of calls.
    """

    def __init__(self, node: Node, show: Callable[[str], object], clock: Callable[[], float] = monotonic) -> None:
        self._node = node
        self._show = show
        self._clock = clock
        self._thread = get_ident()
        self._waits: dict[int, _Wait] = {}  # by task; a cell that does not await has one task at most
        self._shown: set[str] = set()
        self._has_timer = False
        self.cancelled: list[str] = []  # the calls whose waits were cancelled

    # -- on the thread of the cell (Waiter) ----------------------------------

    def begin_wait(self, future: Future[Any], *, blocking: bool, bounded: bool) -> bool:
        if get_ident() != self._thread:
            return False
        self._waits[_task()] = _Wait(future, self._clock())
        if not self._has_timer:
            self._set_timer(NOTED_AFTER)
        return True

    def end_wait(self) -> None:
        wait = self._waits.pop(_task(), None)
        if wait is not None and isinstance(sys.exc_info()[1], asyncio.CancelledError):
            self.cancelled += filter(None, [wait.future.describe()])

    def format_cancelled(self) -> str:
        """Return a line for the calls that continue after an interrupt of the cell, or ""."""
        verb = "continues" if len(self.cancelled) == 1 else "continue"
        return f"{', '.join(self.cancelled)} {verb}; {HOW_TO_CANCEL}\n"

    # -- on the I/O thread ---------------------------------------------------

    def _set_timer(self, seconds: float) -> None:
        self._has_timer = True
        self._node.loop.call_later(seconds, self._look)

    def _look(self) -> None:
        """Ask where the call of the oldest wait is, if the wait is long enough."""
        self._has_timer = False  # first: a wait that begins meanwhile may set a second timer, but none is missed
        waits = [wait for wait in list(self._waits.values()) if not wait.is_noted]
        if not waits:
            return
        oldest = min(waits, key=lambda wait: wait.since)
        if (left := oldest.since + NOTED_AFTER - self._clock()) > 0:
            self._set_timer(left)
            return
        oldest.is_noted = True
        self._ask(oldest.future)
        if len(waits) > 1:
            self._set_timer(NOTED_AFTER)

    def _ask(self, future: Future[Any]) -> None:
        pending_call: Any = future.pending_call
        silent = pending_call.unanswered() if hasattr(pending_call, "unanswered") else []
        if silent and not (isinstance(pending_call, PendingCall) and not is_of_user(silent[0][1].actor, self._node)):
            ask_places(self._node.calls, silent, lambda places: self._note(future.describe(), silent, places))

    def _note(self, called: str, silent: Sequence[Unanswered], places: Sequence[Future[CallPlace]]) -> None:
        for line in format_waits(called, silent, places):
            if line not in self._shown:  # in a loop, each step waits for the same
                self._shown.add(line)
                self._show(f"{line}\n")


def is_of_user(key: str, node: Node) -> bool:
    """Whether the actor of this key is a user's: the runtime's own calls show their progress themselves."""
    return bool(spawner_of(key)) and key not in node.recorder.quiet


def format_waits(called: str, silent: Sequence[Unanswered], places: Sequence[Future[CallPlace]]) -> list[str]:
    """Return a line for each endpoint that the ranks run, and for ranks that run none. `called` is the awaited call."""
    ranks_of: dict[str, list[int]] = {}
    for (_, target, _), place in zip(silent, places, strict=True):
        answer = place.get() if place.done() and place.exception() is None else None
        running = answer.running if answer is not None else None
        if running is not None:
            line = f"waits for {running.actor}.{running.endpoint}() on {{}}{running.called_in}"
        else:
            line = f"waits for {called.partition(' on ')[0]} on {{}}: {format_place(place)}"
        ranks_of.setdefault(line, []).append(target.rank)
    return [line.format(name_ranks(ranks)) for line, ranks in ranks_of.items()]


def _task() -> int:
    return id(asyncio.current_task()) if asyncio._get_running_loop() is not None else 0
