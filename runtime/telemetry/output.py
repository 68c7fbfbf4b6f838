"""Output of ranks as events: the chunks that ranks send, and the store that routes them to sinks.

A chunk carries the execution that caused it (`origin`), so it is routed by that and never by its time of arrival.
Escape sequences other than colours are removed, so that output cannot change a terminal or a page.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.errors import ExitReport
from meshbook.runtime.formats import whole
from meshbook.runtime.telemetry.curves import CurveStore
from meshbook.runtime.telemetry.events import EventLog, RunEvent
from meshbook.runtime.telemetry.logbook import Logbook, LogState
from meshbook.runtime.telemetry.points import Logged
from meshbook.runtime.telemetry.terminal import Emission, Terminal

logger = logging.getLogger(__name__)

TELEMETRY = "telemetry"  # name of the actor that a controller hosts for output and events
StreamName = Literal["stdout", "stderr"]
REMEMBERED_ENDS = 64  # ended processes whose last text is still kept


class LogOptions(msgspec.Struct, frozen=True, array_like=True):
    """How the controller handles output that no cell owns.

    `shown`: whether to show it at all. `window`: for how many seconds to group similar lines before they are shown as
    one; None shows each line as it arrives.
    """

    shown: bool = True
    window: float | None = None


SHOWN = LogOptions()


class SentMark(msgspec.Struct, frozen=True, array_like=True):
    """A mark in a process's output: everything up to it has been sent, and nothing after it.

    `number` counts pieces written through Python; `stdout` and `stderr` count bytes written directly to the
    descriptors.
    """

    node: str
    number: int = 0
    stdout: int = 0
    stderr: int = 0


class OutputChunk(msgspec.Struct, frozen=True, array_like=True):
    """Text that a rank wrote, in order within its rank and stream.

    `live` holds the rows after the text that may still change (progress bars). It replaces the earlier rows; None
    leaves them as they are. While there are any, text never comes without them.
    """

    origin: str
    mesh: str
    rank: int
    stream: StreamName
    text: str
    options: LogOptions = SHOWN
    live: str | None = None
    mark: SentMark | None = None  # None: more chunks of the same text follow


class DisplayChunk(msgspec.Struct, frozen=True, array_like=True):
    """A rich display of a rank: a figure, a table. The bundle maps MIME types to data, as in Jupyter."""

    origin: str
    mesh: str
    rank: int
    data: dict[str, Any]
    metadata: dict[str, Any]
    options: LogOptions = SHOWN
    display_id: str = ""  # an update replaces the display with this id
    update: bool = False  # whether this replaces the display with this id


class ClearChunk(msgspec.Struct, frozen=True, array_like=True):
    """A rank's request to clear its displays; with `wait`, only when its next display arrives."""

    origin: str
    mesh: str
    rank: int
    wait: bool
    options: LogOptions = SHOWN


class UnsentOutput(msgspec.Struct, frozen=True, array_like=True):
    """Output of an ended process that it may not have sent.

    `pieces` were written through Python: number, execution, stream and text, in order. `past` holds, for stdout and
    stderr, the bytes written directly to the descriptor, and the position where they begin. They belong to the
    execution `origin`.
    """

    node: str
    mesh: str
    rank: int
    options: LogOptions
    origin: str
    pieces: list[tuple[int, str, StreamName, str]]
    past: list[tuple[int, bytes]]

    def after(self, mark: SentMark) -> Iterator[tuple[str, StreamName, str]]:
        """Yield execution, stream and text after the mark; adjacent pieces of the same ones are joined."""
        unseen = [(origin, stream, text) for number, origin, stream, text in self.pieces if number > mark.number]
        streams: tuple[StreamName, StreamName] = "stdout", "stderr"
        for stream, (start, data), seen in zip(streams, self.past, (mark.stdout, mark.stderr), strict=True):
            text = data[max(0, seen - start) :].decode("utf-8", "replace").replace("\0", "")
            unseen.append((self.origin, stream, text))
        for (origin, stream), group in itertools.groupby(unseen, key=lambda piece: piece[:2]):
            if text := "".join(text for _, _, text in group):
                yield origin, stream, whole(text)


Chunk = OutputChunk | DisplayChunk | ClearChunk
Sink = Callable[[Chunk], None]


