"""Search in logs: by text or pattern, by stream, by cell; page by page. Pure: a clock is passed in.

A search has a time limit, since a pattern may take forever; after that it returns how far it has come.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from meshbook.runtime.telemetry.logbook import LogExtract
from meshbook.runtime.telemetry.patterns import QueryError, comparisons_of
from meshbook.runtime.telemetry.ranklog import LiveRow, LogPiece

SECONDS = 0.5  # time limit of a search
MOST_LINES = 5000  # in a page
PAGE_CHARACTERS = 256 << 10  # size at which a page ends
SHOWN_CHARACTERS = 16 << 10  # shown of one line
MOST_ROWS = 200
MOST_SORTED = 100_000  # pieces up to which a sort is used
CLOCK_EVERY = 64  # lines between two readings of the clock

_ESCAPE = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


class LogLine(NamedTuple):
    """A line as it is shown. `at`: seconds since 1970; `cell`: the number of the cell that caused it, or None."""

    serial: int
    at: float
    rank: int
    stream: str
    cell: int | None
    text: str


class LiveLine(NamedTuple):
    """A line that may still change."""

    rank: int
    stream: str
    cell: int | None
    text: str


@dataclass(frozen=True, slots=True)
class LogQuery:
    """A query for lines. Empty `text`: all lines; empty `stream`: both; `cell` None: of all cells and of none.

    `regex`: the text is a regular expression of the package `regex`. `case`: match case. Colours are ignored.
    """

    text: str = ""
    regex: bool = False
    case: bool = False
    stream: str = ""
    cell: int | None = None

    def takes(self, origin: str, stream: str) -> bool:
        """Return whether lines of this execution and stream can match at all."""
        return (not self.stream or stream == self.stream) and (self.cell is None or cell_of(origin) == self.cell)


@dataclass(frozen=True)
class LogPage:
    """Lines in order of arrival, and their position in the log: see "logs" in `meshbook.widgets.protocol`."""

    lines: list[LogLine]
    first: int
    next: int
    end: int
    dropped: int
    matches: int
    partial: bool = False
    live: list[LiveLine] = field(default_factory=list)


def cell_of(origin: str) -> int | None:
    """Return the cell number of an execution: `9.0.3` on ranks, `local 9` for the notebook's own code."""
    number = origin.removeprefix("local ").partition(".")[0]
    return int(number) if number.isdecimal() else None


