"""Progress reports of a transfer to its user."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

Progress = Callable[[int, int], object]  # bytes moved so far, and the total
INTERVAL = 0.1  # minimum seconds between two calls


class TransferProgress:
    """Calls `report` at intervals and at the end, on the thread that moves the bytes."""

    def __init__(self, report: Progress, total: int) -> None:
        self._report = report
        self._total = total
        self._done = 0
        self._next = 0.0  # so the first piece is reported

    def moved(self, count: int) -> None:
        """Add `count` moved bytes. An exception of the user's function propagates and ends the transfer."""
        # A backend that fails half-way leaves all bytes to the next one.
        self._done = min(self._done + count, self._total)
        is_last = self._done == self._total
        if is_last or monotonic() >= self._next:
            self._next = monotonic() + INTERVAL
            self._report(self._done, self._total)
