"""Output of ranks as events: the chunk that travels, and the store that hands it to whoever shows it.

A chunk carries the execution that caused it (`origin`), so it is routed by that and never by the time it came.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.errors import ExitReport
from meshbook.runtime.telemetry.escapes import has_escapes, only_colours, split_half
from meshbook.runtime.telemetry.events import EventLog, RunEvent
from meshbook.runtime.telemetry.logbook import Logbook, LogState
from meshbook.runtime.telemetry.terminal import Emission, Terminal

logger = logging.getLogger(__name__)

TELEMETRY = "telemetry"  # the actor that a controller hosts for this
StreamName = Literal["stdout", "stderr"]
REMEMBERED_ENDS = 64  # processes that have ended, whose last text is still there


class LogOptions(msgspec.Struct, frozen=True, array_like=True):
    """What the controller does with output that no cell owns.

    `shown`: whether it shows it at all. `window`: for how many seconds lines that are alike are gathered before they
    are shown as one; without one each is shown as it comes.
    """

    shown: bool = True
    window: float | None = None


SHOWN = LogOptions()


class SentMark(msgspec.Struct, frozen=True, array_like=True):
    """How much of a process's output has been sent: everything up to this, and nothing after it.

    `number` counts what was written through Python; `stdout` and `stderr` are bytes that went past it.
    """

    node: str
    number: int = 0
    stdout: int = 0
    stderr: int = 0


class OutputChunk(msgspec.Struct, frozen=True, array_like=True):
    """Text that a rank wrote, in order within its rank and stream.

    `live` are the rows after it that may still change (progress bars), in the place of those that came before; None
    where they are as they were. Text never comes without them while there are any.
    """

    origin: str
    mesh: str
    rank: int
    stream: StreamName
    text: str
    options: LogOptions = SHOWN
    live: str | None = None
    mark: SentMark | None = None  # None: more of it follows


class DisplayChunk(msgspec.Struct, frozen=True, array_like=True):
    """A rich display of a rank: a figure, a table. The bundle is mime type -> data, as Jupyter has it."""

    origin: str
    mesh: str
    rank: int
    data: dict[str, Any]
    metadata: dict[str, Any]
    options: LogOptions = SHOWN
    display_id: str = ""  # by which it may be replaced
    update: bool = False  # it replaces what has this id


class ClearChunk(msgspec.Struct, frozen=True, array_like=True):
    """A rank takes back what it has shown; with `wait` only when it shows the next thing."""

    origin: str
    mesh: str
    rank: int
    wait: bool
    options: LogOptions = SHOWN


class UnsentOutput(msgspec.Struct, frozen=True, array_like=True):
    """What a process that has ended had written, and may not have sent.

    `pieces` were written through Python: number, execution, stream and text, in order. `past` are the bytes that went
    past it to stdout and to stderr, and where they begin; they belong to the execution `origin`.
    """

    node: str
    mesh: str
    rank: int
    options: LogOptions
    origin: str
    pieces: list[tuple[int, str, StreamName, str]]
    past: list[tuple[int, bytes]]

    def after(self, mark: SentMark) -> Iterator[tuple[str, StreamName, str]]:
        """What comes after the mark: execution, stream and text; neighbours of the same in one piece."""
        unseen = [(origin, stream, text) for number, origin, stream, text in self.pieces if number > mark.number]
        streams: tuple[StreamName, StreamName] = "stdout", "stderr"
        for stream, (start, data), seen in zip(streams, self.past, (mark.stdout, mark.stderr), strict=True):
            text = data[max(0, seen - start) :].decode("utf-8", "replace").replace("\0", "")
            unseen.append((self.origin, stream, text))
        for (origin, stream), group in itertools.groupby(unseen, key=lambda piece: piece[:2]):
            if text := "".join(text for _, _, text in group):
                yield origin, stream, text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


Chunk = OutputChunk | DisplayChunk | ClearChunk
Sink = Callable[[Chunk], None]


class OutputStore:
    """Hands each chunk to the sink of its execution, and keeps the last lines of every rank (`logbook`).

    Sinks are called on the receiving thread: they may only note what came.
    """

    def __init__(self) -> None:
        self.logbook = Logbook()
        self._sinks: dict[str, Sink] = {}
        self._default: Sink | None = None
        self._ended: collections.deque[str] = collections.deque()
        self._marks: dict[str, SentMark] = {}  # by node: what has come of its output
        # By mesh, rank, execution and stream: the beginning of an escape sequence, whose end is still to come.
        self._halves: dict[tuple[str, int, str, str], str] = {}

    def open(self, origin: str, sink: Sink) -> None:
        """From now on the output of this execution goes to `sink`."""
        self._sinks[origin] = sink

    def end(self, origin: str) -> None:
        """The execution has ended: what it wrote without an end is a line. What comes late still goes to its sink."""
        self.logbook.end_execution(origin)

    def close(self, origin: str) -> None:
        """The execution is over; what comes late goes to the default sink."""
        self._sinks.pop(origin, None)
        self.end(origin)

    def set_default(self, sink: Sink | None) -> None:
        """Where output without an open execution goes."""
        self._default = sink

    def add(self, chunk: Chunk) -> None:
        if isinstance(chunk, OutputChunk):
            if chunk.mark is not None:
                self._marks[chunk.mark.node] = chunk.mark
            chunk = self._without_escapes(chunk)
            self.logbook.take(f"{chunk.mesh}.{chunk.rank}", chunk.origin, chunk.stream, chunk.text, chunk.live)
        sink = self._sinks.get(chunk.origin) or self._default
        if sink is None:
            return
        try:
            sink(chunk)
        except Exception:
            # One display that fails must not cost the others their output.
            logger.exception("output of rank %d of %s could not be shown", chunk.rank, chunk.mesh)

    def _without_escapes(self, chunk: OutputChunk) -> OutputChunk:
        """Leave of escape sequences colours alone."""
        writer = chunk.mesh, chunk.rank, chunk.origin, chunk.stream
        text = self._halves.pop(writer, "") + chunk.text if self._halves else chunk.text
        if has_escapes(text):
            text, half = split_half(text)
            text = only_colours(text)
            if half:
                self._halves[writer] = half
        live = None if chunk.live is None else only_colours(split_half(chunk.live)[0])
        if text is chunk.text and live == chunk.live:
            return chunk
        return msgspec.structs.replace(chunk, text=text, live=live)

    def take(self, chunk: Chunk | UnsentOutput) -> None:
        """Take in what a process, or its agent, has sent."""
        if isinstance(chunk, UnsentOutput):
            self.add_remains(chunk)
        else:
            self.add(chunk)

    def add_remains(self, remains: UnsentOutput) -> None:
        """Take in what a process that has ended had written, except what has come already."""
        mesh, rank, options = remains.mesh, remains.rank, remains.options
        terminals: dict[tuple[str, StreamName], Terminal] = {}
        for origin, stream, text in remains.after(self._marks.get(remains.node, SentMark(remains.node))):
            if origin and (origin, stream) not in terminals:
                rows = self.logbook.live_rows(f"{mesh}.{rank}", origin, stream)
                terminals[origin, stream] = Terminal.resumed(rows)
            shown = terminals[origin, stream].feed(text) if origin else Emission(text)
            self.add(OutputChunk(origin, mesh, rank, stream, shown.text, options, shown.live))
        for (origin, stream), terminal in terminals.items():
            shown = terminal.settle()
            self.add(OutputChunk(origin, mesh, rank, stream, shown.text, options, shown.live))

    def recent(self, mesh: str, rank: int) -> str:
        """The last output of a rank, both streams, up to a mebi-character."""
        return self.logbook.text(f"{mesh}.{rank}")

    def estates(self) -> dict[str, LogState]:
        """The last output of every rank, by process."""
        return self.logbook.estates()

    def restore(self, estates: dict[str, LogState]) -> None:
        """Begin with what ranks have written before."""
        self.logbook.restore(estates)

    def replay(self, chunk: Chunk | UnsentOutput) -> None:
        """Take in what was written while nobody looked: only a sink of its own execution shows it."""
        default, self._default = self._default, None
        try:
            self.take(chunk)
        finally:
            self._default = default

    def forget(self, mesh: str) -> None:
        """Drop what was kept of a mesh."""
        self._halves = {writer: half for writer, half in self._halves.items() if writer[0] != mesh}
        self.logbook.forget(node for node in self.logbook.nodes if node.rpartition(".")[0] == mesh)

    def ended(self, report: ExitReport) -> None:
        """A process has ended. Its text is kept for a while: people look for it, and some may come only now."""
        self.logbook.end_process(report.node)
        self._marks.pop(report.node, None)
        self._ended.append(report.node)
        while len(self._ended) > REMEMBERED_ENDS:
            self.logbook.forget([self._ended.popleft()])

    def reborn(self, node: str) -> None:
        """A process was started again under its name: its text is one that lives."""
        with contextlib.suppress(ValueError):
            self._ended.remove(node)


class TelemetryActor(Actor):
    """Takes events in; hosted inline, so that output is in the store before the reply that follows it."""

    def __init__(self, store: OutputStore, events: EventLog) -> None:
        self._store = store
        self._events = events

    @endpoint
    def happened(self, event: RunEvent) -> None:
        """Note what happened to a mesh."""
        self._events.add(event)

    @endpoint
    def output(self, chunk: Chunk | UnsentOutput) -> None:
        """Note what a rank printed or displayed."""
        self._store.take(chunk)
