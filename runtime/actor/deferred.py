"""`returns_future`: an `async def` that returns a `Future`, as endpoints do, and runs once the future is observed."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine, Generator
from typing import Any, ParamSpec, TypeVar, cast

from meshbook.runtime.actor.context import CURRENT
from meshbook.runtime.actor.future import Future

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")


def returns_future(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Future[T]]:
    """Make an `async def` return a `Future`, so that callers may use `get()` as well as `await`.

    The body starts when the future is first observed: `await` runs it on the running loop, `get()` in the calling
    thread or in a new one. `done()` and `repr` do not start it. It runs once, in a copy of the caller's contextvars.

    `cancel()` cancels the body, and so does a `get` that times out. Cancelling a task that awaits the future does not.
    The future of a cancelled body raises concurrent.futures.CancelledError or TimeoutError.

    Calling the function raises TypeError if the arguments do not fit.
    """
    if not inspect.iscoroutinefunction(function):
        raise TypeError(f"@returns_future decorates an `async def`, not {function!r}")
    signature = inspect.signature(function)

    @functools.wraps(function)
    def defer(*args: P.args, **kwargs: P.kwargs) -> Future[T]:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{function.__qualname__}{signature}: {error}") from None
        return Deferred.of(lambda: function(*args, **kwargs), function.__qualname__)

    return defer


class Deferred(Future[T]):
    """A future whose value a local coroutine computes, starting when the future is first observed.

    It is also the `Waiter` of the body, for the actor whose message runs the body. A wait for this future counts as a
    wait for the future that the body awaits, so the detection of deadlocks sees cycles through it.
    """

    __slots__ = ("_awaited", "_body", "_context", "_loop", "_name", "_task")

    _awaited: Future[Any] | None  # the future that the body awaits
    _body: Callable[[], Coroutine[Any, Any, T]] | None  # None once it has begun
    _context: contextvars.Context
    _loop: asyncio.AbstractEventLoop | None
    _name: str
    _task: asyncio.Task[Any] | None

    @classmethod
    def of(cls, body: Callable[[], Coroutine[Any, Any, T]], name: str) -> Deferred[T]:
        self = cast("Deferred[T]", cls.pending())
        self._body = body
        self._context = contextvars.copy_context()
        self._name = name
        self._awaited = self._loop = self._task = None
        return self

    # -- observing -----------------------------------------------------------

    def _await_latch(self, timeout: float | None) -> None:
        if self._loop is not None and self._loop is asyncio._get_running_loop():
            raise RuntimeError(f"{self._name} runs on the event loop that get() would block: await its future instead")
        if timeout is None and asyncio._get_running_loop() is None:
            if (body := self._claim()) is not None:
                self._run_to_the_end(body)
        else:
            # A body may ignore its cancellation. On another thread it cannot delay a `get` that has timed out.
            self._run_in_thread()
        try:
            super()._await_latch(timeout)
        except TimeoutError:
            self.fail(TimeoutError(f"{self._name} was cancelled: get(timeout={timeout}) timed out"))
            raise

    def __await__(self) -> Generator[Any, None, T]:
        self._run()
        return super().__await__()

    def when_done(self, callback: Callable[[], object]) -> None:
        self._run()
        super().when_done(callback)

    def then(self, make: Callable[[T], U]) -> Future[U]:
        async def follow() -> U:
            return make(await self)

        return Deferred.of(follow, self._name)

    def cancel(self) -> bool:
        """Cancel the body, or prevent it from starting. Return False if the value is already there."""
        if self._done:
            return False
        self._end()
        return True

    def owing(self) -> list[Any]:
        awaited = self._awaited
        return awaited.owing() if awaited is not None else []

    def describe(self) -> str:
        return "" if self._done else self._name

    # -- the body's own waits (Waiter) ---------------------------------------

    def begin_wait(self, future: Future[Any], *, blocking: bool, bounded: bool) -> bool:
        if bounded or asyncio.current_task() is not self._task:
            return False
        self._awaited = future
        return True

    def end_wait(self) -> None:
        self._awaited = None

    # -- running -------------------------------------------------------------

    def _claim(self) -> Callable[[], Coroutine[Any, Any, T]] | None:
        """Return the body to the first thread that calls this."""
        body, self._body = self._body, None  # no call in between, so no other thread runs
        return body

    def _run(self) -> None:
        if asyncio._get_running_loop() is None:
            self._run_in_thread()
        elif (body := self._claim()) is not None:
            self._loop = asyncio.get_running_loop()
            self._task = self._loop.create_task(self._drive(body), context=self._context)
            self._task.add_done_callback(lambda task: self._end())

    def _run_in_thread(self) -> None:
        if (body := self._claim()) is not None:
            name = f"meshbook future {self._name}"
            threading.Thread(target=self._run_to_the_end, args=(body,), name=name, daemon=True).start()

    def _run_to_the_end(self, body: Callable[[], Coroutine[Any, Any, T]]) -> None:
        # With a loop factory, the runner does not change asyncio's current event loop of this thread.
        try:
            with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
                runner.run(self._drive(body), context=self._context)
        except asyncio.CancelledError:
            pass  # the future holds the error; a Ctrl-C, which also cancels it, is raised here
        finally:
            self._end()

    async def _drive(self, body: Callable[[], Coroutine[Any, Any, T]]) -> None:
        # Publish the task first, then check: a cancellation in between is either seen here or cancels the task.
        self._task, self._loop = asyncio.current_task(), asyncio.get_running_loop()
        if self._done:
            return
        here = CURRENT.get()
        if here is not None and here.waiter is not None:
            CURRENT.set(here.waited_by(self))
        try:
            value = await body()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            super().fail(error)
        else:
            self.resolve(lambda: value)

    # -- cancelling ----------------------------------------------------------

    def fail(self, error: BaseException) -> None:
        """Fail the future at once and cancel the body."""
        super().fail(error)
        if self._task is not None and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the body has ended
                self._loop.call_soon_threadsafe(self._task.cancel)

    def _end(self) -> None:
        """Settle the future of a body that was cancelled, possibly before its first step."""
        # Not with asyncio.CancelledError: the task that awaits this future has not been cancelled.
        if not self._done:
            self.fail(concurrent.futures.CancelledError(f"{self._name} was cancelled"))
