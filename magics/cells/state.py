"""The state of one running cell, and the inbox through which other threads pass events to it.

Receiving threads append events. The loop of the cell handles them, and only that loop changes the state, so neither
needs a lock. Text is not an event: `OutputCollector` stores it on the thread that receives it, so a rank that writes
too much blocks there.
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
    """The silent ranks and the outcomes of the others. Only the cell's loop writes it; any thread may copy it."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self.silent = set(ranks)  # ranks without an outcome
        self.outcomes: dict[int, CellOutcome] = {}
        self.failed: list[int] = []  # in the order in which they failed

    def note(self, rank: int, outcome: CellOutcome) -> None:
        """Record the outcome of a rank: its answer, or the error that stands for a lost answer."""
        self.outcomes[rank] = outcome
        self.silent.discard(rank)
        if outcome.error is not None:
            self.failed.append(rank)

    def replace_errors(self, errors: Mapping[int, RankError]) -> None:
        """Replace the errors of failed ranks by more exact ones."""
        for rank, error in errors.items():
            self.outcomes[rank] = msgspec.structs.replace(self.outcomes[rank], error=error)

    @property
    def errors(self) -> dict[int, RankError]:
        """The error of each rank that has failed."""
        return {rank: outcome.error for rank, outcome in self.outcomes.items() if outcome.error is not None}


class CellInbox:
    """The queue of one cell's events. Its length is bounded: each rank answers once, and has one open prompt at a time.

    An event runs in the loop. After `close` it runs on the thread that puts it, since the loop may be gone.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._is_rung = False
        self.is_closed = False

    def put(self, event: Event, *, urgent: bool = True) -> None:
        """Append an event, from any thread. An event that is not urgent does not wake the loop."""
        self._events.append(event)
        # After the append: `close` sets the flag first, then handles the events in the queue.
        if self.is_closed:
            self.handle()
        elif urgent:
            self.wake()

    def wake(self) -> None:
        """Wake the loop, from any thread."""
        if not self._is_rung:
            self._is_rung = True
            with contextlib.suppress(RuntimeError):  # the loop was just closed, and the cell with it
                self._loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        self._is_rung = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def handle(self) -> None:
        """Run all events in the queue."""
        while True:
            try:
                event = self._events.popleft()
            except IndexError:
                return
            event()

    async def wait(self, seconds: float) -> None:
        """Wait for `wake`, at most this many seconds."""
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
        """Handle the remaining events. From now on, `put` runs each event at once."""
        self.is_closed = True
        self.handle()