def find_lines(
    extract: LogExtract,
    ranks: Mapping[str, int],
    query: LogQuery,
    *,
    after: int = 0,
    before: int | None = None,
    limit: int = 500,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> LogPage:
    """Return the lines from the serial number `after` on, or the last ones before `before`, or by default the newest.

    `ranks` maps processes to ranks. Raises QueryError for an invalid query.
    """
    if not 1 <= limit <= MOST_LINES:
        raise QueryError(f"limit must be between 1 and {MOST_LINES} lines, not {limit}")
    search = _Search(query, clock() + seconds, clock)
    pieces = _pieces_of(extract, ranks, query, newest_first=not after)
    if after:
        return _read_on(search, extract, pieces, after, limit, _live_of(search, extract, ranks))
    live = _live_of(search, extract, ranks) if before is None else []
    return _read_back(search, extract, pieces, before, limit, live)


_Found = tuple[int, LogPiece]  # the rank, and its piece


def _pieces_of(
    extract: LogExtract, ranks: Mapping[str, int], query: LogQuery, *, newest_first: bool
) -> Iterator[_Found]:
    """Yield the pieces that the query selects, in order of arrival or in reverse."""
    takes = functools.cache(query.takes)
    of_ranks = [
        [(ranks[node], piece) for piece in pieces if takes(piece.origin, piece.stream)]
        for node, pieces in extract.pieces.items()
    ]
    if sum(map(len, of_ranks)) <= MOST_SORTED:
        yield from sorted(itertools.chain(*of_ranks), key=_serial_of, reverse=newest_first)
    else:  # a search rarely reads all of them
        in_order = (found[::-1] if newest_first else found for found in of_ranks)
        yield from heapq.merge(*in_order, key=_serial_of, reverse=newest_first)


def _serial_of(found: _Found) -> int:
    return found[1].serial


def _read_on(
    search: _Search, extract: LogExtract, pieces: Iterable[_Found], after: int, limit: int, live: list[LiveLine]
) -> LogPage:
    page = _Lines(limit)
    stopped = extract.end
    for rank, piece in pieces:
        for line in search.lines_of(rank, piece, range(after, extract.end)):
            if not page.add(line):
                stopped = line.serial
                break
        if search.is_over:
            stopped = min(stopped, max(after, piece.serial, search.reached))
        if stopped < extract.end:
            break
    lines, partial = page.lines, search.is_over
    return LogPage(lines, extract.first, stopped, extract.end, extract.dropped, len(lines), partial, live)


def _read_back(
    search: _Search, extract: LogExtract, pieces: Iterable[_Found], before: int | None, limit: int, live: list[LiveLine]
) -> LogPage:
    page, matches = _Lines(limit), 0
    wanted = range(extract.end if before is None else before)
    for rank, piece in pieces:
        if page.is_full and before is not None:
            break
        if page.is_full and search.takes_all:
            matches += piece.end - piece.serial
            continue
        for line in search.lines_of(rank, piece, wanted, newest_first=True):
            matches += page.add(line) or before is None
        if search.is_over:
            break
    lines, partial = page.lines[::-1], search.is_over
    return LogPage(lines, extract.first, extract.end, extract.end, extract.dropped, matches, partial, live)


def _live_of(search: _Search, extract: LogExtract, ranks: Mapping[str, int]) -> list[LiveLine]:
    rows = ((ranks[node], row) for node, own in extract.rows.items() for row in own)
    wanted = (found for found in rows if search.takes_row(found[1]))
    return [
        LiveLine(rank, row.stream, cell_of(row.origin), _shown(row.text))
        for (rank, row), _ in zip(sorted(wanted, key=lambda found: found[0]), range(MOST_ROWS), strict=False)
    ]


class _Lines:
    """The lines of a page, limited in lines and characters."""

    def __init__(self, limit: int) -> None:
        self.lines: list[LogLine] = []
        self._limit = limit
        self._characters = 0
        self.is_full = False

    def add(self, line: LogLine) -> bool:
        """Add a line, and return whether there was room for it."""
        if self.is_full:
            return False
        self.lines.append(line)
        self._characters += len(line.text)
        self.is_full = len(self.lines) >= self._limit or self._characters >= PAGE_CHARACTERS
        return True


class _Search:
    """Compares lines with a query until its time limit."""

    def __init__(self, query: LogQuery, until: float, clock: Callable[[], float]) -> None:
        self.is_over = False
        self._query = query
        self._clock = clock
        self._until = until
        self._compared = 0
        self._reached = 0  # the next line
        self._holds, self._may_be_in = comparisons_of(
            query.text, lambda: self._until - self._clock(), regex=query.regex, case=query.case
        )

    @property
    def takes_all(self) -> bool:
        """Whether lines need not be compared."""
        return self._holds is None

    def takes_row(self, row: LiveRow) -> bool:
        return self._query.takes(row.origin, row.stream) and bool(row.text) and self._takes(row.text)

    @property
    def reached(self) -> int:
        """The next line: one that took too long is skipped, or no search would ever get past it."""
        return self._reached

    def lines_of(self, rank: int, piece: LogPiece, wanted: range, *, newest_first: bool = False) -> Iterator[LogLine]:
        """Yield the matching lines among those with these serial numbers, until the time limit."""
        first, end = max(piece.serial, wanted.start), min(piece.end, wanted.stop)
        if first >= end or not self._may_hold(piece):
            return
        cell = cell_of(piece.origin)
        lines = list(enumerate(piece.lines()[first - piece.serial : end - piece.serial], first))
        for serial, text in reversed(lines) if newest_first else lines:
            if self.is_over:
                return
            matches = self._takes(text)
            self._reached = serial + 1
            if matches:
                yield LogLine(serial, piece.at, rank, piece.stream, cell, _shown(text))

    def _may_hold(self, piece: LogPiece) -> bool:
        self._look_at_clock()
        # One search of the whole text, in C, rules out most pieces. Colours may be in the middle of a word.
        if self._may_be_in is None or "\x1b" in piece.text or "\r" in piece.text:
            return True
        return self._may_be_in(piece.text)

    def _takes(self, text: str) -> bool:
        if self._holds is None:
            return True
        self._compared += 1
        if not self._compared % CLOCK_EVERY:
            self._look_at_clock()
        try:
            plain = _ESCAPE.sub("", text) if "\x1b" in text else text
            return not self.is_over and self._holds(plain)
        except TimeoutError:
            self.is_over = True
            return False

    def _look_at_clock(self) -> None:
        self.is_over = self.is_over or self._clock() >= self._until


def _shown(text: str) -> str:
    if len(text) <= SHOWN_CHARACTERS:
        return text
    return f"{text[:SHOWN_CHARACTERS]} [meshbook: {len(text) - SHOWN_CHARACTERS} more characters]"
