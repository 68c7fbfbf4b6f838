"""`returns_future`: an `async def` that gives a `Future` like an endpoint does, and runs when that is observed."""

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
    """Make an `async def` return a `Future`, so that callers may `get()` it as well as `await` it.

    The body begins when the future is first observed: by `await` on the running loop, by `get()` in the calling thread
    or in one of its own. `done()` and `repr` only look. It runs in a copy of the caller's contextvars, and once. It is
    cancelled by `cancel()` and when a `get` runs out of time; not when a task that awaits it is cancelled. Of a body
    that was cancelled the future raises concurrent.futures.CancelledError, or TimeoutError.
    Calling raises TypeError where the arguments do not fit.
    """
    if not inspect.iscoroutinefunction(function):
        raise TypeError(f"@returns_future goes onto an `async def`, not onto {function!r}")
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
    """A future whose value is made here, by a coroutine, and not before somebody wants it.

    For the actor in whose message the body runs it is also the `Waiter` of the body: what that waits for is what who
    waits for this future waits for, so that a ring of waits is found through it.
    """

    __slots__ = ("_awaited", "_body", "_context", "_loop", "_name", "_task")

    _awaited: Future[Any] | None  # what the body waits for
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
            self._run_here()
        else:
            # A body that does not heed its cancellation must not hold who has no more time, so not in this thread.
            self._run_in_thread()
        try:
            super()._await_latch(timeout)
        except TimeoutError:
            self.fail(TimeoutError(f"{self._name} was cancelled: get(timeout={timeout}) had waited for so long"))
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
        """Give up the value; a body that has begun is cancelled, another never runs. False where the value is here."""
        if self._done:
            return False
        self._end()
        return True

    def owing(self) -> list[Any]:
        awaited = self._awaited
        return awaited.owing() if awaited is not None else []

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
        """Return the body to the first thread that asks."""
        body, self._body = self._body, None  # no call in between, so no other thread either
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

    def _run_here(self) -> None:
        if (body := self._claim()) is not None:
            self._run_to_the_end(body)

    def _run_to_the_end(self, body: Callable[[], Coroutine[Any, Any, T]]) -> None:
        # With a factory the runner leaves alone what asyncio takes for the loop of this thread.
        try:
            with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
                runner.run(self._drive(body), context=self._context)
        except asyncio.CancelledError:
            pass  # the future tells; a Ctrl-C, which cancels it too, is raised from here
        finally:
            self._end()

    async def _drive(self, body: Callable[[], Coroutine[Any, Any, T]]) -> None:
        # First say which task it is, then look: who gives up in between either is seen, or cancels it.
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

    # -- giving up -----------------------------------------------------------

    def fail(self, error: BaseException) -> None:
        """No value is wanted any more, for this reason: the future fails at once, and the body is cancelled."""
        super().fail(error)
        if self._task is not None and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed: the body has ended
                self._loop.call_soon_threadsafe(self._task.cancel)

    def _end(self) -> None:
        """Settle the future of a body that was cancelled, maybe before its first step."""
        # Not by asyncio's error: who awaits this future has not been cancelled.
        if not self._done:
            self.fail(concurrent.futures.CancelledError(f"{self._name} was cancelled"))
