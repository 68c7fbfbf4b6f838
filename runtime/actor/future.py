"""`Future`: the pending answer to a call. Wait for it with `.get()` or `await`.

It is not a `concurrent.futures.Future`: creating, settling and waiting take no lock, so finalizers and signal handlers
may do all three. The first reader decodes the value, so the I/O thread unpickles nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import sys
import threading
import warnings
from _thread import RLock
from collections.abc import Callable, Generator, Sequence
from types import TracebackType
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from meshbook.runtime.actor.context import CURRENT, Waiter
from meshbook.runtime.actor.failure import Receipt
from meshbook.runtime.clock import monotonic
from meshbook.runtime.threads import Latch, may_block
from meshbook.runtime.traces import without_ours

T = TypeVar("T")
U = TypeVar("U")
logger = logging.getLogger(__name__)
_UNDECODED: Any = object()
_OF_THE_RUNTIME = {
    *("describe", "fail", "note_in", "owing", "pending", "pending_call", "resolve", "set_pending_call", "wait_here"),
}
HOW_TO_CANCEL = "cancel it with cancel() of its future, or in a notebook with %mesh interrupt"


class Cancellable(Protocol):
    """The pending call behind a future (`runtime.node.call_table`); `index` is the position of a target of the call."""

    def cancel(self, index: int | None) -> bool: ...
    def owing(self, index: int | None) -> list[Any]: ...
    def describe(self, index: int | None) -> str: ...


class Future(Generic[T]):
    """The answer to a call, created by endpoints and meshes. Wait with `.get()` in scripts and cells, or `await` it."""

    __slots__ = (
        *(
            "_callbacks",
            "_decode",
            "_decoding",
            "_done",
            "_error",
            "_index",
            "_pending_call",
            "_receipt",
            "_trace",
            "_value",
        ),
        "__weakref__",
    )

    # A call creates one future. Thousands may be pending, and the garbage collector scans them repeatedly, so the list
    # and the lock are created on first use. No call happens between a check and the assignments after it, so no other
    # thread, finalizer or signal handler runs there (unless a debugger traces these lines).
    _callbacks: list[Callable[[], object]] | None  # shared by the settling thread and the waiting ones
    _decode: Callable[[], T] | None
    # One thread decodes. Re-entrant: a finalizer may read the same future meanwhile.
    _decoding: RLock | None
    _done: bool
    _error: BaseException | None
    _pending_call: Cancellable | None  # None once the future is done
    _index: int | None  # of the target that answers; None for several targets
    _receipt: Receipt  # if set, it records that the error was raised in the caller's code
    _trace: TracebackType | None  # of the error as it arrived here; each reader adds its own lines
    _value: Any

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        raise TypeError("a Future cannot be constructed: call an endpoint to get one")

    @classmethod
    def pending(cls) -> Future[T]:
        """Return a future that an answer will resolve (for the runtime)."""
        self = cls.__new__(cls)
        self._pending_call = None
        self._index = None
        self._decoding = None
        self._done = False
        self._decode = None
        self._value = _UNDECODED
        self._error = None
        self._trace = None
        self._callbacks = None
        return self

    @classmethod
    def completed(cls, value: T) -> Future[T]:
        self: Future[T] = cls.pending()
        self.resolve(lambda: value)
        return self

    @classmethod
    def failed(cls, error: BaseException) -> Future[T]:
        self: Future[T] = cls.pending()
        self.fail(error)
        return self

    # -- the runtime's side ------------------------------------------------

    def set_pending_call(self, pending_call: Cancellable, index: int | None) -> None:
        """Set the pending call that this future belongs to."""
        self._index = index
        if not self._done:
            self._pending_call = pending_call

    def note_in(self, receipt: Receipt) -> None:
        """Record in `receipt` when the error is raised in a caller's code, or the future is dropped before that."""
        self._receipt = receipt
        receipt.follow(self)

    @property
    def pending_call(self) -> Cancellable | None:
        """The call that this future answers; None once the answer has arrived."""
        return self._pending_call

    def owing(self) -> list[Any]:
        """Return the targets that have not answered yet, as `(target, endpoint, number of the call)`."""
        pending_call = self._pending_call
        return [] if pending_call is None else pending_call.owing(self._index)

    def describe(self) -> str:
        """Return the call that this future waits for, as `trainer.step() on ranks 0-3`; "" if it is none."""
        pending_call = self._pending_call
        return "" if pending_call is None else pending_call.describe(self._index)

    def resolve(self, decode: Callable[[], T]) -> None:
        """Settle with a value. `decode` makes the value on first access, or raises. A second answer is ignored."""
        if self._done:
            return
        self._decode, self._pending_call, self._done = decode, None, True
        if self._callbacks:
            self._run_callbacks()

    def fail(self, error: BaseException) -> None:
        """Settle with an error: no answer will arrive."""
        trace = without_ours(error.__traceback__)
        if self._done:
            return
        self._error, self._trace, self._pending_call, self._done = error, trace, None, True
        if self._callbacks:
            self._run_callbacks()

    def _run_callbacks(self) -> None:
        # Callbacks that were added before `_done` run here; later ones run on the thread that adds them.
        callbacks = self._callbacks or []
        while callbacks:
            try:
                callback = callbacks.pop(0)
            except IndexError:  # another thread has taken it
                return
            try:
                callback()
            except Exception:  # other callbacks wait for the same answer
                logger.exception("a callback of a future raised")

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call `callback` once: from the thread that settles the future, or at once if it is settled."""
        callbacks: list[Callable[[], object]] = []
        if self._callbacks is None:
            self._callbacks = callbacks
        self._callbacks.append(callback)
        if self._done:
            self._run_callbacks()

    def _forget(self, callback: Callable[[], object]) -> None:
        """Remove a callback that no thread or task waits for any more."""
        if not self._done and self._callbacks:
            with contextlib.suppress(ValueError):  # it is called just now
                self._callbacks.remove(callback)

    def then(self, make: Callable[[T], U]) -> Future[U]:
        """Return a future of `make(value)`. It fails with the same error as this future."""
        twin: Future[U] = Future.pending()
        twin._pending_call, twin._index = self._pending_call, self._index

        def settle() -> None:
            if (error := self._error) is not None:
                if (receipt := getattr(self, "_receipt", None)) is not None:
                    twin.note_in(receipt)
                twin.fail(error.with_traceback(self._trace))
            else:
                twin.resolve(lambda: make(self._result()))

        self.when_done(settle)
        return twin

    # -- the user's side ---------------------------------------------------

    def done(self) -> bool:
        """Return whether the future is settled: with an answer, or with the error that none will arrive."""
        return self._done

    def get(self, timeout: float | None = None) -> T:
        """Wait for the value and return it. After `timeout` seconds raise TimeoutError; the future stays usable.

        Ctrl-C ends the wait, not the call: `cancel()` does that. Raises the error of the endpoint as an `ActorError`,
        or `SupervisionError` if no answer can arrive.
        """
        if not self._done:
            check_timeout(timeout)
            _warn_inside_a_loop()
            self._wait(timeout)
        if (error := self._decoded()) is not None:  # raised in this frame, which the user sees, not deeper
            raise self._given(error)
        return self._value  # type: ignore[no-any-return]

    def wait_here(self, timeout: float | None = None) -> None:
        """Wait like `get`, but without the warning that this blocks an event loop (for the runtime)."""
        if not self._done:
            self._wait(timeout)
        self._result()

    def cancel(self) -> bool:
        """Cancel the call: the future raises CallCancelled, and the endpoint that it waits for is interrupted.

        An endpoint that has not begun never begins. A running async endpoint receives an `asyncio.CancelledError`; so
        does a sync one, as soon as it returns from C code. Returns False if the answer has arrived, or if there is no
        call to cancel.
        """
        pending_call = self._pending_call
        return not self._done and pending_call is not None and pending_call.cancel(self._index)

    def _wait(self, timeout: float | None) -> None:
        here = CURRENT.get()
        waiter = here.waiter if here is not None else None
        if waiter is None or not waiter.begin_wait(self, blocking=True, bounded=timeout is not None):
            return self._await_latch(timeout)
        try:
            return self._await_latch(timeout)
        finally:
            waiter.end_wait()

    def _await_latch(self, timeout: float | None) -> None:
        if not may_block():
            raise RuntimeError("a finalizer that Python runs on the I/O thread cannot wait for an answer")
        latch = Latch()
        self.when_done(latch.release)
        try:
            latch.wait(timeout)
        except KeyboardInterrupt as interrupt:
            if what := self.describe():
                interrupt.add_note(f"{what} continues; {HOW_TO_CANCEL}")
            raise
        finally:
            if not self._done:  # here, as most waits end with an answer
                self._forget(latch.release)
        if not self._done:
            raise TimeoutError(f"{self.describe() or 'the future'} did not answer within {timeout:g} s")

    def result(self, timeout: float | None = None) -> T:
        """Wait for the value and return it, like `get`."""
        return self.get(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait; return the exception, or None if there is a value."""
        try:
            self.get(timeout)
        except BaseException as error:
            # If not done and failed, the wait itself was interrupted: by a timeout or Ctrl-C.
            if self._done and error is self._error:
                return error
            raise
        return None

    def add_callback(self, callback: Callable[[Future[T]], object]) -> None:
        """Call `callback(self)` once the future is settled: at once, or on the thread that settles it.

        The callback must not wait. If it raises, the error is logged.
        """
        self.when_done(lambda: callback(self))

    def _decoded(self) -> BaseException | None:
        """Decode the value once. Return the error, or None if there is a value."""
        if self._value is not _UNDECODED or self._error is not None:
            return self._error
        lock = RLock()
        if self._decoding is None:
            self._decoding = lock
        with self._decoding:
            if self._value is _UNDECODED and self._error is None:
                assert self._decode is not None
                try:
                    self._value = self._decode()
                except Exception as error:
                    self._error, self._trace = error, without_ours(error.__traceback__)
                self._decode = None
        return self._error

    def _given(self, error: BaseException) -> BaseException:
        """Return the error for raising in a caller's code, and record that in the receipt."""
        if (receipt := getattr(self, "_receipt", None)) is not None:
            receipt.note_read()
        return error.with_traceback(self._trace)

    def _result(self) -> T:
        if (error := self._decoded()) is not None:
            raise self._given(error)
        return self._value  # type: ignore[no-any-return]

    def as_asyncio(self) -> asyncio.Future[T]:
        """Return the same answer as an `asyncio.Future` of the running loop. RuntimeError if no loop runs."""
        twin, wake = self._twin()
        twin.add_done_callback(lambda _: self._forget(wake))
        return twin

    def _twin(self) -> tuple[asyncio.Future[T], Callable[[], object]]:
        """Return the same answer as an `asyncio.Future`, and the callback here that settles it."""
        loop = asyncio.get_running_loop()
        twin: asyncio.Future[T] = loop.create_future()

        def copy() -> None:
            if twin.done():  # a cancelled awaiter cancels no other waiter
                return
            if (error := self._decoded()) is None:
                twin.set_result(self._value)
            elif isinstance(error, StopIteration):  # asyncio cannot carry it: its awaiter would hang
                twin.set_exception(RuntimeError(repr(error)))
            else:
                twin.set_exception(self._given(error))

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits there any more
                loop.call_soon_threadsafe(copy)

        self.when_done(wake)
        return twin, wake

    def _wait_on_loop(self) -> Generator[Any, None, T]:
        twin, wake = self._twin()
        try:
            return (yield from twin.__await__())
        finally:
            self._forget(wake)

    def __await__(self) -> Generator[Any, None, T]:
        if self._done:
            if (error := self._decoded()) is not None:
                raise self._given(error)
            return self._value  # type: ignore[no-any-return]
        here = CURRENT.get()
        waiter: Waiter | None = here.waiter if here is not None else None
        if waiter is None or not waiter.begin_wait(self, blocking=False, bounded=False):
            return (yield from self._wait_on_loop())
        try:
            return (yield from self._wait_on_loop())
        finally:
            waiter.end_wait()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Future cannot be pickled: wait for it and send its value")

    def __dir__(self) -> list[str]:
        """Leave out what is for the runtime itself: completion would offer it."""
        return [name for name in super().__dir__() if name not in _OF_THE_RUNTIME]

    def __repr__(self) -> str:
        if not self._done:
            return "<Future pending: get() or await waits for its value>"
        return "<Future failed>" if self._error is not None else "<Future done: get() returns its value>"


