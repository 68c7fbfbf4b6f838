"""A pool of threads for slow work, started on demand.

Not a ThreadPoolExecutor: it blocks the interpreter's exit until all work is done, and a transfer may be stuck.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)

Work = Callable[[], object]


class Threads:
    """At most `most` threads, which run work in the order in which it was added."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards the next three
        self._idle = 0  # waiting threads, less the work that waits for them
        self._count = 0
        self._closed = False

    def do(self, work: Work) -> None:
        """Queue this work; ignored after `close`."""
        with self._lock:
            if self._closed:
                return
            self._work.put(work)
            self._idle -= 1
            is_short = self._idle < 0 and self._count < self._most
            if is_short:
                self._count += 1
                self._idle += 1
        if is_short:
            self._start()

    def _start(self) -> None:
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        except RuntimeError:  # the process has too many threads
            with self._lock:
                self._count -= 1
                self._idle -= 1
                is_in_vain = not self._count  # otherwise one of the existing threads runs it
            if is_in_vain:
                raise

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception:  # the thread must survive for other work
                logger.exception("work on a thread failed")
            del work  # release what the work references while the thread waits
            with self._lock:
                self._idle += 1

    def close(self) -> None:
        """Stop each thread once it has finished its current work."""
        with self._lock:
            self._closed = True
            for _ in range(self._count):
                self._work.put(None)
