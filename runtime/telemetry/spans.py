"""Spans of a process: its last few thousand cells, endpoints, calls, waits and collectives, with their times.

Always recorded, so that `%mesh trace` can show a slow cell of the past: a span costs a third of a microsecond, and
nothing with MESHBOOK_SPANS=0. Times are nanoseconds of the monotonic clock, which all processes of a host share.
`timeline_lanes` and `meshbook.magics.tracing.collect` evaluate the spans.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from threading import get_ident
from time import monotonic_ns
from typing import Any, Literal

import msgspec

from meshbook.runtime.actor.context import CURRENT, Context, context, current_origin

# cell: a cell of the notebook. run: an endpoint. call: the sending of one. wait: for an answer. collective: of
# torch.distributed. backward: of torch.autograd. user: `meshbook.span`. transfer, command: processes that move data, or
# compute on behalf of others.
Kind = Literal["cell", "run", "call", "wait", "collective", "backward", "user", "transfer", "command"]
# The key that relates spans. run: (the calling node, the number of the call, actor); call: (its first number, its last
# one, actor); collective: (its group); backward: the same, if gradients are reduced in it.
Link = tuple[Any, ...]
# A span as it is recorded: kind, start, end, thread, name, origin, and the parts of the link. One flat tuple, because
# the garbage collector counts tuples.
Row = tuple[Any, ...]
now = monotonic_ns
CELLS = "meshbook.runtime.cells.actor.CellActor"


class Span(msgspec.Struct, frozen=True, array_like=True):
    """A timed activity on a thread of a process. `origin` is the execution that caused it."""

    kind: Kind
    start: int
    end: int
    thread: int
    name: str
    origin: str = ""
    link: Link = ()
    is_open: bool = False  # still running when the process was asked; `end` is then the time of the request


class CallMark(msgspec.Struct, frozen=True, array_like=True):
    """A time in the course of a call: its request arrived here from `node`, or its answer if that is empty."""

    time: int
    node: str
    call: int


class SpanRecording(msgspec.Struct, frozen=True, array_like=True):
    """The recorded spans and marks of one process.

    Spans that ended before `since` were discarded or not requested; `marked_since` is the same for marks.
    """

    asked: int
    since: int
    spans: tuple[Span, ...]
    marks: tuple[CallMark, ...]
    threads: dict[int, str]  # names of the running threads
    marked_since: int = 0


class Recorder:
    """The spans of one process: the last `most` of them, and as many marks; with 0 nothing is recorded.

    Callers check `on` first, take the time, and call `add`, which is safe on any thread.
    """

    __slots__ = ("_marks", "_spans", "add", "busy", "mark", "on", "open", "quiet")

    def __init__(self, most: int) -> None:
        self.on = most > 0
        self._spans: deque[Row] = deque(maxlen=most)
        self._marks: deque[tuple[int, str, int]] = deque(maxlen=most)
        self.add: Callable[[Row], None] = self._spans.append
        self.mark: Callable[[tuple[int, str, int]], None] = self._marks.append
        self.open: dict[int, Row] = {}  # open collectives, by thread
        self.quiet: set[str] = set()  # actors of the runtime: calls to them are not recorded
        self.busy: list[Callable[[], Iterator[Row]]] = []  # sources of other spans that have not ended

    def record(self, kind: Kind, name: str, start: int, link: Link = ()) -> None:
        """Record a span of the calling thread that ends now; for code that is not on a hot path."""
        if self.on:
            self.add((kind, start, now(), get_ident(), name, current_origin(), *link))

    def recording(self, since: int) -> SpanRecording:
        """Return the spans that ended at this time or later, and those that have not ended."""
        asked = now()
        rows, marks = _copy(self._spans), _copy(self._marks)
        forgotten = rows[0][2] if self.on and len(rows) == self._spans.maxlen else since
        spans = [_span_of(row) for row in rows if row[2] >= since]
        begun = [*list(self.open.values()), *(row for find in self.busy for row in find())]
        spans += [_span_of((*row[:2], max(row[1], asked), *row[3:]), is_open=True) for row in begun]
        return SpanRecording(
            asked,
            max(since, forgotten),
            tuple(spans),
            tuple(CallMark(*mark) for mark in marks if mark[0] >= since),
            {thread.ident: thread.name for thread in threading.enumerate() if thread.ident is not None},
            max(since, marks[0][0] if self.on and len(marks) == self._marks.maxlen else since),
        )


def _span_of(row: Row, *, is_open: bool = False) -> Span:
    kind, start, end, thread, name, origin, *link = row
    return Span(kind, start, end, thread, name, origin, tuple(link), is_open)


def _copy(ring: deque[Any]) -> list[Any]:
    """Copy a deque while other threads append to it."""
    while True:
        with contextlib.suppress(RuntimeError):  # another thread appended during the copy
            return list(ring)


def is_recorded(class_name: str) -> bool:
    """Return whether calls to actors of this class are recorded: those of users, and cells."""
    return not class_name.startswith("meshbook.runtime.") or class_name == CELLS


class timed(contextlib.ContextDecorator):
    """Record a block as a span of this kind and name, in whichever process it runs."""

    def __init__(self, kind: Kind, name: str) -> None:
        self.kind = kind
        self.name = name
        self._start = 0

    def _recreate_cm(self) -> timed:  # so that a decorated function may call itself
        return timed(self.kind, self.name)

    def __enter__(self) -> timed:
        self._start = now()
        return self

    def __exit__(self, *raised: object) -> None:
        if (here := self._here()) is not None:
            recorder: Recorder = here.actor_instance.node.recorder
            recorder.record(self.kind, self.name, self._start)

    def _here(self) -> Context | None:
        """Return the current context, or None: the runtime's own spans do not start a runtime."""
        return CURRENT.get()


class span(timed):
    """Show the time that a block takes in `%mesh trace`, under this name: `with meshbook.span("load"): ...`.

    Works in cells, in actors and in their threads, also as a decorator of a function that is not a coroutine. Costs a
    microsecond. In a script it starts the runtime, as every use of `context()` does.
    """

    def __init__(self, name: str) -> None:
        super().__init__("user", name)

    def _here(self) -> Context | None:
        return context()
