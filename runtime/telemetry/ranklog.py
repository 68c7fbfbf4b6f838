"""The last lines that one process wrote, within a limit. Pure: serial numbers and times are passed in.

Text is kept in the pieces in which it arrived, each of whole lines, and is split when it is read: the receiving thread
only counts lines. `logsearch` searches; `logbook` covers many processes.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import NamedTuple

LOG_CHARACTERS = 1 << 20  # kept of each process
LINE_CHARACTERS = 1 << 16  # an unfinished line that reaches this length is kept as it is
MOST_OPEN = 16  # unfinished lines; above this the oldest counts as complete
PIECE_CHARACTERS = 100  # overhead of a piece in memory
DROPPED_AT_ONCE = 8  # drop one part in so many: cutting the oldest piece copies it

Writer = tuple[str, str]  # an execution, and its stream


class LogPiece(NamedTuple):
    """Lines that arrived together: `serial` is that of the first, and `end` one past that of the last.

    `at`: time of arrival in seconds since 1970. Only the last line may be without an end.
    """

    serial: int
    end: int
    at: float
    origin: str
    stream: str
    text: str

    def lines(self) -> list[str]:
        """Return its lines as a terminal shows them. Only a newline ends one: U+2028 and form feed are content."""
        lines = self.text.split("\n")
        if not lines[-1]:
            lines.pop()
        return [_overwritten(line) for line in lines] if "\r" in self.text else lines


class LiveRow(NamedTuple):
    """A line that may still change: one without an end, or a progress bar."""

    origin: str
    stream: str
    text: str


class RankLog:
    """The last `limit` characters that a process wrote. Not thread-safe."""

    def __init__(self, limit: int = LOG_CHARACTERS) -> None:
        self.size = 0  # characters, including overhead
        self.dropped = 0  # lines
        self._limit = limit
        self._pieces: collections.deque[LogPiece] = collections.deque()
        self._open: dict[Writer, str] = {}  # lines without an end
        self._live: dict[Writer, str] = {}  # rows that may still change

    def take(self, origin: str, stream: str, text: str, live: str | None, serial: int, at: float) -> int:
        """Add text, and return how many lines it completes; `live` holds the rows after it, None leaves them unchanged.

        `serial` is the number of the first of these lines, `at` the time in seconds since 1970.
        """
        writer = origin, stream
        if live:
            self._live[writer] = live
        elif live is not None:
            self._live.pop(writer, None)
        if not text:
            return 0
        if self._open and writer in self._open:
            text = self._close(writer) + text
        if text[-1] != "\n":
            lines, end, rest = text.rpartition("\n")
            if len(rest) < LINE_CHARACTERS:
                self._open[writer] = rest
                self.size += len(rest)
                text = lines + end
        count = self._add(writer, text, serial, at) if text else 0
        if len(self._open) > MOST_OPEN:
            count += self.settle(next(iter(self._open)), serial + count, at)
        return count

    def settle(self, writer: Writer, serial: int, at: float) -> int:
        """Complete the unfinished line of a writer that sends no more; return how many lines that adds."""
        text = self._close(writer) + self._live.pop(writer, "")
        return self._add(writer, text, serial, at) if text else 0

    def writers(self) -> list[Writer]:
        """Return the writers with lines that may still change."""
        return list({**self._open, **self._live})

    def shrink(self, size: int) -> None:
        """Drop the oldest lines until the size is at most this."""
        while self.size > size and self._pieces:
            excess = self.size - size
            piece = self._pieces.popleft()
            self.size -= len(piece.text) + PIECE_CHARACTERS
            rest = _cut(piece, excess)
            self.dropped += (rest.serial if rest else piece.end) - piece.serial
            if rest is not None:
                self._pieces.appendleft(rest)
                self.size += len(rest.text) + PIECE_CHARACTERS

    # -- reading -------------------------------------------------------------------

    @property
    def has_rows(self) -> bool:
        """Whether there are lines that may still change."""
        return bool(self._open or self._live)

    @property
    def end(self) -> int:
        """One past the serial number of the newest line; 0 without any."""
        return self._pieces[-1].end if self._pieces else 0

    @property
    def first(self) -> int | None:
        """The serial number of the oldest line."""
        return self._pieces[0].serial if self._pieces else None

    def pieces(self) -> list[LogPiece]:
        """Return all pieces, the oldest first."""
        return list(self._pieces)

    def pieces_since(self, serial: int) -> list[LogPiece]:
        """Return the pieces with lines of this serial number or later, the oldest first; cheap if these are few."""
        found: list[LogPiece] = []
        for piece in reversed(self._pieces):
            if piece.end <= serial:
                break
            found.append(piece)
        return found[::-1]

    def live_rows(self, writer: Writer) -> str:
        """Return the rows of one writer that may still change, without its unfinished line."""
        return self._live.get(writer, "")

    def rows(self) -> Iterator[LiveRow]:
        """Yield the lines that may still change, in their current state."""
        for writer in self.writers():
            text = self._open.get(writer, "") + self._live.get(writer, "")
            for line in text.split("\n"):
                yield LiveRow(*writer, _overwritten(line))

    def text(self) -> str:
        """Return all text."""
        rows = (self._open.get(writer, "") + self._live.get(writer, "") for writer in self.writers())
        return "".join([*(piece.text for piece in self._pieces), *rows])

    # -- handing over --------------------------------------------------------------

    def run_state(self) -> tuple[list[LogPiece], dict[Writer, str]]:
        """Return the state for another controller: the pieces, and lines without an end."""
        return self.pieces(), {writer: self._open.get(writer, "") for writer in self.writers()}

    def restore(self, pieces: list[LogPiece], open_lines: dict[Writer, str]) -> None:
        """Start from another controller's state; processes that draw rows send them again."""
        self._pieces.extend(pieces)
        self._open.update({writer: text for writer, text in open_lines.items() if text})
        self.size += sum(len(piece.text) + PIECE_CHARACTERS for piece in pieces) + sum(map(len, open_lines.values()))

    # -- internals -----------------------------------------------------------------

    def _close(self, writer: Writer) -> str:
        text = self._open.pop(writer, "")
        self.size -= len(text)
        return text

    def _add(self, writer: Writer, text: str, serial: int, at: float) -> int:
        count = text.count("\n") + (text[-1] != "\n")
        self._pieces.append(LogPiece(serial, serial + count, at, *writer, text))
        self.size += len(text) + PIECE_CHARACTERS
        if self.size > self._limit:
            self.shrink(self._limit - self._limit // DROPPED_AT_ONCE)
        return count


def _cut(piece: LogPiece, excess: int) -> LogPiece | None:
    """Remove so many characters from the start, and the rest of the line where the cut falls; return what is left."""
    if excess >= len(piece.text):
        return None
    cut = piece.text.find("\n", excess - 1) + 1
    if cut in (0, len(piece.text)):  # within its last line: keep the end of that line
        cut = excess
    gone = piece.text.count("\n", 0, cut)
    text = piece.text[cut:]
    return piece._replace(serial=piece.serial + gone, text=text) if text else None


def _overwritten(line: str) -> str:
    """Return the final state of a line that overwrote itself."""
    shown = line.rstrip("\r")
    return shown.rpartition("\r")[2] if "\r" in shown else shown
