"""One hosted actor: its queue, its thread or loop, and what happens to a message in it.

    post -> queue -> construct once -> (message -> endpoint -> reply) -> stop

An actor's life is a line: starting, then serving, then lost (failed or stopped). Whoever still waits when it is lost
gets an answer, and so does whoever asks afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import queue
import threading
import traceback
from collections.abc import Callable
from typing import Any, Protocol

from meshbook.runtime.actor.base import Actor, is_async
from meshbook.runtime.actor.context import CURRENT, Context, Instance
from meshbook.runtime.actor.endpoint import endpoints_of
from meshbook.runtime.errors import PickleError, SupervisionError
from meshbook.runtime.wire import pickling
from meshbook.runtime.wire.frames import Body
from meshbook.runtime.wire.messages import Call, Stop

Make = Callable[[], Actor]
Item = tuple[Call | Stop, Body]
YIELD_EVERY = 16  # messages an async actor may handle in a row before its other tasks get a turn


class Host(Protocol):
    """What a hosted actor needs of its node."""

    def reply(self, to: str, call: int, value: Any, what: str) -> None: ...
    def reply_error(self, to: str, call: int, text: str, error: BaseException) -> None: ...
    def reply_lost(self, to: str, call: int, error: SupervisionError) -> None: ...
    def port_to(self, node: str, call: int, settled: Callable[[], object]) -> Any: ...
    def actor_lost(self, name: str, error: SupervisionError) -> None: ...
    def lead_idle(self, ready: Callable[[], bool]) -> None: ...
    def poke(self) -> None: ...


class HostedActor:
    """An actor and the queue of its messages. `instance` is who it is; `make` constructs it, on its own thread."""

    def __init__(self, host: Host, instance: Instance, make: Make) -> None:
        self.instance = instance
        self._host = host
        self._make = make
        self._actor: Any = None
        self._methods: dict[str, Callable[..., Any]] = {}
        self._concurrent: frozenset[str] = frozenset()  # the endpoints whose calls overlap
        self._tasks: set[asyncio.Task[None]] = set()
        self._ported: frozenset[str] = frozenset()  # the endpoints that answer by a port
        self._owed: dict[tuple[str, int], bool] = {}  # by caller and call: those that this actor has to answer yet
        self._queue: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._lost: SupervisionError | None = None
        self._wake: Callable[[], None] | None = None
        self._asleep = False
        self._thread: threading.Thread | None = None

    # -- from the receiving thread -----------------------------------------

    def post(self, message: Call | Stop, body: Body) -> None:
        """Queue a message; never waits."""
        self._queue.put((message, body))
        self._host.poke()
        if self._asleep and self._wake is not None:
            self._wake()
        if self._lost is not None:
            # The actor's thread may have drained its queue just before: whoever puts last drains again.
            self._refuse_queued()

    def start(self, constructed: Callable[[SupervisionError | None], None]) -> None:
        """Construct and serve on a thread of its own; `constructed` is told how the constructor went."""
        name = f"meshbook actor {self.instance.name}"
        self._thread = threading.Thread(target=self.run, args=(constructed,), name=name, daemon=True)
        self._thread.pydev_do_not_trace = False  # type: ignore[attr-defined]  # user code: breakpoints belong here
        self._thread.start()

    # -- on the actor's own thread -----------------------------------------

    def run(self, constructed: Callable[[SupervisionError | None], None] = lambda error: None) -> None:
        """Construct the actor and serve it on the calling thread until it is stopped."""
        if not self.construct(constructed):
            return
        if is_async(type(self._actor)):
            asyncio.run(self._serve_async())
        else:
            self._serve()

    def construct(self, constructed: Callable[[SupervisionError | None], None]) -> bool:
        place = (self.instance.rank.rank, self.instance.rank.extent.labels, self.instance.rank.extent.sizes)
        CURRENT.set(Context(self.instance, place))
        try:
            self._actor = self._make()
        except BaseException as error:
            constructed(self._lose(f"its constructor raised\n{_format(error)}", error))
            return False
        endpoints = endpoints_of(type(self._actor))
        self._methods = {name: getattr(self._actor, name) for name in endpoints}
        self._concurrent = frozenset(name for name, method in endpoints.items() if method.is_concurrent)
        self._ported = frozenset(name for name, method in endpoints.items() if method.has_port)
        constructed(None)
        return True

    def _serve(self) -> None:
        own_thread = self._thread is not None
        while self._lost is None:
            if own_thread:  # the main thread, when lent to an actor, is interrupted by signals: it only takes
                self._host.lead_idle(self._has_work)
            message, body = self._queue.get()
            self.handle(message, body)

    def _has_work(self) -> bool:
        return not self._queue.empty()

    def handle(self, message: Call | Stop, body: Body) -> None:
        """Run one message here and now."""
        if isinstance(message, Stop):
            return self._stop(message)
        token = CURRENT.set(Context(self.instance, message.place, message.origin))
        try:
            value = self._begin(message, body)
        except Exception as error:
            self._raised(message, error)
        except BaseException as error:
            self._died(message, error)
        else:
            self._returned(message, value)
        finally:
            CURRENT.reset(token)
        return None

    async def _serve_async(self) -> None:
        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended: the queue is being refused
                loop.call_soon_threadsafe(arrived.set)

        self._wake = wake
        served = 0
        while self._lost is None:
            if (item := await self._next(arrived)) is not None:
                await self._handle_async(*item)
            served += 1
            if served % YIELD_EVERY == 0:
                await asyncio.sleep(0)
        await self._end_tasks()

    async def _next(self, arrived: asyncio.Event) -> Item | None:
        """The next message; None where a task has ended the actor."""
        while self._lost is None:
            try:
                return self._queue.get_nowait()
            except queue.Empty:
                arrived.clear()
                # First say that we sleep, then look once more: a message posted in between is seen either way.
                self._asleep = True
                if self._queue.empty():
                    await arrived.wait()
                self._asleep = False
        return None

    async def _handle_async(self, message: Call | Stop, body: Body) -> None:
        if isinstance(message, Stop):
            self._lose(f"stopped: {message.reason}", None)
            await self._end_tasks()
            return self._confirm(message)
        if message.endpoint in self._concurrent:
            return self._begin_task(message, body)
        return await self._run_async(message, body)

    def _begin_task(self, call: Call, body: Body) -> None:
        def end(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if task.cancelled():  # before its first step, so that nothing of `_run_async` has run
                self._cancelled(call, asyncio.CancelledError())

        task = asyncio.create_task(self._run_async(call, body))
        self._tasks.add(task)
        task.add_done_callback(end)

    async def _run_async(self, message: Call, body: Body) -> None:
        CURRENT.set(Context(self.instance, message.place, message.origin))
        try:
            value = self._begin(message, body)
            if inspect.isawaitable(value):
                value = await value
        except Exception as error:
            self._raised(message, error)
        except asyncio.CancelledError as error:
            self._cancelled(message, error)
        except BaseException as error:
            self._died(message, error)
        else:
            self._returned(message, value)

    def _cancelled(self, call: Call, error: BaseException) -> None:
        if self._lost is None:
            self._died(call, error)
        elif call.call:
            self._host.reply_lost(call.sender, call.call, self._lost)

    async def _end_tasks(self) -> None:
        """Cancel what overlapping endpoints still do, and wait for it."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, call: Call, body: Body) -> Any:
        method = self._methods.get(call.endpoint)
        if method is None:
            known = ", ".join(sorted(self._methods)) or "none"
            raise AttributeError(f"{self.instance.class_name} has no endpoint {call.endpoint!r}; it has: {known}")
        ported = call.endpoint in self._ported
        try:
            args, kwargs = pickling.loads(body, f"an argument of {self.instance.name}.{call.endpoint}")
        except PickleError as error:
            if not (ported and call.call):
                raise
            # The endpoint has not begun and cannot answer; this is the caller's mistake, not the end of the actor.
            return self._port_of(call).exception(error)
        return method(self._port_of(call), *args, **kwargs) if ported else method(*args, **kwargs)

    def _port_of(self, call: Call) -> Any:
        key = call.sender, call.call
        if call.call:
            self._owed[key] = True
        return self._host.port_to(*key, lambda: self._owed.pop(key, None))

    # -- how a message ends --------------------------------------------------

    def _returned(self, call: Call, value: Any) -> None:
        if call.call and call.endpoint not in self._ported:
            self._host.reply(call.sender, call.call, value, f"the result of {self.instance.name}.{call.endpoint}")

    def _raised(self, call: Call, error: Exception) -> None:
        where = f"{self.instance.name}.{call.endpoint}() on rank {self.instance.rank} ({self.instance.actor_id})"
        if call.endpoint in self._ported:
            self._lose(f"{where} raised, and answers by a port\n{_format(error)}", error)
            return
        if call.call:
            text = f"{where} raised {type(error).__name__}: {_say(error)}\n\n{_format(error)}"
            self._host.reply_error(call.sender, call.call, text, error)
            return
        self._lose(f"{where} raised in a broadcast, where nobody takes the error\n{_format(error)}", error)

    def _died(self, call: Call, error: BaseException) -> None:
        lost = self._lose(f"{self.instance.name}.{call.endpoint}() ended the actor\n{_format(error)}", error)
        if call.call:
            self._host.reply_lost(call.sender, call.call, lost)

    def _stop(self, stop: Stop) -> None:
        self._lose(f"stopped: {stop.reason}", None)
        self._confirm(stop)

    def _confirm(self, stop: Stop) -> None:
        if stop.call:
            self._host.reply(stop.sender, stop.call, None, "a stop")

    def _lose(self, reason: str, cause: BaseException | None) -> SupervisionError:
        if self._lost is not None:  # by another task of it
            return self._lost
        what = "is stopped" if cause is None else "and all its descendants have failed"
        lost = SupervisionError(f"The actor {self.instance} {what}: {reason}")
        lost.__cause__ = cause
        self._lost = lost
        if self._wake is not None:  # one of several tasks may have ended it
            self._wake()
        if cause is not None:
            self._host.actor_lost(self.instance.name, lost)
        self._refuse_queued()
        for key in list(self._owed):
            if self._owed.pop(key, None) is not None:  # a thread of the actor's may just have answered
                self._host.reply_lost(*key, lost)
        return lost

    def release(self) -> None:
        """Let go of the actor, which has ended."""
        self._actor, self._methods = None, {}

    def _refuse_queued(self) -> None:
        assert self._lost is not None
        while True:
            try:
                message, _ = self._queue.get_nowait()
            except queue.Empty:
                return
            if isinstance(message, Stop) and message.call:
                self._host.reply(message.sender, message.call, None, "a stop")  # stopping twice is no error
            elif message.call:
                self._host.reply_lost(message.sender, message.call, self._lost)


class InlineActor(HostedActor):
    """An actor of the runtime that runs on the receiving thread, in the order of arrival; it must never wait."""

    def post(self, message: Call | Stop, body: Body) -> None:
        self.handle(message, body)


def _say(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "<exception str() failed>"  # as a traceback has it


def _format(error: BaseException) -> str:
    """The traceback as text, chained causes included, without the frames of this file."""
    own = error.__traceback__
    while own is not None and own.tb_frame.f_code.co_filename == __file__:
        own = own.tb_next
    return "".join(traceback.format_exception(type(error), error, own)).rstrip()
