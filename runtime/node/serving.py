"""How an actor is served: on a thread of its own, or on an event loop. One message at a time, until it is lost.

What concerns the actor and is no message (a mesh of its own has failed, a message of its own came back) is a `Notice`;
a thread takes it up between messages, a loop while the present message awaits something.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from meshbook.runtime.actor.context import CURRENT, Context
from meshbook.runtime.actor.future import Future
from meshbook.runtime.node.backlog import Backlog, Item
from meshbook.runtime.node.running import Key, Running
from meshbook.runtime.wire.frames import Body
from meshbook.runtime.wire.messages import Call, Stop

logger = logging.getLogger(__name__)

Step = Callable[[], Any]  # what it returns is waited for, where that is a future or an awaitable
YIELD_EVERY = 16  # messages an async actor may handle in a row before its other tasks get a turn


@dataclass(frozen=True, slots=True)
class Notice:
    """Call a hook of the actor, if it has one, with this; `conclude` takes its verdict, or what it raised."""

    hook: str
    about: Any
    context: Context
    conclude: Callable[[Any, BaseException | None], None]


class Served(Protocol):
    """What serving needs of the actor that is served."""

    queue: Backlog  # a ring: look at the notices, or whether all is over

    @property
    def is_lost(self) -> bool: ...
    @property
    def is_mixed(self) -> bool: ...
    def is_concurrent(self, call: Call) -> bool: ...
    def is_sync(self, call: Call) -> bool: ...
    def is_reload(self, call: Call) -> bool: ...
    async def restore(self) -> None: ...
    def take_notice(self) -> Notice | None: ...
    def hook(self, notice: Notice) -> Any: ...
    def is_unwanted(self, call: Call) -> bool: ...
    def context_of(self, call: Call, running: Running | None) -> Context: ...
    def make_running(self, *, is_alone: bool) -> Running: ...
    def begin(self, call: Call, body: Body) -> Any: ...
    def returned(self, call: Call, value: Any) -> None: ...
    def raised(self, call: Call, error: Exception) -> None: ...
    def died(self, call: Call, error: BaseException) -> None: ...
    def cancelled(self, call: Call, error: BaseException, *, wanted: bool) -> None: ...
    def handle_stop(self, stop: Stop) -> None: ...
    def refuse(self, message: Call | Stop, body: Body) -> None: ...
    def partings(self) -> Iterator[Step]: ...
    def wait_for_work(self) -> None: ...


class ThreadServing:
    """Serves on the calling thread."""

    def __init__(self, actor: Served) -> None:
        self._actor = actor
        self.running = actor.make_running(is_alone=True)
        self.thread = threading.get_ident()  # that takes the messages

    def run(self) -> None:
        """Serve until the actor is lost, and let it part."""
        actor = self._actor
        self._heed_all()  # those from before it was served
        while not actor.is_lost:
            actor.wait_for_work()
            item = actor.queue.get()
            self._heed_all()
            if item is not None and not actor.is_lost:
                self.handle(*item)
            elif item is not None:
                actor.refuse(*item)
        self.part()

    def handle(self, message: Call | Stop, body: Body) -> None:
        """Run one message here and now."""
        actor = self._actor
        if isinstance(message, Stop):
            actor.handle_stop(message)
        else:
            self._run(message, body)

    def _run(self, call: Call, body: Body) -> None:
        actor, running = self._actor, self.running
        token = CURRENT.set(actor.context_of(call, running))
        running.enter((call.sender, call.call), call.endpoint)
        try:
            try:
                if actor.is_unwanted(call):
                    running.drop()
                value = actor.begin(call, body)
            finally:
                running.leave()
        except Exception as error:
            actor.raised(call, error)
        except asyncio.CancelledError as error:
            running.leave()  # it may have come while we left
            actor.cancelled(call, error, wanted=running.is_broken)
        except BaseException as error:
            actor.died(call, error)
        else:
            actor.returned(call, value)
        finally:
            CURRENT.reset(token)

    def _heed_all(self) -> None:
        while not self._actor.is_lost and (notice := self._actor.take_notice()) is not None:
            self._heed(notice)

    def _heed(self, notice: Notice) -> None:
        token = CURRENT.set(notice.context)
        try:
            verdict, error = self._actor.hook(notice), None
        except BaseException as raised:
            verdict, error = None, raised
        finally:
            CURRENT.reset(token)
        notice.conclude(verdict, error)

    def part(self) -> None:
        """Do what is to be done at the end, one after the other; what fails is logged."""
        for step in self._actor.partings():
            try:
                made = step()
                if isinstance(made, Future):
                    made.get()
            except BaseException:
                logger.exception("while an actor was ended")

    def wake(self) -> None:
        """A notice is there, or the actor is lost."""
        self._actor.queue.ring()

    def posted(self) -> None:
        """A message is in the queue."""

    def break_off(self, key: Key) -> bool:
        """Break off this message if it is the present one; whether it is."""
        return self.running.break_off(key)

    def at(self, key: Key) -> Running | None:
        """What handles this message now, if anything does."""
        return self.running if self.running.is_at(key) else None

    def all(self) -> list[Running]:
        """All that may handle messages now."""
        return [self.running]


class LoopServing:
    """Serves on an event loop of its own, on the calling thread."""

    def __init__(self, actor: Served) -> None:
        self._actor = actor
        self.running = actor.make_running(is_alone=True)
        self.thread = 0  # that takes the messages
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._arrived: asyncio.Event | None = None
        self._asleep = False
        self._tasks: dict[asyncio.Task[None], Running | None] = {}  # of overlapping endpoints, and of notices
        self._is_handling = False
        # The sync endpoints of a class that mixes both kinds, for the actor's own thread; None: that was all.
        self._aside: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def run(self) -> None:
        """Serve until the actor is lost, and let it part."""
        if not self._actor.is_mixed:
            asyncio.run(self._run())
            return
        # The sync endpoints stay on the thread of the constructor, and the loop gets another one.
        here = contextvars.copy_context()
        loop = threading.Thread(
            target=here.run, args=(self._run_beside,), name=f"{threading.current_thread().name}, loop", daemon=True
        )
        loop.start()
        while (work := self._aside.get()) is not None:
            work()
        loop.join()

    def _run_beside(self) -> None:
        try:
            asyncio.run(self._run())
        finally:
            self._aside.put(None)

    async def _run(self) -> None:
        self.thread = threading.get_ident()
        self._loop, self._task, self._arrived = asyncio.get_running_loop(), asyncio.current_task(), asyncio.Event()
        with contextlib.suppress(asyncio.CancelledError):  # while it slept: by `wake`, since it was lost
            await self._restore()
            await self._serve()
        await self._part()

    async def _restore(self) -> None:
        self._is_handling = True  # it is broken off where the actor is lost meanwhile
        try:
            await self._actor.restore()
        finally:
            self._is_handling = False

    async def _serve(self) -> None:
        actor, served = self._actor, 0
        self._take_notices()  # those from before there was a loop
        while not actor.is_lost:
            if (item := await self._next()) is not None:
                await self._handle(*item)
            served += 1
            if served % YIELD_EVERY == 0:
                await asyncio.sleep(0)

    async def _next(self) -> Item | None:
        """The next message; None where something else is to be looked at."""
        assert self._arrived is not None
        while not self._actor.is_lost:
            try:
                return self._actor.queue.get_nowait()
            except queue.Empty:
                self._arrived.clear()
                # First say that we sleep, then look once more: a message posted in between is seen either way.
                self._asleep = True
                if self._actor.queue.empty():
                    await self._arrived.wait()
                self._asleep = False
        return None

    async def _handle(self, message: Call | Stop, body: Body) -> None:
        actor = self._actor
        if isinstance(message, Stop):
            actor.handle_stop(message)
        elif actor.is_concurrent(message):
            self._begin_task(message, body)
        else:
            self._is_handling = True
            try:
                await self._run_alone(message, body)
            finally:
                self._is_handling = False

    # -- messages ------------------------------------------------------------------

    async def _run_alone(self, call: Call, body: Body) -> None:
        """Nothing else is handled meanwhile."""
        assert self._task is not None
        running, is_sync = self.running, self._actor.is_sync(call)
        CURRENT.set(self._actor.context_of(call, running))
        await self._run_call(call, body, running, aside=is_sync)
        if running.is_broken and not self._actor.is_lost:
            self._task.uncancel()  # that was for the message; the actor goes on

    async def _run_call(self, call: Call, body: Body, running: Running, *, aside: bool = False) -> None:
        actor = self._actor
        try:
            if aside:
                value, error = await self._run_aside(call, body)
                if error is not None:
                    raise error
            else:
                value = await self._run_here(call, body, running)
        except Exception as error:
            actor.raised(call, error)
        except asyncio.CancelledError as error:
            actor.cancelled(call, error, wanted=running.is_broken)
        except BaseException as error:
            actor.died(call, error)
        else:
            actor.returned(call, value)

    async def _run_here(self, call: Call, body: Body, running: Running) -> Any:
        running.enter_task((call.sender, call.call), call.endpoint)
        try:
            if self._actor.is_unwanted(call):
                running.drop()
            if self._actor.is_reload(call):
                await self._let_finish()
            value = self._actor.begin(call, body)
            return await value if inspect.isawaitable(value) else value
        finally:
            running.leave()

    async def _let_finish(self) -> None:
        """Wait until the overlapping endpoints that have begun are over."""
        if tasks := [task for task, running in self._tasks.items() if running is not None]:
            await asyncio.wait(tasks)

    async def _run_aside(self, call: Call, body: Body) -> tuple[Any, BaseException | None]:
        """A sync endpoint on the actor's own thread, beside the loop: its value, or what it raised."""
        assert self._loop is not None
        loop, here = self._loop, contextvars.copy_context()
        ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

        def settle(value: Any, error: BaseException | None) -> None:
            ended.set_result((value, error))

        def work() -> None:
            self.running.enter((call.sender, call.call), call.endpoint)
            value, error = None, None
            try:
                try:
                    if self._actor.is_unwanted(call):
                        self.running.drop()
                    value = self._actor.begin(call, body)
                finally:
                    self.running.leave()
            except BaseException as raised:
                self.running.leave()  # it may have been broken off while it left
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(settle, value, error)

        self._aside.put(lambda: here.run(work))
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:  # the actor is lost; but what is under way on its thread ends before it parts
            await ended
            raise

    def _begin_task(self, call: Call, body: Body) -> None:
        running = self._actor.make_running(is_alone=False)

        def end(task: asyncio.Task[None]) -> None:
            self._tasks.pop(task, None)
            if task.cancelled():  # before its first step, so that nothing of `_run_call` has run
                self._actor.cancelled(call, asyncio.CancelledError(), wanted=True)

        async def run() -> None:
            CURRENT.set(self._actor.context_of(call, running))
            await self._run_call(call, body, running)

        task = asyncio.create_task(run())
        self._tasks[task] = running
        task.add_done_callback(end)

    # -- notices and the end ---------------------------------------------------------

    def _take_notices(self) -> None:
        while not self._actor.is_lost and (notice := self._actor.take_notice()) is not None:
            task = asyncio.create_task(self._heed(notice))
            self._tasks[task] = None
            task.add_done_callback(lambda task: self._tasks.pop(task, None))

    async def _heed(self, notice: Notice) -> None:
        CURRENT.set(notice.context)
        try:
            verdict = self._actor.hook(notice)
            if inspect.isawaitable(verdict):
                verdict = await verdict
        except BaseException as error:
            notice.conclude(None, error)
        else:
            notice.conclude(verdict, None)

    async def _part(self) -> None:
        """End the overlapping tasks, then do what is to be done at the end; what fails is logged."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for step in self._actor.partings():
            try:
                made = step()
                if inspect.isawaitable(made):
                    await made
            except BaseException:
                logger.exception("while an actor was ended")

    # -- from other threads ------------------------------------------------------------

    def posted(self) -> None:
        """A message is in the queue."""
        if self._asleep:
            self._call_soon(self._ring)

    def wake(self) -> None:
        """A notice is there, or the actor is lost."""
        self._call_soon(self._look)

    def _ring(self) -> None:
        assert self._arrived is not None
        self._arrived.set()

    def _look(self) -> None:
        self._take_notices()
        if self._actor.is_lost and self._is_handling and self._task is not None:
            self._is_handling = False  # once is enough
            self._task.cancel()
        self._ring()

    def break_off(self, key: Key) -> bool:
        """Break off this message if it is being handled; whether it may be."""
        running = self.at(key)
        if running is not None:
            self._call_soon(lambda: running.break_off(key))
        return running is not None

    def at(self, key: Key) -> Running | None:
        """What handles this message now, if anything does."""
        return next((running for running in self.all() if running.is_at(key)), None)

    def all(self) -> list[Running]:
        """All that may handle messages now."""
        return [self.running, *(running for running in list(self._tasks.values()) if running is not None)]

    def _call_soon(self, callback: Callable[[], object]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended: the queue is being refused
                self._loop.call_soon_threadsafe(callback)
