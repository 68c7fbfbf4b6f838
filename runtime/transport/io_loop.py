"""The I/O thread: one per node. It receives, runs timers, and finishes sends that would block.

    wait in epoll -> handlers of ready descriptors -> callbacks -> due timers -> wait

Handlers, callbacks and timers never wait. `call_soon`, `call_later` and `is_current` may be called from any thread,
also by finalizers and signal handlers: they append to a queue and take no lock.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import mmap
import os
import select
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar

from meshbook.runtime.clock import monotonic
from meshbook.runtime.threads import IO_THREADS, Latch, items_of

logger = logging.getLogger(__name__)

IN: Final = select.EPOLLIN
OUT: Final = select.EPOLLOUT
BUFFER_BYTES: Final = 256 << 10
LONGEST_WAIT: Final = 1e6  # seconds; the system counts milliseconds in 32 bits
FEW_TIMERS: Final = 64  # cancelled ones among so many are not removed before they are due
T = TypeVar("T")
Handler = Callable[[int], object]  # gets the epoll flags of its descriptor
Callback = Callable[[], object]
_loops: weakref.WeakSet[IoLoop] = weakref.WeakSet()


class Timer:
    """A callback that `call_later` runs once."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callback) -> None:
        self.callback: Callback | None = callback  # None once it has run or is cancelled

    def cancel(self) -> None:
        """Drop the callback, from any thread; no effect if it has run."""
        self.callback = None

    def run(self) -> None:
        """Run the callback unless it is cancelled."""
        callback, self.callback = self.callback, None
        if callback is not None:
            callback()


CallLater: TypeAlias = Callable[[float, Callback], Timer]  # `IoLoop.call_later`


