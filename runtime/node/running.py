"""The message that an actor is at: who sent it, what it waits for, and how to break it off.

A sync endpoint is broken off by an exception that Python raises in its thread. That may not happen inside the runtime,
where a frame might be in hand: there the wait is ended instead, or the attempt is put off for a moment.
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NoReturn

from meshbook.runtime.actor.context import Instance, current_origin, spawner_of
from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import DeadlockError
from meshbook.runtime.telemetry.spans import CELLS, Kind, Recorder, Row, is_recorded, now
from meshbook.runtime.traces import OWN

Key = tuple[str, int]  # who asked, and the number of the call
MOMENT = 0.005  # seconds until another attempt to break off a thread that is inside the runtime
_serial = itertools.count(1)
_LIBRARY = f"{Path(threading.__file__).parent}/"
_CALLS_ENDPOINTS = "_begin"  # of HostedActor: what that calls is the user's


@dataclass(frozen=True, slots=True)
class Spans:
    """Records what an actor is at."""

    recorder: Recorder
    actor: str
    runs_cells: bool

    @classmethod
    def of(cls, recorder: Recorder, instance: Instance) -> Spans | None:
        """None where nothing is to be recorded of this actor."""
        if not (recorder.on and spawner_of(instance.key) and is_recorded(instance.class_name)):
            return None
        return cls(recorder, instance.key, instance.class_name == CELLS)

    def row(self, start: int, end: int, thread: int, endpoint: str, origin: str, key: Key) -> Row:
        """The span of a message."""
        kind: Kind = "cell" if self.runs_cells and endpoint == "run" else "run"
        return kind, start, end, thread, endpoint, origin, (*key, self.actor)


class Running:
    """Where one thread or task of an actor is. `later` is the node's clock, `watch` looks after those that wait."""

    def __init__(
        self,
        is_own: Callable[[Any], bool],
        *,
        describe: Callable[[], str],
        later: Callable[[float, Callable[[], object]], None],
        watch: Callable[[], None],
        is_alone: bool = True,
        spans: Spans | None = None,
    ) -> None:
        self._spans = spans
        self._origin = ""
        self._since = 0  # when the message began, and when the present wait did
        self._waits_since = 0
        self.is_alone = is_alone  # whether its actor begins no other message meanwhile
        self._is_own = is_own  # whether a target would have to wait for this very message
        self._describe = describe
        self._later = later
        self._watch = watch
        self._guard = threading.Lock()  # guards all of these: who breaks a message off must not hit the next one
        self._key: Key | None = None
        self._thread = 0
        self._task: asyncio.Task[Any] | None = None
        self._broken = False  # this message is being broken off
        self._waiting: Future[Any] | None = None
        self.endpoint = ""
        self.serial = 0  # of the present wait
        self.suspected: dict[Any, int] = {}  # for who watches: what was seen in rings with this wait, and when first

    # -- from the actor's own thread or task ------------------------------------

    def enter(self, key: Key, endpoint: str) -> None:
        """A message begins, here."""
        # Without the guard: who breaks a message off looks for its key, which is said last.
        self.endpoint, self._broken, self._task = endpoint, False, None
        self._thread = threading.get_ident()
        if self._spans is not None:
            self._since, self._origin = now(), current_origin()
        self._key = key

    def enter_task(self, key: Key, endpoint: str) -> None:
        """A message begins in the current task."""
        self.endpoint, self._broken, self._task = endpoint, False, asyncio.current_task()
        self._thread = threading.get_ident()
        if self._spans is not None:
            self._since, self._origin = now(), current_origin()
        self._key = key

    def drop(self) -> NoReturn:
        """It is not to be done: it was taken back before it began."""
        self._broken = True
        raise asyncio.CancelledError

    def leave(self) -> None:
        """It has ended; can be said twice. From here on nothing breaks it off."""
        with self._guard:
            key, self._key = self._key, None
            if self._broken and self._task is None:
                _set_async_exception(threading.get_ident(), None)
        if key is not None and (spans := self._spans) is not None:
            spans.recorder.add(spans.row(self._since, now(), self._thread, self.endpoint, self._origin, key))

    @property
    def is_broken(self) -> bool:
        """Whether the message that has just ended was broken off."""
        return self._broken

    def begin_wait(self, future: Future[Any], *, blocking: bool, bounded: bool) -> bool:
        if not self._is_here(blocking):
            return False
        if not bounded and any(self._is_own(target) for target, *_ in future.owing()):
            raise DeadlockError(
                f"{self._describe()} waits for its own answer: an actor handles one message at a time, so the call "
                f"that it waits for is never begun. Call the method itself, or do not wait inside the endpoint."
            )
        with self._guard:
            if self._broken:
                raise asyncio.CancelledError
            self.serial = 0 if bounded else next(_serial)
            self._waits_since = now()
            self._waiting = future
        if not bounded:  # such a wait ends by itself
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

    def _is_here(self, blocking: bool) -> bool:
        if self._key is None or threading.get_ident() != self._thread:
            return False
        return blocking or (self._task is not None and asyncio.current_task() is self._task)

    # -- from others ---------------------------------------------------------------

    def waiting(self) -> tuple[int, Future[Any]] | None:
        """The present wait, if it has no time limit and nothing came yet: its number, and for what."""
        with self._guard:
            future = self._waiting
            return (self.serial, future) if future is not None and self.serial and not future.done() else None

    def under_way(self) -> Iterator[Row]:
        """The spans of the present message, and of its wait."""
        spans, key, thread, endpoint = self._spans, self._key, self._thread, self.endpoint
        if spans is not None and key is not None:
            yield spans.row(self._since, 0, thread, endpoint, self._origin, key)
            if self._waiting is not None:
                yield "wait", self._waits_since, 0, thread, endpoint, self._origin, (spans.actor,)

    @property
    def present(self) -> str:
        """The endpoint that runs; empty: none."""
        return self.endpoint if self._key is not None else ""

    def is_at(self, key: Key) -> bool:
        """Whether this is the present message."""
        return self._key == key

    def break_off(self, key: Key) -> bool:
        """Break off this message, if it is the present one. For a task: on its loop only."""
        with self._guard:
            if self._key != key:
                return False
            is_first, self._broken = not self._broken, True
            waiting = self._waiting
            if self._task is not None:
                if is_first:
                    self._task.cancel()  # before what it waits for is: it shall feel this, and not the other
            elif waiting is None and not self._inject():
                self._later(MOMENT, lambda: self.break_off(key))
        if waiting is not None:
            waiting.cancel()  # what this one waits for is not wanted either
        return True

    def _inject(self) -> bool:
        """Raise in the thread, unless it is inside the runtime. While we look it does not move: we hold the GIL."""
        frame = sys._current_frames().get(self._thread)
        if frame is None or _is_inside(frame):
            return False
        _set_async_exception(self._thread, asyncio.CancelledError)
        return True

    def where(self) -> str:
        """The innermost line of the user's that is being run, as `step(), at train.py:12`; empty while it is idle."""
        if self._key is None:
            return ""
        task, thread, endpoint = self._task, self._thread, self.endpoint
        frame = _users_frame(sys._current_frames().get(thread)) if task is None else _users_frame_of(task, thread)
        if frame is None:
            return f"{endpoint}()"
        inner = f"in {frame.f_code.co_name}() " if frame.f_code.co_name != endpoint else ""
        return f"{endpoint}(), {inner}at {frame.f_code.co_filename}:{frame.f_lineno}"


