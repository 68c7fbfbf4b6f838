"""Serve an actor on its own thread or on an event loop: one message at a time, until the actor is lost.

Events that are not messages are `Notice`s: an owned mesh has failed, a sent message was returned. A thread handles
them between messages; a loop handles them while the current message awaits something.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
import queue
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from meshbook.runtime.actor.context import CURRENT, Context
from meshbook.runtime.actor.future import Future
from meshbook.runtime.node.execution import Execution, Key
from meshbook.runtime.wire.frames import Body
from meshbook.runtime.wire.messages import Call, Stop

if TYPE_CHECKING:
    from meshbook.runtime.node.hosted_actor import HostedActor

logger = logging.getLogger(__name__)

Step = Callable[[], Any]  # if it returns a future or an awaitable, the server waits for that
YIELD_EVERY = 16  # messages that an async actor handles in a row before its other tasks run


@dataclass(frozen=True, slots=True)
class Notice:
    """A call of an optional hook of the actor; `conclude` gets the hook's result, or its exception."""

    hook: str
    about: Any
    context: Context
    conclude: Callable[[Any, BaseException | None], None]


Item = tuple[Call | Stop, Body]


class Idle(Protocol):
    """Work that an actor has beside its messages, on their thread."""

    @property
    def has_work(self) -> bool: ...

    def run(self) -> None:
        """Work until `wake`, which another thread may have called before."""

    def wake(self) -> None: ...


class ThreadServing:
    """Serves an actor on the calling thread. While it waits for messages, it does the work of its `__idle__`."""

    def __init__(self, actor: HostedActor) -> None:
        self._actor = actor
        self._idle: Idle | None = None
        self.is_asleep = False  # otherwise the queue wakes the thread for a message
        self.execution = actor.make_execution(is_alone=True)
        self.thread = threading.get_ident()  # the thread that takes the messages

    def run(self) -> None:
        """Serve until the actor is lost, then run its cleanup steps."""
        actor = self._actor
        self._idle = actor.idle
        get = actor.queue.get if self._idle is None else self._get_while_idle
        reasons, notices = actor.reasons, actor.notices
        self._handle_notices()  # from before the actor was served
        message: Call | Stop | None = None
        try:
            while not reasons:
                item = get()
                if notices:
                    self._handle_notices()
                if item is None:
                    continue
                message, body = item
                if reasons:
                    actor.refuse(message, body)
                elif isinstance(message, Stop):
                    actor.handle_stop(message)
                else:
                    self._run(message, body)
        except Exception as error:
            if isinstance(message, Call):
                actor.abandon(message, error)
            raise
        self.clean_up()

    def _get_while_idle(self) -> Item | None:
        queue, idle = self._actor.queue, self._idle
        assert idle is not None
        while queue.empty() and idle.has_work:
            # Set `is_asleep` before the last check, so that a message posted in between is never missed.
            self.is_asleep = True
            if queue.empty():
                idle.run()
            self.is_asleep = False
        return queue.get()

    def _run(self, call: Call, body: Body) -> None:
        actor, execution = self._actor, self.execution
        token = CURRENT.set(actor.context_of(call, execution))
        execution.enter((call.sender, call.call), call.endpoint, call.origin)
        try:
            try:
                if actor.cancelled_early and actor.is_cancelled_early(call):
                    execution.drop()
                value = actor.begin(call, body)
            finally:
                execution.leave()
        except Exception as error:
            actor.raised(call, error)
        except asyncio.CancelledError as error:
            execution.leave()  # the first `leave` may have been interrupted
            actor.cancelled(call, error, wanted=execution.is_broken)
        except BaseException as error:
            actor.died(call, error)
        else:
            actor.returned(call, value)
        finally:
            CURRENT.reset(token)

    def _handle_notices(self) -> None:
        actor = self._actor
        while not actor.reasons and actor.notices:
            self._handle_notice(actor.notices.popleft())

    def _handle_notice(self, notice: Notice) -> None:
        token = CURRENT.set(notice.context)
        try:
            verdict, error = self._actor.hook(notice), None
            if inspect.isawaitable(verdict):
                verdict = asyncio.run(_await(verdict))
        except BaseException as raised:
            verdict, error = None, raised
        finally:
            CURRENT.reset(token)
        notice.conclude(verdict, error)

    def clean_up(self) -> None:
        """Run the cleanup steps in order; log those that fail."""
        for step in self._actor.cleanup_steps():
            try:
                made = step()
                if isinstance(made, Future):
                    made.get()
            except BaseException:
                logger.exception("a cleanup step of an actor raised")

    def wake(self) -> None:
        """Wake the thread for a notice, or because the actor is lost."""
        self._actor.queue.wake()
        self.wake_for_message()

    def wake_for_message(self) -> None:
        """Wake the thread from the actor's other work."""
        if self._idle is not None:
            self._idle.wake()

    def cancel(self, key: Key) -> bool:
        """Cancel this message if it is the current one; return whether it is."""
        return self.execution.cancel(key)

    def interrupt(self, execution: Execution, key: Key) -> None:
        """Cancel the message of this execution if it is this one."""
        execution.cancel(key)

    def at(self, key: Key) -> Execution | None:
        """Return the execution that handles this message now, or None."""
        return self.execution if self.execution.is_at(key) else None

    def all(self) -> list[Execution]:
        """Return the executions that may be handling messages."""
        return [self.execution]


