"""What is to happen later in a process: one thread, started by the first who asks, that calls back in order of time."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import TypeAlias

logger = logging.getLogger(__name__)

Later: TypeAlias = Callable[[float, Callable[[], object]], None]  # call this back after so many seconds


class Clock:
    """Calls back after so many seconds. What it calls must not wait. `close` drops what is still to come."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards all of these
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._thread: threading.Thread | None = None
        self._closed = False

    def later(self, seconds: float, callback: Callable[[], object]) -> None:
        with self._changed:
            if self._closed:
                return
            heapq.heappush(self._due, (time.monotonic() + seconds, next(self._order), callback))
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="meshbook clock", daemon=True)
                # A debugger that stops all threads must not stop the time.
                thread.pydev_do_not_trace = True  # type: ignore[attr-defined]
                thread.start()
                self._thread = thread  # only now: where there are too many threads, whoever comes next tries again
            self._changed.notify()

    def close(self) -> None:
        """Stop, and wait for a callback that is under way; not for one that calls this."""
        with self._changed:
            self._closed = True
            self._due.clear()
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while (callback := self._next()) is not None:
            try:
                callback()
            except Exception:
                logger.exception("something that was due could not be done")

    def _next(self) -> Callable[[], object] | None:
        """What is due next, when it is; None at the end."""
        with self._changed:
            while not self._closed:
                left = self._due[0][0] - time.monotonic() if self._due else None
                if left is not None and left <= 0:
                    return heapq.heappop(self._due)[2]
                # What is due in ages is no error, but the system knows no such time.
                self._changed.wait(None if left is None else min(left, threading.TIMEOUT_MAX))
            return None
