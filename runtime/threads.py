"""Tools for threads: those that must not block, one-shot events, queues and tasks with time limits, dict snapshots;
and calls of listeners, in which an exception does not affect the others.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, ItemsView, Iterable, Sized
from typing import Generic, TypeVar

from meshbook.runtime.interrupts import holds_interrupts

logger = logging.getLogger(__name__)
T = TypeVar("T")
SIGNAL_CHECK_SECONDS = 1.0  # after this time the main thread interrupts a wait to notice a Ctrl-C; later less often
LONGEST_SIGNAL_CHECK_SECONDS = 8.0

# The I/O threads of this process. A user's finalizer can run on them. A wait there would never end, since the same
# thread delivers the awaited message.
IO_THREADS: set[int] = set()


def may_block() -> bool:
    """Whether the calling thread may wait for messages."""
    return threading.get_ident() not in IO_THREADS


class Latch:
    """A one-shot event that costs one lock: any thread releases it, one thread waits for it."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._lock.acquire()

    def release(self) -> None:
        """End the wait; may be called again."""
        try:
            self._lock.release()
        except RuntimeError:
            return  # released before

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until `release`; return False on timeout. On the main thread Ctrl-C raises here.

        A signal that arrives between Python's last check for signals and the wait itself is noticed only when the wait
        ends. Only the main thread handles signals, so it interrupts its wait now and then.
        """
        acquire = self._lock.acquire
        if threading.current_thread() is not threading.main_thread():
            return acquire(timeout=-1 if seconds is None else min(seconds, threading.TIMEOUT_MAX))
        left = math.inf if seconds is None else seconds
        pause = SIGNAL_CHECK_SECONDS
        while left > pause:
            if acquire(timeout=pause):
                return True
            left -= pause
            pause = min(2 * pause, LONGEST_SIGNAL_CHECK_SECONDS)
        return acquire(timeout=left)


class HighWaterMark:
    """Makes senders wait while a queue is longer than its limit.

    An I/O thread never waits here, and no operation that changes a run (`runtime.interrupts`): it sends few messages.
    """

    __slots__ = ("_items", "_waiting", "limit")

    def __init__(self, items: Sized, limit: int) -> None:
        self._items = items
        self.limit = limit
        self._waiting: deque[Latch] = deque()

    def wait(self, is_over: Callable[[], bool]) -> None:
        """Wait until the queue is short enough, or `is_over`."""
        while len(self._items) > self.limit and not is_over() and may_block() and not holds_interrupts():
            latch = Latch()
            # Add the latch, then check again: otherwise a `notify` between check and wait would be missed.
            self._waiting.append(latch)
            if len(self._items) > self.limit and not is_over():
                latch.wait()

    def notify(self) -> None:
        """Wake the waiting senders; called after items were taken out."""
        if self._waiting and len(self._items) <= self.limit:
            self.wake_all()

    def wake_all(self) -> None:
        """Wake the waiting senders regardless of the length; each checks again."""
        while self._waiting:
            try:
                self._waiting.popleft().release()
            except IndexError:
                return


def get_within(items: queue.SimpleQueue[T], seconds: float) -> T:
    """Return the next item; raise queue.Empty on timeout. Only one thread may take from this queue.

    Python's own `get` may wait forever (3.11 to 3.13). If its time is over when it has consumed the stale wakeup of an
    earlier `put`, it continues with the remaining time, which is negative and means no limit. A `get_nowait` that fails
    consumes the stale wakeup before.
    """
    try:
        return items.get_nowait()
    except queue.Empty:
        return items.get(timeout=max(0.0, seconds))


K = TypeVar("K")
V = TypeVar("V")


def items_of(table: dict[K, V]) -> ItemsView[K, V]:
    """Return the keys and values of a dict that other threads may change meanwhile, without a lock.

    `list(table.items())` makes a tuple of each. Before Python 3.12 that may start a garbage collection, in which
    finalizers run and other threads are scheduled: "dictionary changed size during iteration". A copy is made in one
    step.
    """
    return table.copy().items()


class BackgroundThreads:
    """Runs work on separate threads, at most `most` at once; hanging ones count until they return.

    For work that may never end, such as completion and inspection, which access the user's objects: an attribute may be
    a property that hangs, and a thread cannot be ended from outside.
    """

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
        try:
            thread.start()
        except RuntimeError:  # too many threads
            self._free.release()
            raise
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


def notify_all(listeners: Iterable[Callable[[T], object]], event: T) -> None:
    """Call each listener with the event, as `notify` does."""
    for listener in list(listeners):  # a copy, since a listener may remove itself
        notify(listener, event)


def notify(listener: Callable[[T], object], event: T) -> None:
    """Call a listener with the event, and log an exception so that the caller can continue."""
    try:
        listener(event)
    except Exception:
        logger.exception("a listener raised for %s", event)
