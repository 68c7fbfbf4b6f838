"""Grouping of output that no cell owns: whole lines, and similar lines only once.

Pure: chunks in, lines out; the time is passed in. `forwarding` shows the lines.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from meshbook.runtime.telemetry.output import Chunk, DisplayChunk, OutputChunk, StreamName

UNFINISHED_SECONDS = 1.0  # seconds until a line without an end (a prompt, a progress bar) is shown as it is
LINE_CHARACTERS = 1 << 16  # a line that reaches this length is shown in pieces

_NUMBER = re.compile(r"0[xX][0-9a-fA-F]+|[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


@dataclass(frozen=True, slots=True)
class CompleteLines:
    """Whole lines, each with its end, that these ranks of a mesh wrote alike for the execution `origin`."""

    origin: str
    mesh: str
    ranks: tuple[int, ...]
    stream: StreamName
    text: str


@dataclass(frozen=True, slots=True)
class DrawnText:
    """Output of a rank that draws progress bars: settled text, and the current rows."""

    origin: str
    mesh: str
    rank: int
    stream: StreamName
    text: str
    live: str


Shown = CompleteLines | DrawnText | DisplayChunk
Channel = tuple[str, str, StreamName]  # origin, mesh, stream


class LineWriter(NamedTuple):
    """A rank as the writer of a channel; its lines are grouped for `window` seconds, or not at all."""

    channel: Channel
    rank: int
    window: float | None


class LogLines:
    """The pending lines of all processes: unfinished, being grouped, or ready to be shown."""

    def __init__(self) -> None:
        self._unfinished: dict[LineWriter, _Unfinished] = {}
        self._groups: dict[tuple[Channel, float], _LineGroup] = {}
        self._ready: list[Shown] = []

    def add(self, chunk: Chunk, now: float) -> None:
        """Add what a rank wrote or displayed."""
        if isinstance(chunk, OutputChunk):
            self._write(chunk, now)
        elif isinstance(chunk, DisplayChunk):
            self._ready.append(chunk)

    def take(self, now: float) -> list[Shown]:
        """Return what is due by now, and remove it."""
        for writer, line in list(self._unfinished.items()):
            if line.since + UNFINISHED_SECONDS <= now:
                self._finish(writer, now)
        for window, group in list(self._groups.items()):
            if group.until <= now:
                self._ready += self._groups.pop(window).lines()
        ready, self._ready = self._ready, []
        return ready

    def end(self, origin: str, now: float) -> None:
        """Make everything of this execution ready, finished or not: it has ended."""
        for writer in [writer for writer in self._unfinished if writer.channel[0] == origin]:
            self._finish(writer, now)
        for key in [key for key in self._groups if key[0][0] == origin]:
            self._ready += self._groups.pop(key).lines()

    def take_all(self) -> list[Shown]:
        """Return everything so far, finished or not."""
        return self.take(math.inf)

    def next_at(self) -> float:
        """Return when something becomes due even if nothing more arrives."""
        ends = [line.since + UNFINISHED_SECONDS for line in self._unfinished.values()]
        return min([*ends, *(group.until for group in self._groups.values())], default=math.inf)

    def _write(self, chunk: OutputChunk, now: float) -> None:
        writer = LineWriter((chunk.origin, chunk.mesh, chunk.stream), chunk.rank, chunk.options.window)
        before = self._unfinished.pop(writer, None)
        if chunk.live is not None and writer.window is None:
            text = (before.text if before else "") + chunk.text
            self._ready.append(DrawnText(chunk.origin, chunk.mesh, chunk.rank, chunk.stream, text, chunk.live))
            return
        lines, end, rest = ((before.text if before else "") + chunk.text).rpartition("\n")
        if end:
            self._add_lines(writer, lines + end, now)
        if rest:
            since = now if end or before is None else before.since
            self._unfinished[writer] = _Unfinished(_overwritten(rest), since)
            if len(rest) >= LINE_CHARACTERS:
                self._finish(writer, now)

    def _finish(self, writer: LineWriter, now: float) -> None:
        text = self._unfinished.pop(writer).text
        if text.strip():  # an erased progress bar leaves blanks
            self._add_lines(writer, f"{text}\n", now)

    def _add_lines(self, writer: LineWriter, text: str, now: float) -> None:
        channel, rank, window = writer
        origin, mesh, stream = channel
        if "\r" in text:  # show the lines as a terminal finally does, without text that a carriage return overwrote
            text = "".join(_overwritten(line.rstrip("\r")) + "\n" for line in _split(text))
        if window is None:
            self._ready.append(CompleteLines(origin, mesh, (rank,), stream, text))
            return
        group = self._groups.setdefault((channel, window), _LineGroup(channel, now + window))
        for line in _split(text):
            group.add(rank, line)


@dataclass(frozen=True, slots=True)
class _Unfinished:
    """A line without an end, and when it began."""

    text: str
    since: float


@dataclass(slots=True)
class _SimilarLines:
    """Lines that differ in numbers alone."""

    first: str
    count: int = 0
    ranks: set[int] = field(default_factory=set)

    def text(self) -> str:
        return f"{self.first}\n" if self.count == 1 else f"{self.first} ({self.count} similar lines)\n"


class _LineGroup:
    """The lines of one channel until a time."""

    def __init__(self, channel: Channel, until: float) -> None:
        self.until = until
        self._channel = channel
        self._alike: dict[str, _SimilarLines] = {}  # in the order in which each kind first appeared

    def add(self, rank: int, line: str) -> None:
        alike = self._alike.setdefault(skeleton(line), _SimilarLines(line))
        alike.count += 1
        alike.ranks.add(rank)

    def lines(self) -> Iterator[CompleteLines]:
        origin, mesh, stream = self._channel
        for alike in self._alike.values():
            yield CompleteLines(origin, mesh, tuple(sorted(alike.ranks)), stream, alike.text())


def skeleton(line: str) -> str:
    """Return a line without its numbers, including the rank's own: lines with equal results are similar."""
    return _NUMBER.sub("#", line)


def _overwritten(line: str) -> str:
    """Return what a line shows now; a carriage return at its end may be the first half of a line end."""
    shown = line.rstrip("\r")
    return shown.rpartition("\r")[2] + line[len(shown) :][:1] if "\r" in line else line


def _split(text: str) -> list[str]:
    """Split at newlines only: U+2028 and form feed are content."""
    return text.split("\n")[:-1]