def _is_inside(frame: FrameType | None) -> bool:
    """Whether a thread is in our code, or in what that calls, and not in the endpoint."""
    while frame is not None and not frame.f_code.co_filename.startswith(OWN):
        frame = frame.f_back
    return frame is None or frame.f_code.co_name != _CALLS_ENDPOINTS


def _is_of_user(code: CodeType) -> bool:
    return not code.co_filename.startswith((*OWN, _LIBRARY, "<frozen"))


def _users_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the user's, from this one outwards."""
    while frame is not None and not _is_of_user(frame.f_code):
        frame = frame.f_back
    return frame


def _users_frame_of(task: asyncio.Task[Any], thread: int) -> FrameType | None:
    """The same of a task, whether it runs in this thread or awaits something: then its frames know no way back."""
    coroutine: Any = task.get_coro()
    if getattr(coroutine, "cr_running", False):
        return _users_frame(sys._current_frames().get(thread))
    found: FrameType | None = None
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None and _is_of_user(frame.f_code):
            found = frame
        coroutine = getattr(coroutine, "cr_await", None)
    return found


def _set_async_exception(thread: int, kind: type[BaseException] | None) -> None:
    """Raise in a thread before its next line of Python; None takes back what was not raised yet."""
    exception = ctypes.py_object(kind) if kind is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), exception)