class OutputStore:
    """Routes each chunk to the sink of its execution, and keeps the last lines of every rank (`logbook`).

    Sinks run on the receiving thread: they may only store the chunk.
    """

    def __init__(self) -> None:
        self.logbook = Logbook()
        self._sinks: dict[str, Sink] = {}
        self._default: Sink | None = None
        self._concluded: set[str] = set()  # nodes whose agent has sent all that was left of their output
        self._ended: dict[str, None] = {}  # nodes whose text is kept although they have ended, the oldest first
        self._marks: dict[str, SentMark] = {}  # by node: how much of its output has arrived
        # By mesh, rank, execution and stream: the beginning of an escape sequence that is still incomplete.
        self._halves: dict[tuple[str, int, str, str], str] = {}

    def open(self, origin: str, sink: Sink) -> None:
        """Route the output of this execution to `sink` from now on."""
        self._sinks[origin] = sink

    def end(self, origin: str) -> None:
        """Complete the execution's unfinished lines. Late output still goes to its sink."""
        self.logbook.end_execution(origin)

    def close(self, origin: str) -> None:
        """Remove the sink of this execution; late output goes to the default sink."""
        self._sinks.pop(origin, None)
        self._drop_halves(lambda writer: writer[2] == origin)
        self.end(origin)

    def set_default(self, sink: Sink | None) -> None:
        """Set the sink of output without an open execution."""
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
            # A display that fails must not cost the others their output.
            logger.exception("output of rank %d of %s could not be shown", chunk.rank, chunk.mesh)

    def _without_escapes(self, chunk: OutputChunk) -> OutputChunk:
        """Remove all escape sequences except colours."""
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
        """Add a chunk from a process, or the unsent output that its agent sent."""
        if isinstance(chunk, UnsentOutput):
            self.add_unsent(chunk)
        else:
            self.add(chunk)

    def add_relayed(self, chunk: OutputChunk) -> None:
        """Add text that has come with a reply, unless it was in the unsent output of the process, which has ended."""
        if chunk.mark is None or chunk.mark.node not in self._concluded:
            self.add(chunk)

    def add_unsent(self, remains: UnsentOutput) -> None:
        """Add the output of an ended process, except what has already arrived."""
        self._concluded.add(remains.node)
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
        """Return the last output of a rank, both streams, up to a mebi-character."""
        return self.logbook.text(f"{mesh}.{rank}")

    def log_states(self) -> dict[str, LogState]:
        """Return the last output of every rank, by process."""
        return self.logbook.log_states()

    def restore(self, log_states: dict[str, LogState]) -> None:
        """Start from saved output of ranks."""
        self.logbook.restore(log_states)

    def replay(self, chunk: Chunk | UnsentOutput) -> None:
        """Add output that was written while no notebook was attached; only the sink of its own execution shows it."""
        default, self._default = self._default, None
        try:
            self.take(chunk)
        finally:
            self._default = default

    def forget(self, mesh: str) -> None:
        """Drop the kept output of a mesh."""
        self._drop_halves(lambda writer: writer[0] == mesh)
        self.logbook.forget(node for node in self.logbook.nodes if node.rpartition(".")[0] == mesh)

    def ended(self, report: ExitReport) -> None:
        """Record the end of a process, and keep its text for a while: users look for it, and some may arrive late."""
        self.logbook.end_process(report.node)
        self._marks.pop(report.node, None)
        self._concluded.discard(report.node)  # from now on, the node drops such output
        self._ended.pop(report.node, None)  # a process that ends again is the newest
        self._ended[report.node] = None
        while len(self._ended) > REMEMBERED_ENDS:
            oldest = next(iter(self._ended))
            del self._ended[oldest]
            self.logbook.forget([oldest])

    def restarted(self, node: str) -> None:
        """Stop counting this process as ended: it was restarted under its name."""
        self._ended.pop(node, None)
        self._concluded.discard(node)

    def _drop_halves(self, is_over: Callable[[tuple[str, int, str, str]], bool]) -> None:
        """Drop the incomplete escape sequences of writers that have ended."""
        if self._halves:
            self._halves = {writer: half for writer, half in self._halves.items() if not is_over(writer)}


class TelemetryActor(Actor):
    """Receives output, events and points of curves.

    It is hosted inline, so that they are in their stores before the reply that follows them.
    """

    def __init__(self, store: OutputStore, events: EventLog, curves: CurveStore) -> None:
        self._store = store
        self._events = events
        self._curves = curves

    @endpoint
    def happened(self, event: RunEvent) -> None:
        """Store an event of a mesh."""
        self._events.add(event)

    @endpoint
    def output(self, chunk: Chunk | UnsentOutput) -> None:
        """Store text or a display of a rank."""
        self._store.take(chunk)

    @endpoint
    def relayed(self, chunk: OutputChunk) -> None:
        """Store text of a rank that has come with a reply."""
        self._store.add_relayed(chunk)

    @endpoint
    def logged(self, logged: Logged) -> None:
        """Store what a rank has logged by `meshbook.log`."""
        self._curves.add(logged)


ESCAPE_CHARACTERS = 4096  # of an incomplete sequence; a longer one is text
_COLOUR = r"\x1b\[[0-9;:]*m"
_COMMAND = r"\x1b\[[0-?]*[ -/]*[@-~]"
_STRING = r"\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC, DCS, SOS, PM, APC: titles, links, the clipboard
_OTHER = r"\x1b[ -/]*[0-~]?"
_EIGHT_BITS = r"[\x80-\x84\x86-\x9f]"  # C1, in which U+0085 is a line end
_SEQUENCE = re.compile(f"({_COLOUR})|{_COMMAND}|{_STRING}|{_OTHER}|{_EIGHT_BITS}")
_EIGHT_BIT = re.compile(_EIGHT_BITS)
_HALF = re.compile(rf"\x1b(?:\[[0-?]*[ -/]*|[ -/]+|[\]PX^_][^\x07\x1b]{{0,{ESCAPE_CHARACTERS}}}\x1b?)?\Z")


def has_escapes(text: str) -> bool:
    """Return whether the text has a control character that begins a sequence. Cheap."""
    return "\x1b" in text or not (text.isascii() or _EIGHT_BIT.search(text) is None)


def only_colours(text: str) -> str:
    """Return the text without sequences other than colours."""
    return _SEQUENCE.sub(r"\1", text) if has_escapes(text) else text


def split_half(text: str) -> tuple[str, str]:
    """Split off an incomplete sequence at the end of the text, and return both parts."""
    half = _HALF.search(text)
    return (text[: half.start()], half.group()) if half is not None else (text, "")