def check_timeout(timeout: float | None, name: str = "a timeout") -> None:
    """Raise ValueError or TypeError for an invalid time limit. None means no limit."""
    if timeout is not None and not isinstance(timeout, int | float):
        raise TypeError(f"{name} must be a number of seconds or None, not {timeout!r}")
    if timeout is not None and not (math.isfinite(timeout) and timeout >= 0):
        raise ValueError(f"{name} must be a finite number of seconds, zero or more, not {timeout!r}")


def _warn_inside_a_loop() -> None:
    """Warn if `get()` would block an event loop of the user's. In a notebook cell, `get()` is the normal call."""
    if asyncio._get_running_loop() is None:
        return
    # The main thread of a kernel runs the cells: the running loop is the kernel's own.
    kernels = sys.modules.get("ipykernel.kernelapp")
    on_main = threading.current_thread() is threading.main_thread()
    if on_main and kernels is not None and kernels.IPKernelApp.initialized():
        return
    warnings.warn("Future.get() blocks the running event loop; await the future instead", UserWarning, stacklevel=4)


def wait_until_settled(futures: Sequence[Future[Any]], seconds: float) -> None:
    """Wait until these futures are settled, with a value or an error, for so many seconds in all."""
    end = monotonic() + seconds
    for future in futures:
        with contextlib.suppress(TimeoutError):
            future.exception(timeout=max(0.0, end - monotonic()))


def when_settled(futures: Sequence[Future[Any]], go_on: Callable[[], None]) -> None:
    """Call `go_on` once all of these futures are settled, with a value or an error."""
    lock = threading.Lock()  # guards `left`
    left = len(futures)

    def count() -> None:
        nonlocal left
        with lock:
            left -= 1
            is_last = not left
        if is_last:
            go_on()

    if not futures:
        go_on()
    for future in futures:
        future.when_done(count)
