"""Threads for what takes a while, made as they are needed.

Not a ThreadPoolExecutor: that lets no interpreter exit before everything is done, and a transfer may be stuck.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)

Work = Callable[[], object]


class Threads:
    """So many threads at most, which do what they are given, in the order in which it came."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards the next three
        self._idle = 0  # threads that wait, less the work that waits for them
        self._count = 0
        self._closed = False

    def do(self, work: Work) -> None:
        """Have it done soon; dropped after `close`."""
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
        except RuntimeError:  # there are too many already, of whomever
            with self._lock:
                self._count -= 1
                self._idle -= 1
                is_in_vain = not self._count  # else one of those that there are does it
            if is_in_vain:
                raise

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception:  # it must not end the thread, which others count on
                logger.exception("something that was given to a thread failed")
            del work  # what it keeps is not kept while the thread waits
            with self._lock:
                self._idle += 1

    def close(self) -> None:
        """Let the threads end, each once it is done with what it is at."""
        with self._lock:
            self._closed = True
            for _ in range(self._count):
                self._work.put(None)