async def _await(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


class LoopServing:
    """Serves an actor on an event loop that runs on the calling thread."""

    def __init__(self, actor: HostedActor) -> None:
        self._actor = actor
        self.execution = actor.make_execution(is_alone=True)
        self.thread = 0  # the thread that takes the messages
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._arrived: asyncio.Event | None = None
        self.is_asleep = False
        self._tasks: dict[asyncio.Task[None], Execution | None] = {}  # tasks of overlapping endpoints and of notices
        self._is_handling = False
        # Sync endpoints of a class that mixes sync and async ones, to run on the actor's own thread; None ends it.
        self._sync_calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def run(self) -> None:
        """Serve until the actor is lost, then run its cleanup steps."""
        if not self._actor.is_mixed:
            asyncio.run(self._run())
            return
        # Sync endpoints stay on the thread of the constructor; the loop gets another thread.
        here = contextvars.copy_context()
        loop = threading.Thread(
            target=here.run, args=(self._run_loop,), name=f"{threading.current_thread().name}, loop", daemon=True
        )
        loop.start()
        while (work := self._sync_calls.get()) is not None:
            work()
        loop.join()

    def _run_loop(self) -> None:
        try:
            asyncio.run(self._run())
        finally:
            self._sync_calls.put(None)

    async def _run(self) -> None:
        self.thread = threading.get_ident()
        self._loop, self._task, self._arrived = asyncio.get_running_loop(), asyncio.current_task(), asyncio.Event()
        with contextlib.suppress(asyncio.CancelledError):  # `_look` cancels this task when the actor is lost
            await self._restore()
            await self._serve()
        await self._clean_up()

    async def _restore(self) -> None:
        self._is_handling = True  # so that `_look` cancels it if the actor is lost meanwhile
        try:
            await self._actor.restore()
        finally:
            self._is_handling = False

    async def _serve(self) -> None:
        actor, served = self._actor, 0
        self._take_notices()  # from before the loop existed
        while not actor.reasons:
            if (item := await self._next()) is not None:
                await self._handle(*item)
            served += 1
            if served % YIELD_EVERY == 0:
                await asyncio.sleep(0)

    async def _next(self) -> Item | None:
        """Wait for the next message and return it; None once the actor is lost."""
        assert self._arrived is not None
        while not self._actor.reasons:
            try:
                return self._actor.queue.get_nowait()
            except queue.Empty:
                self._arrived.clear()
                # Set `is_asleep` before the last check, so that a message posted in between is never missed.
                self.is_asleep = True
                if self._actor.queue.empty():
                    await self._arrived.wait()
                self.is_asleep = False
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
        """Run a message that must not overlap with others."""
        assert self._task is not None
        execution, is_sync = self.execution, self._actor.is_sync(call)
        CURRENT.set(self._actor.context_of(call, execution))
        await self._run_call(call, body, execution, on_thread=is_sync)
        if execution.is_broken and not self._actor.reasons:
            self._task.uncancel()  # only the message was cancelled; the actor continues

    async def _run_call(self, call: Call, body: Body, execution: Execution, *, on_thread: bool = False) -> None:
        try:
            await self._run_and_reply(call, body, execution, on_thread)
        except Exception as error:
            self._actor.abandon(call, error)
            raise

    async def _run_and_reply(self, call: Call, body: Body, execution: Execution, on_thread: bool) -> None:
        actor = self._actor
        try:
            if on_thread:
                value, error = await self._run_on_thread(call, body)
                if error is not None:
                    raise error
            else:
                value = await self._run_here(call, body, execution)
        except Exception as error:
            actor.raised(call, error)
        except asyncio.CancelledError as error:
            actor.cancelled(call, error, wanted=execution.is_broken)
        except BaseException as error:
            actor.died(call, error)
        else:
            actor.returned(call, value)

    async def _run_here(self, call: Call, body: Body, execution: Execution) -> Any:
        execution.enter((call.sender, call.call), call.endpoint, call.origin, asyncio.current_task())
        try:
            if self._actor.is_cancelled_early(call):
                execution.drop()
            begun = self._tasks.items() if self._actor.is_reload(call) else ()
            if overlapping := [task for task, its_execution in begun if its_execution is not None]:
                await asyncio.wait(overlapping)
            value = self._actor.begin(call, body)
            return await value if inspect.isawaitable(value) else value
        finally:
            execution.leave()

    async def _run_on_thread(self, call: Call, body: Body) -> tuple[Any, BaseException | None]:
        """Run a sync endpoint on the actor's own thread, beside the loop; return its value and its exception."""
        assert self._loop is not None
        loop, here = self._loop, contextvars.copy_context()
        ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

        def settle(value: Any, error: BaseException | None) -> None:
            ended.set_result((value, error))

        def work() -> None:
            self.execution.enter((call.sender, call.call), call.endpoint, call.origin)
            value, error = None, None
            try:
                try:
                    if self._actor.is_cancelled_early(call):
                        self.execution.drop()
                    value = self._actor.begin(call, body)
                finally:
                    self.execution.leave()
            except BaseException as raised:
                self.execution.leave()  # the first `leave` may have been interrupted
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(settle, value, error)

        self._sync_calls.put(lambda: here.run(work))
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:  # cleanup steps must not run while the endpoint is still on its thread
            await ended
            raise

    def _begin_task(self, call: Call, body: Body) -> None:
        execution = self._actor.make_execution(is_alone=False)

        def end(task: asyncio.Task[None]) -> None:
            self._tasks.pop(task, None)
            if task.cancelled():  # before its first step, so `_run_call` has not run at all
                self._actor.cancelled(call, asyncio.CancelledError(), wanted=True)

        async def run() -> None:
            CURRENT.set(self._actor.context_of(call, execution))
            await self._run_call(call, body, execution)

        task = asyncio.create_task(run())
        self._tasks[task] = execution
        task.add_done_callback(end)

    # -- notices and the end ---------------------------------------------------------

    def _take_notices(self) -> None:
        while not self._actor.reasons and self._actor.notices:
            task = asyncio.create_task(self._handle_notice(self._actor.notices.popleft()))
            self._tasks[task] = None
            task.add_done_callback(lambda task: self._tasks.pop(task, None))

    async def _handle_notice(self, notice: Notice) -> None:
        CURRENT.set(notice.context)
        try:
            verdict = self._actor.hook(notice)
            if inspect.isawaitable(verdict):
                verdict = await verdict
        except BaseException as error:
            notice.conclude(None, error)
        else:
            notice.conclude(verdict, None)

    async def _clean_up(self) -> None:
        """Cancel the overlapping tasks, then run the cleanup steps in order; log those that fail."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for step in self._actor.cleanup_steps():
            try:
                made = step()
                if inspect.isawaitable(made):
                    await made
            except BaseException:
                logger.exception("a cleanup step of an actor raised")

    # -- from other threads ------------------------------------------------------------

    def wake_for_message(self) -> None:
        """Wake the loop for a message in the queue."""
        self._call_soon(self._set_arrived)

    def wake(self) -> None:
        """Wake the loop for a notice, or because the actor is lost."""
        self._call_soon(self._look)

    def _set_arrived(self) -> None:
        assert self._arrived is not None
        self._arrived.set()

    def _look(self) -> None:
        self._take_notices()
        if self._actor.reasons and self._is_handling and self._task is not None:
            self._is_handling = False  # cancel only once
            self._task.cancel()
        self._set_arrived()

    def cancel(self, key: Key) -> bool:
        """Cancel this message if it is being handled; return whether it seemed to be."""
        execution = self.at(key)
        if execution is not None:
            self.interrupt(execution, key)
        return execution is not None

    def interrupt(self, execution: Execution, key: Key) -> None:
        """Cancel the message of this execution if it is this one."""
        self._call_soon(lambda: execution.cancel(key))

    def at(self, key: Key) -> Execution | None:
        """Return the execution that handles this message now, or None."""
        return next((execution for execution in self.all() if execution.is_at(key)), None)

    def all(self) -> list[Execution]:
        """Return the executions that may be handling messages."""
        return [self.execution, *(execution for execution in list(self._tasks.values()) if execution is not None)]

    def _call_soon(self, callback: Callable[[], object]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended: queued messages are being refused
                self._loop.call_soon_threadsafe(callback)
