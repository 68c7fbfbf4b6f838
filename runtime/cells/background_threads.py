"""Work beside the main thread that may never end: it runs on a thread of its own, with a time limit for the caller.

For completion and inspection, which access the user's objects: an attribute may be a property that hangs, and a thread
cannot be ended from outside.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class BackgroundThreads:
    """Runs work on separate threads, at most `most` at once; hanging ones count until they return."""

    def __init__(self, name: str, most: int = 4) -> None:
        self._name = name
        self._free = threading.Semaphore(most)

    def run(self, work: Callable[[], T], within: float) -> T:
        """Return the value of the work, or raise its error. TimeoutError after `within` seconds, or if all hang."""
        if not self._free.acquire(blocking=False):
            raise TimeoutError(f"all threads for {self._name} are busy with earlier requests")
        task: _BackgroundTask[T] = _BackgroundTask(work, self._free.release)
        thread = threading.Thread(target=task.run, name=f"meshbook {self._name}", daemon=True)
        thread.pydev_do_not_trace = True  # type: ignore[attr-defined]
        thread.start()
        if not task.done.wait(within):
            raise TimeoutError(f"{self._name} took longer than {within:g} s")
        return task.outcome()


class _BackgroundTask(Generic[T]):
    """Work, and its outcome once it is `done`."""

    def __init__(self, work: Callable[[], T], end: Callable[[], object]) -> None:
        self._work = work
        self._end = end
        self.done = threading.Event()
        self._value: T
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:  # raised in the waiting thread
            self._error = error
        finally:
            self._end()
            self.done.set()

    def outcome(self) -> T:
        if self._error is not None:
            raise self._error
        return self._value
