"""The output of all ranks on one terminal: line by line, prefixed with the rank, on the stream it was written to."""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import TextIO

from meshbook.runtime.formats import encodable
from meshbook.runtime.telemetry.output import Chunk, OutputChunk, StreamName

REDRAW_SECONDS = 1.0  # between two states of a progress bar, which would otherwise be a line each
LINE_CHARACTERS = 1 << 20  # of an unfinished line; longer ones are broken
_ENDS = re.compile(r"(\r?\n|\r(?!\Z))")  # a final \r may be followed by its \n


class Prefixer:
    """Makes lines of the chunks that ranks write. Pure; `now` is in seconds of any monotonic clock."""

    def __init__(self, size: int) -> None:
        self._width = len(str(size - 1))
        self._open: dict[tuple[int, StreamName], str] = {}  # lines without an end yet
        self._redrawn: dict[tuple[int, StreamName], float] = {}

    def add(self, rank: int, stream: StreamName, text: str, now: float) -> list[str]:
        """Return the lines that this chunk completes; some lines that carriage returns overwrite are left out."""
        key = (rank, stream)
        *pairs, rest = _ENDS.split(self._open.pop(key, "") + text)
        if len(rest) > LINE_CHARACTERS:
            pairs, rest = [*pairs, rest, "\n"], ""
        if rest:
            self._open[key] = rest
        return [
            self._prefixed(rank, line)
            for line, end in zip(pairs[::2], pairs[1::2], strict=True)
            if end != "\r" or (line and self._may_redraw(key, now))
        ]

    def rest(self) -> list[tuple[StreamName, str]]:
        """Return the unfinished lines at the end, and their streams."""
        left, self._open = sorted(self._open.items()), {}
        return [(stream, self._prefixed(rank, text.rstrip("\r"))) for (rank, stream), text in left]

    def _may_redraw(self, key: tuple[int, StreamName], now: float) -> bool:
        if now - self._redrawn.get(key, float("-inf")) < REDRAW_SECONDS:
            return False
        self._redrawn[key] = now
        return True

    def _prefixed(self, rank: int, line: str) -> str:
        return f"[rank {rank:>{self._width}}] {line}\n"


class Printer:
    """Prints output on a thread of its own: the receiving thread must not wait for a pipe.

    Known limit: the queue has no bound. `broken` is called, once, when the output is no longer read; the rest is
    dropped.
    """

    def __init__(self, size: int, files: Mapping[StreamName, TextIO], broken: Callable[[], None]) -> None:
        self._files = files
        self._broken = broken
        self._is_broken = False
        self._prefixer = Prefixer(size)
        self._waiting: queue.SimpleQueue[OutputChunk | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="meshbook printer", daemon=True)
        self._thread.start()

    def take(self, chunk: Chunk) -> None:
        """Queue the output of a rank; for any thread. Displays are ignored."""
        if isinstance(chunk, OutputChunk):
            self._waiting.put(chunk)

    def close(self) -> None:
        """Write all queued output, and the unfinished lines."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (chunk := self._waiting.get()) is not None:
            lines = self._prefixer.add(chunk.rank, chunk.stream, chunk.text, time.monotonic())
            self._write(chunk.stream, "".join(lines))
        for stream, line in self._prefixer.rest():
            self._write(stream, line)

    def _write(self, stream: StreamName, text: str) -> None:
        if not text or self._is_broken:
            return
        try:
            self._files[stream].write(encodable(text, self._files[stream]))
            self._files[stream].flush()
        except OSError:  # a closed pipe, a full disk
            self._is_broken = True
            self._broken()
