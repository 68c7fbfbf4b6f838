"""What is known of one running cell, and how events of other threads reach it.

Receiving threads append events; the loop of the cell handles them, and is the only one to change the state. So neither
has a lock. Text is no event: it is stored where it comes (`printing`), so that a rank that writes too much waits there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping

import msgspec

from meshbook.runtime.cells.outcome import CellOutcome, RankError

Event = Callable[[], object]


class CellState:
    """Which ranks have not answered, and how the others ended. Written by the cell alone; any thread may copy it."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self.silent = set(ranks)  # ranks without an outcome
        self.outcomes: dict[int, CellOutcome] = {}
        self.failed: list[int] = []  # in the order in which they failed

    def note(self, rank: int, outcome: CellOutcome) -> None:
        """A rank has an outcome: it has answered, or will not."""
        self.outcomes[rank] = outcome
        self.silent.discard(rank)
        if outcome.error is not None:
            self.failed.append(rank)

    def replace_errors(self, errors: Mapping[int, RankError]) -> None:
        """More is known of why these ranks have failed."""
        for rank, error in errors.items():
            self.outcomes[rank] = msgspec.structs.replace(self.outcomes[rank], error=error)

    @property
    def errors(self) -> dict[int, RankError]:
        """The error of each rank that has failed."""
        return {rank: outcome.error for rank, outcome in self.outcomes.items() if outcome.error is not None}


class CellInbox:
    """The events of one cell. It is bounded by the ranks: each answers once, and asks one question at a time.

    An event runs in the loop. After `close` it runs on the thread that puts it, since the loop may be gone.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._is_rung = False
        self.is_closed = False

    def put(self, event: Event, *, urgent: bool = True) -> None:
        """Append an event, from any thread. One that is not urgent waits until the loop wakes for another reason."""
        self._events.append(event)
        # After the append: `close` sets the flag first, and then handles what is there.
        if self.is_closed:
            self.handle()
        elif urgent:
            self.wake()

    def wake(self) -> None:
        """Wake the loop, from any thread."""
        if not self._is_rung:
            self._is_rung = True
            with contextlib.suppress(RuntimeError):  # the loop has just been closed, and the cell with it
                self._loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        self._is_rung = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def handle(self) -> None:
        """Run all events that are there."""
        while True:
            try:
                event = self._events.popleft()
            except IndexError:
                return
            event()

    async def wait(self, seconds: float) -> None:
        """Wait for `wake`, or for so many seconds."""
        if self._events:
            return
        self._waiter = self._loop.create_future()
        alarm = self._loop.call_later(seconds, self._ring)
        try:
            await self._waiter
        finally:
            alarm.cancel()
            self._waiter = None

    def close(self) -> None:
        """The cell has ended: handle what is there, and from now on each event at once."""
        self.is_closed = True
        self.handle()