class _Bell:
    """Wakes the I/O thread. The last reference closes it: another thread may be about to ring when the loop ends."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def ring(self) -> None:
        os.eventfd_write(self.descriptor, 1)

    def clear(self, flags: int) -> None:
        os.eventfd_read(self.descriptor)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


class IoLoop:
    """An epoll loop on a thread of its own. `close` is idempotent and joins the thread."""

    def __init__(self, name: str = "meshbook io") -> None:
        self._epoll = select.epoll()
        self._bell: _Bell | None = _Bell()
        self._handlers: dict[int, Handler] = {}
        self._callbacks: deque[Callback] = deque()
        self.when_unusable: Callback = _nothing  # called before the error is raised if a descriptor of the loop fails
        self._kept_open: dict[int, str] = {}  # what these descriptors refer to until they are closed here
        self._timers: list[tuple[float, int, Timer]] = []  # a heap, for the I/O thread only
        self._most_timers = FEW_TIMERS  # when there are more, the cancelled ones are removed
        self._new_timers: deque[tuple[float, int, Timer]] = deque()
        self._order = itertools.count()
        self._asleep = 0  # the number of the wait that must be ended for new items, or 0
        self._wakes_at = math.inf  # when the current wait times out
        self._not_started = [None]  # a token: the thread that pops it starts the loop
        self._is_closing = False
        self._has_ended = False
        self._ident = 0
        # For handlers to read into; valid during the handler. A mapping takes memory only as it is used.
        self.buffer = memoryview(mmap.mmap(-1, BUFFER_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        self.wakeups = 0  # returns of the thread from its wait
        self.close_in_child: list[Callback] = []  # callbacks that close the descriptors in a forked child
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        # A debugger that stops all threads must not stop the heartbeats of this process.
        self._thread.pydev_do_not_trace = True  # type: ignore[attr-defined]
        self.register(self._bell.descriptor, IN, self._bell.clear)
        self.keep_open(self._epoll.fileno())
        self.keep_open(self._bell.descriptor)
        _loops.add(self)

    def start(self) -> None:
        """Start the thread, unless it was started before."""
        try:
            self._not_started.pop()
        except IndexError:
            return
        self._ident = -1  # from here on `run` goes through the queue
        self._thread.start()

    def close(self) -> None:
        """Run the queued callbacks, end the thread and join it (unless this is the thread itself)."""
        self._is_closing = True
        if self._thread.ident is None:
            self._end()
        else:
            self.call_soon(_nothing)
            if not self.is_current:
                self._thread.join()

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is the I/O thread."""
        return threading.get_ident() == self._ident

    # -- from any thread -----------------------------------------------------------------

    def call_soon(self, callback: Callback) -> None:
        """Run a callback on the I/O thread, in the order of the calls."""
        self._callbacks.append(callback)
        self._wake()
        if self._has_ended:
            self._run_callbacks()

    def call_later(self, seconds: float, callback: Callback) -> Timer:
        """Run a callback on the I/O thread after a delay in seconds, unless the timer is cancelled or the loop ends."""
        due, timer = monotonic() + seconds, Timer(callback)
        self._new_timers.append((due, next(self._order), timer))
        if due < self._wakes_at:
            self._wake()
        return timer

    def run(self, callback: Callable[[], T]) -> T:
        """Run a callback on the I/O thread; return its result or raise its exception.

        Before `start`, after the end, and on the I/O thread itself, the calling thread runs the callback.
        """
        if self._ident == 0 or self._has_ended or self.is_current:
            return callback()
        latch = Latch()
        outcome: list[tuple[Any, BaseException | None]] = []

        def call() -> None:
            try:
                outcome.append((callback(), None))
            except BaseException as error:
                outcome.append((None, error))
            latch.release()

        self.call_soon(call)
        latch.wait()
        value, error = outcome[0]
        if error is not None:
            raise error
        return value  # type: ignore[no-any-return]

    def _wake(self) -> None:
        # The I/O thread sets `_asleep`, then checks its queues; other threads append, then check `_asleep`. So no item
        # is missed, and no system call is needed while the I/O thread is awake, or about to be.
        if (wait := self._asleep) and (bell := self._bell) is not None:
            try:
                bell.ring()
            except OSError:
                self.when_unusable()
                raise
            # Only now, as a Ctrl-C may stop this thread at any point. Each wait has a number: by now the I/O thread may
            # be in the next one, which needs a ring of its own. There is no call between the check and the assignment,
            # and they are one line, so that no trace function runs there either.
            self._asleep = 0 if (present := self._asleep) == wait else present

    # -- descriptors, from the I/O thread (or before `start`) --------------------------------

    def register(self, descriptor: int, flags: int, handler: Handler) -> None:
        """Call the handler whenever the descriptor is ready (level-triggered)."""
        self._handlers[descriptor] = handler
        self._epoll.register(descriptor, flags)

    def unregister(self, descriptor: int) -> None:
        """Stop watching a descriptor; call this before it is closed."""
        if self._handlers.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def keep_open(self, descriptor: int) -> None:
        """Make `has_lost_descriptors` check this descriptor, until `end_keeping`."""
        self._kept_open[descriptor] = _describe(descriptor)

    def end_keeping(self, descriptor: int) -> None:
        """Stop checking a descriptor, which is about to be closed."""
        self._kept_open.pop(descriptor, None)

    def has_lost_descriptors(self) -> bool:
        """Whether other code has closed descriptors of this loop (`os.closerange`): no more messages arrive."""
        lost = [each for each, target in items_of(self._kept_open) if _describe(each) != target]
        return any(each in self._kept_open for each in lost) and not self._is_closing and not self._has_ended

    # -- the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        self._ident = threading.get_ident()
        IO_THREADS.add(self._ident)
        poll, handlers, callbacks, new_timers = self._epoll.poll, self._handlers, self._callbacks, self._new_timers
        try:
            while not self._is_closing:
                timeout = self._run_timers() if new_timers or self._timers else None
                self._asleep = self.wakeups + 1
                if callbacks or new_timers:
                    timeout = 0.0
                try:
                    events = poll(timeout)
                except OSError:
                    self.when_unusable()
                    raise
                self._asleep = 0
                self.wakeups += 1
                for descriptor, flags in events:
                    if (handler := handlers.get(descriptor)) is not None:
                        try:
                            handler(flags)
                        except Exception:
                            # One failed message must not stop the others.
                            logger.exception("a handler of the I/O thread raised")
                if callbacks:
                    self._run_callbacks()
        finally:
            IO_THREADS.discard(self._ident)
            self._end()

    def _run_callbacks(self) -> None:
        for _ in range(len(self._callbacks)):  # callbacks added meanwhile run in the next round
            try:
                callback = self._callbacks.popleft()
            except IndexError:  # after the end, several threads may run callbacks
                return
            _run_safely(callback)

    def _run_timers(self) -> float | None:
        """Run the due timers; return the seconds until the next one."""
        new, timers = self._new_timers, self._timers
        while new:
            heapq.heappush(timers, new.popleft())
        if len(timers) > self._most_timers:
            timers[:] = [each for each in timers if each[2].callback is not None]
            heapq.heapify(timers)
            self._most_timers = max(FEW_TIMERS, 2 * len(timers))
        while timers and (timers[0][2].callback is None or timers[0][0] <= monotonic()):
            _run_safely(heapq.heappop(timers)[2].run)
        self._wakes_at = timers[0][0] if timers else math.inf
        return min(max(0.0, self._wakes_at - monotonic()), LONGEST_WAIT) if timers else None

    def _end(self) -> None:
        if self._has_ended:
            return
        while self._callbacks:
            self._run_callbacks()
        # From here on `call_soon` runs its callback on the calling thread.
        self._has_ended, self._ident = True, 0
        while self._callbacks:
            self._run_callbacks()
        self._epoll.close()
        self._bell = None
        self._handlers.clear()

    def _close_in_child(self) -> None:
        """Close the inherited descriptors in a forked child, so that peers notice when the parent ends.

        The epoll instance is shared with the parent, so nothing is unregistered.
        """
        self._has_ended, self._ident, self._asleep, self._wakes_at = True, 0, 0, math.inf
        self._callbacks.clear()
        for close in self.close_in_child:
            close()
        self._epoll.close()
        if self._bell is not None:
            os.close(self._bell.descriptor)
            self._bell.descriptor = -1
            self._bell = None
        self._handlers.clear()


def _describe(descriptor: int) -> str:
    """Return what a descriptor refers to, such as `socket:[4711]`; empty if it is closed, or there is no /proc."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - no path object each second
    except OSError:
        return ""


def _run_safely(callback: Callback) -> None:
    try:
        callback()
    except Exception:
        logger.exception("a callback of the I/O thread raised")


def _nothing() -> Any:
    return None


def _in_forked_child() -> None:
    IO_THREADS.clear()
    for loop in list(_loops):
        if not loop._has_ended:
            loop._close_in_child()


os.register_at_fork(after_in_child=_in_forked_child)
