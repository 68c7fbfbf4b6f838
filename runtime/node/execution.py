"""The execution of one message by an actor: its key, the future that it waits for, and its cancellation.

A sync endpoint is cancelled by an asynchronous exception in its thread. The exception must not hit runtime code, where
it could lose a frame. There the cancellation ends the current wait instead, or retries after `RETRY_SECONDS`.
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import sys
import threading
from _thread import RLock
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import get_ident
from types import CodeType, FrameType
from typing import Any, NoReturn

from meshbook.runtime.actor.context import Instance, spawner_of
from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import DeadlockError
from meshbook.runtime.telemetry.logsearch import cell_of
from meshbook.runtime.telemetry.spans import CELLS, Kind, Recorder, Row, is_recorded, now
from meshbook.runtime.traces import OWN, short_name
from meshbook.runtime.transport.io_loop import CallLater

Key = tuple[str, int]  # the node of the caller, and the call number
RETRY_SECONDS = 0.005  # seconds between attempts to cancel a thread that is inside the runtime
_serial = itertools.count(1)
_LIBRARY = f"{Path(threading.__file__).parent}/"
_CALLS_ENDPOINTS = "_begin"  # the method of HostedActor that calls user code


@dataclass(frozen=True, slots=True)
class Spans:
    """Records the spans of one actor."""

    recorder: Recorder
    add: Callable[[Row], None]  # that of the recorder
    actor: str
    runs_cells: bool

    @classmethod
    def of(cls, recorder: Recorder, instance: Instance) -> Spans | None:
        """Return the spans of an actor, or None if it is not recorded."""
        if not (recorder.on and spawner_of(instance.key) and is_recorded(instance.class_name)):
            return None
        return cls(recorder, recorder.add, instance.key, instance.class_name == CELLS)

    def row(self, start: int, end: int, thread: int, endpoint: str, origin: str, key: Key) -> Row:
        """Return the span of a message."""
        kind: Kind = "cell" if self.runs_cells and endpoint == "run" else "run"
        return kind, start, end, thread, endpoint, origin, *key, self.actor


@dataclass(frozen=True, slots=True)
class RunningEndpoint:
    """An endpoint that an actor runs: the execution that called it (its `origin`), and how long it has run."""

    actor: str
    endpoint: str
    origin: str
    seconds: float

    @property
    def called_in(self) -> str:
        """`, called in cell 12`; "" if no cell has called it."""
        cell = cell_of(self.origin)
        return "" if cell is None else f", called in cell {cell}"

    def __str__(self) -> str:
        return f"{self.actor}.{self.endpoint}(){self.called_in}"


@dataclass(frozen=True, slots=True)
class CallPlace:
    """Where a call is on its rank. `running` is the endpoint of the user's actor that it waits for, or its own."""

    text: str
    running: RunningEndpoint | None = None

    def __str__(self) -> str:
        return self.text


