"""Forwarding: what ranks print and no cell owns is shown where the controller shows things.

    receiving thread -> what has arrived -> one thread -> LogLines -> Screen

A script's screen is its own stdout and stderr; a notebook's are its cells (`magics.forwarding`).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import sys
import threading
from collections.abc import Sequence
from typing import Protocol

from meshbook.runtime.clock import monotonic
from meshbook.runtime.geometry.ranges import format_ranks
from meshbook.runtime.telemetry.lines import DrawnText, LogLines, Shown
from meshbook.runtime.telemetry.output import Chunk, ClearChunk, DisplayChunk, OutputChunk, StreamName
from meshbook.runtime.telemetry.overflow import Overflow

logger = logging.getLogger(__name__)

INTERVAL = 0.1  # seconds between two times that something is shown
GATHER = 0.02  # seconds after a first line, for those of other ranks that are written at the same time


class Screen(Protocol):
    """Where lines are shown."""

    def show(self, shown: Sequence[Shown]) -> None:
        """Show these, in this order; may wait for whoever reads."""


class Forwarder:
    """Takes output in on the receiving thread, and shows it from a thread of its own, a few times a second.

    What a screen does not take (a pager) is kept in memory for a while, and then in a file.
    """

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self._lines = LogLines()
        self._arrived: Overflow[tuple[float, Chunk]] = Overflow()
        self._next_at = math.inf
        self._news = threading.Condition()  # guards _arrived, _next_at and _thread
        self._showing = threading.Lock()  # guards _lines, and the order of what is shown
        self._closed = threading.Event()
        self._has_failed = False  # the screen, the last time
        self._thread: threading.Thread | None = None

    def take(self, chunk: Chunk) -> None:
        """Note what a rank wrote, if it is to be shown; never waits for the screen."""
        if not chunk.options.shown or isinstance(chunk, ClearChunk):
            return
        with self._news:
            self._arrived.put((monotonic(), chunk), _size_of(chunk))
            self._news.notify()
            if self._thread is None:  # most scripts need none
                self._start()

    def flush(self) -> None:
        """Show what there is to be shown now, on this thread."""
        self._show(all_of_it=False)

    def close(self) -> None:
        """Show everything that has arrived, lines without an end too. Idempotent."""
        self._closed.set()
        with self._news:
            self._news.notify()
        if self._thread is not None:
            self._thread.join()
        self._show(all_of_it=True)

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="meshbook log forwarding", daemon=True)
        with contextlib.suppress(RuntimeError):  # at the interpreter's end none can be started; `close` shows the rest
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        while not self._closed.is_set():
            self._wait()
            self._closed.wait(GATHER)
            self.flush()
            self._closed.wait(INTERVAL)

    def _wait(self) -> None:
        with self._news:
            while not (self._arrived or self._closed.is_set()):
                left = self._next_at - monotonic()
                if left <= 0:
                    return
                self._news.wait(None if math.isinf(left) else left)

    def _show(self, *, all_of_it: bool) -> None:
        with self._showing:
            while (until := self._sort_in()) is not None:
                self._show_lines(self._lines.take(until))
            self._show_lines(self._lines.take_all() if all_of_it else self._lines.take(monotonic()))
            with self._news:
                self._next_at = self._lines.next_at()
                self._news.notify()

    def _show_lines(self, shown: Sequence[Shown]) -> None:
        try:
            if shown:
                self.screen.show(shown)
                self._has_failed = False
        except Exception as error:
            # One that fails (a closed stdout, a display that is gone) must not cost the lines that come after.
            if not self._has_failed:
                logger.warning("output of ranks could not be shown: %s: %s", type(error).__name__, error)
            self._has_failed = True

    def _sort_in(self) -> float | None:
        """Take in what has arrived, or so much of it as memory is for; until when that came, if there is more.

        What is unfinished by then is not late: its end may be in what follows.
        """
        with self._news:
            arrived, lost, self._arrived.lost = self._arrived.take(), self._arrived.lost, 0
            is_more = bool(self._arrived)
        for at, chunk in arrived:
            self._lines.add(chunk, at)
        if lost:
            logger.warning("%d pieces of output of ranks are not shown: %s", lost, self._arrived.why)
        return arrived[-1][0] if is_more else None


class ScriptScreen:
    """The script's own stdout and stderr, each line with the mesh and the ranks that wrote it."""

    def show(self, shown: Sequence[Shown]) -> None:
        for stream, some in itertools.groupby(shown, _stream_of):
            file = sys.stderr if stream == "stderr" else sys.stdout
            if file is not None:  # a process may have none
                file.write("".join(map(_labelled, some)))
                file.flush()


def _size_of(chunk: Chunk) -> int:
    """The characters in it, roughly; a figure's are in its data."""
    if isinstance(chunk, OutputChunk):
        return len(chunk.text)
    return sum(len(str(content)) for content in chunk.data.values()) if isinstance(chunk, DisplayChunk) else 0


def _stream_of(shown: Shown) -> StreamName:
    return "stdout" if isinstance(shown, DisplayChunk) else shown.stream


def _labelled(shown: Shown) -> str:
    if isinstance(shown, DisplayChunk):
        return label_lines(shown.mesh, (shown.rank,), f"{shown.data.get('text/plain', '')}\n")
    if isinstance(shown, DrawnText):  # a script has no place for what changes
        return label_lines(shown.mesh, (shown.rank,), f"{shown.text}\n") if shown.text.strip() else ""
    return label_lines(shown.mesh, shown.ranks, shown.text)


def label_lines(mesh: str, ranks: Sequence[int], text: str) -> str:
    """Whole lines with a label before each: `[trainers 0-3] ready`."""
    label = f"[{mesh_name(mesh)} {format_ranks(ranks)}] "
    return label + text[:-1].replace("\n", f"\n{label}") + "\n"


def mesh_name(mesh: str) -> str:
    """The name that the user gave a mesh: `trainers` of `trainers-3f9c01aa`, which is unique in the run."""
    return mesh.rpartition("-")[0] or mesh
