"""The logs of all processes of a run; each line has a serial number in the order of arrival.

    receiving thread -> `take` -> a RankLog for each process
    any other thread -> `extract` -> a snapshot to search (`logsearch`)

The size is limited for each process and in total. Above the total limit, the longest logs are cut first.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from meshbook.runtime.telemetry.ranklog import LOG_CHARACTERS, LiveRow, LogPiece, RankLog, Writer

BOOK_CHARACTERS = 256 << 20  # kept of all processes together
DROPPED_AT_ONCE = 8  # cut by one part in so many: each cut scans all logs
MOST_UNSETTLED = 1024  # executions; those of ordinary cells have no end


@dataclass(frozen=True)
class LogState:
    """The part of a process's log that one controller hands over to the next."""

    pieces: list[LogPiece]
    open_lines: dict[Writer, str]


@dataclass(frozen=True)
class LogExtract:
    """A snapshot of what some processes wrote.

    `pieces` and `rows` are by process. `first`: the serial number of the oldest line that is kept; `end`: one past the
    newest of all. `dropped`: how many lines of these processes were discarded.
    """

    end: int
    first: int
    dropped: int
    pieces: dict[str, list[LogPiece]] = field(default_factory=dict)
    rows: dict[str, list[LiveRow]] = field(default_factory=dict)


class Logbook:
    """The logs of processes, by the name of the node. For any thread.

    `limit`: characters for each process; `limit_in_all`: for all of them. `clock` is in seconds since 1970.
    """

    def __init__(
        self,
        limit: int = LOG_CHARACTERS,
        limit_in_all: int = BOOK_CHARACTERS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._limit = limit
        self._limit_in_all = limit_in_all
        self._clock = clock
        self._lock = threading.Lock()  # guards the fields below against readers on other threads
        self._logs: dict[str, RankLog] = {}
        self._next = 1  # serial number
        self._size = 0
        self._unsettled: dict[str, set[str]] = collections.defaultdict(
            set
        )  # by execution: nodes that have lines without an end

    def take(self, node: str, origin: str, stream: str, text: str, live: str | None = None) -> None:
        """Add text that a process wrote for an execution; `live` holds the rows after it that may still change."""
        with self._lock:
            log = self._logs.get(node)
            if log is None:
                log = self._logs[node] = RankLog(self._limit)
            before = log.size
            self._next += log.take(origin, stream, text, live, self._next, self._clock())
            self._size += log.size - before
            if origin and (live or (text and text[-1] != "\n")):
                self._note_unsettled(origin, node)
            if self._size > self._limit_in_all:
                self._shrink()

    def end_execution(self, origin: str) -> None:
        """Complete the unfinished lines of an execution, which has ended."""
        with self._lock:
            for node in self._unsettled.pop(origin, ()):
                self._settle(node, {(origin, "stdout"), (origin, "stderr")})

    def end_process(self, node: str) -> None:
        """Complete the unfinished lines of a process, which has ended."""
        with self._lock:
            self._settle(node)

    def forget(self, nodes: Iterable[str]) -> None:
        """Drop the logs of these processes."""
        with self._lock:
            for node in nodes:
                if (log := self._logs.pop(node, None)) is not None:
                    self._size -= log.size

    # -- reading -------------------------------------------------------------------

    @property
    def nodes(self) -> list[str]:
        """The processes with a log."""
        with self._lock:
            return list(self._logs)

    def text(self, node: str) -> str:
        """Return everything kept of a process, both streams."""
        with self._lock:
            return self._logs[node].text() if node in self._logs else ""

    def live_rows(self, node: str, origin: str, stream: str) -> str:
        """Return the rows of an execution that may still change."""
        with self._lock:
            return self._logs[node].live_rows((origin, stream)) if node in self._logs else ""

    def extract(self, nodes: Iterable[str], since: int = 0) -> LogExtract:
        """Return what these processes wrote from this serial number on; cheap if that is little."""
        with self._lock:
            logs = {node: self._logs[node] for node in nodes if node in self._logs}
            return LogExtract(
                end=self._next,
                first=min((log.first for log in logs.values() if log.first is not None), default=self._next),
                dropped=sum(log.dropped for log in logs.values()),
                pieces={node: log.pieces_since(since) for node, log in logs.items() if log.end > since},
                rows={node: list(log.rows()) for node, log in logs.items() if log.has_rows},
            )

    # -- handing over --------------------------------------------------------------

    def log_states(self) -> dict[str, LogState]:
        """Return the state for the next controller, by process."""
        with self._lock:
            return {node: LogState(*log.run_state()) for node, log in self._logs.items()}

    def restore(self, log_states: dict[str, LogState]) -> None:
        """Start from the logs of an earlier controller."""
        with self._lock:
            for node, run_state in log_states.items():
                log = self._logs.setdefault(node, RankLog(self._limit))
                before = log.size
                log.restore(run_state.pieces, run_state.open_lines)
                self._size += log.size - before
                self._next = max([self._next, *(piece.end for piece in run_state.pieces)])
                for (origin, _), text in run_state.open_lines.items():
                    if origin and text:
                        self._note_unsettled(origin, node)

    # -- internals -----------------------------------------------------------------

    def _note_unsettled(self, origin: str, node: str) -> None:
        self._unsettled[origin].add(node)
        if len(self._unsettled) > MOST_UNSETTLED:
            del self._unsettled[next(iter(self._unsettled))]

    def _settle(self, node: str, only: set[Writer] | None = None) -> None:
        log = self._logs.get(node)
        if log is None:
            return
        before = log.size
        for writer in log.writers():
            if only is None or writer in only:
                self._next += log.settle(writer, self._next, self._clock())
        self._size += log.size - before

    def _shrink(self) -> None:
        room = self._limit_in_all - self._limit_in_all // DROPPED_AT_ONCE
        level = level_of([log.size for log in self._logs.values()], room)
        for log in self._logs.values():
            log.shrink(level)
        self._size = sum(log.size for log in self._logs.values())


def level_of(sizes: Iterable[int], room: int) -> int:
    """Return the size to which to cut all logs, so that together they fit in `room`: the longest are cut first."""
    ordered = sorted(sizes)
    for at, size in enumerate(ordered):
        if size * (len(ordered) - at) > room:
            return room // (len(ordered) - at)
        room -= size
    return ordered[-1] if ordered else 0
