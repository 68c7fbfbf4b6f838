"""How far a transfer is, for a user who wants to follow it."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

Progress = Callable[[int, int], object]  # bytes that are moved so far, and in all
INTERVAL = 0.1  # seconds between two calls, at least


class TransferProgress:
    """Tells of bytes as they are moved: now and then, and at the end. Called by the thread that moves them."""

    def __init__(self, tell: Progress, total: int) -> None:
        self._tell = tell
        self._total = total
        self._done = 0
        self._next = 0.0  # so the first piece is told of

    def moved(self, count: int) -> None:
        """So many more. What the user's function raises is raised here, and ends the transfer."""
        self._done = min(self._done + count, self._total)  # a way that fails half-way leaves it all to the next one
        is_last = self._done == self._total
        if is_last or monotonic() >= self._next:
            self._next = monotonic() + INTERVAL
            self._tell(self._done, self._total)
