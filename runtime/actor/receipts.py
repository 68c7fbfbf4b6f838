"""`Receipt`: whether a caller receives the failure that ends a call, or drops the call's future unread."""

from __future__ import annotations

import queue
import weakref
from typing import Any


class Receipt:
    """The receipt of one call to one or several ranks of an actor. Futures record here that they have raised the error.

    Finalizers of futures call `_notify`, so it only appends to a queue.
    """

    def __init__(self, actor: str) -> None:
        self.actor = actor
        self.is_read = False
        self._watchers: list[queue.SimpleQueue[Any]] = []
        self._futures: list[weakref.ref[Any]] = []

    @property
    def is_pending(self) -> bool:
        """Whether no caller has received the error yet, and one still can."""
        return not self.is_read and any(future() is not None for future in self._futures)

    def follow(self, future: Any) -> None:
        """Add a future that raises the same error."""
        self._futures.append(weakref.ref(future, self._notify))

    def note_read(self) -> None:
        """Record that a future has raised the error in a caller's code."""
        self.is_read = True
        self._notify()

    def watch(self, changes: queue.SimpleQueue[Any]) -> None:
        """Put this receipt into the queue now and after each change."""
        self._watchers.append(changes)
        changes.put(self)

    def _notify(self, future: object = None) -> None:
        for changes in self._watchers:
            changes.put(self)