class Execution:
    """Tracks the message that one thread or task of an actor handles. `watch` starts the deadlock watch."""

    def __init__(
        self,
        is_own: Callable[[Any], bool],
        *,
        describe: Callable[[], str],
        call_later: CallLater,
        watch: Callable[[], None],
        is_alone: bool = True,
        spans: Spans | None = None,
    ) -> None:
        self._spans = spans
        self._origin = ""
        self._since = 0  # when the current message began
        self._waits_since = 0  # when the current wait began
        self.is_alone = is_alone  # whether the actor begins no other message meanwhile
        self._is_own = is_own  # whether a call to this target waits for this message to end
        self._describe = describe
        self._call_later = call_later
        self._watch = watch
        # Guards all of these, so that a cancellation does not hit the next message. Re-entrant: a finalizer or a signal
        # handler may call an endpoint, and wait, in the middle of `begin_wait` or `end_wait`.
        self._guard = RLock()
        self._key: Key | None = None
        self._thread = 0
        self._task: asyncio.Task[Any] | None = None
        self._broken = False  # this message is being cancelled
        self._waiting: Future[Any] | None = None
        self.endpoint = ""
        self.serial = 0  # number of the current wait
        # For the deadlock watch: the steps seen in cycles with this wait, each with the check that saw it first.
        self.suspected: dict[Any, int] = {}

    # -- from the actor's own thread or task ------------------------------------

    def enter(self, key: Key, endpoint: str, origin: str = "", task: asyncio.Task[Any] | None = None) -> None:
        """Begin a message on the calling thread, or in this task, which is the current one."""
        # Needs no guard: a cancellation compares the key, which is set last.
        self.endpoint, self._broken, self._task, self._origin = endpoint, False, task, origin
        self._thread, self._since = get_ident(), now()
        self._key = key

    def drop(self) -> NoReturn:
        """Raise CancelledError for a message that was cancelled before it began."""
        self._broken = True
        raise asyncio.CancelledError

    def leave(self) -> None:
        """End the message: from here on it cannot be cancelled. May be called twice."""
        with self._guard:
            key, self._key = self._key, None
            if self._broken and self._task is None:
                _discard_async_exception()
        if key is not None and (spans := self._spans) is not None:
            spans.add(spans.row(self._since, now(), self._thread, self.endpoint, self._origin, key))

    @property
    def key(self) -> Key | None:
        """The current message."""
        return self._key

    @property
    def is_broken(self) -> bool:
        """Whether the last message was cancelled."""
        return self._broken

    def begin_wait(self, future: Future[Any], *, blocking: bool, bounded: bool) -> bool:
        if self._key is None or get_ident() != self._thread:
            return False
        if not blocking and (self._task is None or asyncio.current_task() is not self._task):
            return False
        if not bounded and any(self._is_own(target) for target, *_ in future.owing()):
            raise DeadlockError(
                f"{self._describe()} waits for its own answer: an actor handles one message at a time, so the call "
                f"cannot start. Call the method itself, or do not wait inside the endpoint."
            )
        with self._guard:
            if not (is_broken := self._broken):
                self.serial = 0 if bounded else next(_serial)
                self._waits_since = now()
                self._waiting = future
        if is_broken:
            future.cancel()  # as if the cancellation had come during the wait
            raise asyncio.CancelledError
        if not bounded:  # a wait with a time limit ends by itself
            self._watch()
        return True

    def end_wait(self) -> None:
        with self._guard:
            self._waiting, self.serial, self.suspected = None, 0, {}
            is_broken = self._broken and self._task is None
        if (spans := self._spans) is not None:
            spans.recorder.record("wait", self.endpoint, self._waits_since, (spans.actor,))
        if is_broken:
            raise asyncio.CancelledError

    # -- from others ---------------------------------------------------------------

    def waiting(self) -> tuple[int, Future[Any]] | None:
        """Return the serial and the future of the current wait, if it has no time limit and is not done."""
        with self._guard:
            future = self._waiting
            return (self.serial, future) if future is not None and self.serial and not future.done() else None

    def under_way(self) -> Iterator[Row]:
        """Return the spans of the current message and of its wait."""
        spans, key, thread, endpoint = self._spans, self._key, self._thread, self.endpoint
        if spans is not None and key is not None:
            yield spans.row(self._since, 0, thread, endpoint, self._origin, key)
            if self._waiting is not None:
                yield "wait", self._waits_since, 0, thread, endpoint, self._origin, spans.actor

    @property
    def present(self) -> str:
        """The running endpoint, or ""."""
        return self.endpoint if self._key is not None else ""

    @property
    def thread_and_coroutine(self) -> tuple[int, Any]:
        """The thread of the current message and, if a task runs it, its coroutine."""
        return self._thread, None if self._task is None else self._task.get_coro()

    def running(self, actor: str) -> RunningEndpoint | None:
        """Return the running endpoint of this actor, if there is one."""
        endpoint, origin, since = self.endpoint, self._origin, self._since
        return None if self._key is None else RunningEndpoint(actor, endpoint, origin, (now() - since) / 1e9)

    def is_at(self, key: Key) -> bool:
        """Whether this is the current message."""
        return self._key == key

    def cancel(self, key: Key) -> bool:
        """Cancel this message if it is the current one; return whether it is. For a task, call this on its loop."""
        with self._guard:
            if self._key != key:
                return False
            is_first, self._broken = not self._broken, True
            waiting = self._waiting
            if self._task is not None:
                if is_first:
                    self._task.cancel()  # before its future, so that the task gets this cancellation and not that one
            elif waiting is None and not self._inject():
                self._call_later(RETRY_SECONDS, lambda: self.cancel(key))
        if waiting is not None:
            waiting.cancel()  # the call that this message waits for is not needed either
        return True

    def _inject(self) -> bool:
        """Raise in the thread unless it is inside the runtime. The GIL keeps the thread in place meanwhile."""
        frame = sys._current_frames().get(self._thread)
        if frame is None or _is_inside(frame):
            return False
        _set_async_exception(self._thread, asyncio.CancelledError)
        return True

    def where(self) -> str:
        """Return the innermost running line of user code, like `step(), at train.py:12`, or "" while idle."""
        if self._key is None:
            return ""
        task, thread, endpoint = self._task, self._thread, self.endpoint
        frame = _users_frame(sys._current_frames().get(thread)) if task is None else _users_frame_of(task, thread)
        if frame is None:
            return f"{endpoint}()"
        inner = f"in {frame.f_code.co_name}() " if frame.f_code.co_name != endpoint else ""
        return f"{endpoint}(), {inner}at {short_name(frame.f_code.co_filename)}:{frame.f_lineno}"


def _is_inside(frame: FrameType | None) -> bool:
    """Whether a thread is in runtime code or in a function called by it, rather than in the endpoint."""
    while frame is not None and not frame.f_code.co_filename.startswith(OWN):
        frame = frame.f_back
    return frame is None or frame.f_code.co_name != _CALLS_ENDPOINTS


def is_of_user(code: CodeType) -> bool:
    """Whether this is neither the runtime's code nor the standard library's."""
    return not code.co_filename.startswith((*OWN, _LIBRARY, "<frozen"))


def _users_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of user code, from this one outwards."""
    while frame is not None and not is_of_user(frame.f_code):
        frame = frame.f_back
    return frame


def _users_frame_of(task: asyncio.Task[Any], thread: int) -> FrameType | None:
    """Return the innermost user frame of a task, running or suspended.

    The frames of a suspended task are not linked by `f_back`, so this follows `cr_await` inwards.
    """
    coroutine: Any = task.get_coro()
    if getattr(coroutine, "cr_running", False):
        return _users_frame(sys._current_frames().get(thread))
    found: FrameType | None = None
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None and is_of_user(frame.f_code):
            found = frame
        coroutine = getattr(coroutine, "cr_await", None)
    return found


def _set_async_exception(thread: int, kind: type[BaseException]) -> None:
    """Raise in a thread before its next bytecode."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))


def _discard_async_exception() -> None:
    """Discard the exception that is set for the calling thread, if it has not been raised yet.

    It is raised here. Setting None instead would leave a flag in the interpreter until an exception is raised: all code
    would be slower, and on Python 3.11 code that is traced, by a debugger for example, would loop forever.
    """
    try:
        _set_async_exception(get_ident(), asyncio.CancelledError)
        while True:
            pass
    except asyncio.CancelledError:
        return
