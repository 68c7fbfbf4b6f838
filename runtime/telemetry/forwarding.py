"""Forwarding: shows what ranks print outside of cells on the controller's screen.

    receiving thread -> queue -> forwarding thread -> LogLines -> Screen

The screen of a script is its own stdout and stderr; that of a notebook is its cells (`magics.output.actor_output`).
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
from meshbook.runtime.formats import encodable, format_ranks, mesh_name
from meshbook.runtime.telemetry.lines import DrawnText, LogLines, Shown
from meshbook.runtime.telemetry.output import Chunk, ClearChunk, DisplayChunk, OutputChunk
from meshbook.runtime.telemetry.overflow import Overflow

logger = logging.getLogger(__name__)

INTERVAL = 0.1  # seconds between two updates of the screen
GATHER = 0.02  # seconds after a first line, to collect lines that other ranks write at the same time


class Screen(Protocol):
    """Where lines are shown."""

    def show(self, shown: Sequence[Shown]) -> None:
        """Show these, in this order; may wait for the reader."""


class Forwarder:
    """Accepts output on the receiving thread, and shows it from its own thread, a few times a second.

    Output that a screen does not accept (a pager) is kept in memory up to a limit, and then in a file.
    """

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self._lines = LogLines()
        self._arrived: Overflow[tuple[float, Chunk]] = Overflow()
        self._next_at = math.inf
        self._news = threading.Condition()  # guards _arrived, _next_at and _thread
        self._showing = threading.Lock()  # guards _lines, and the order of what is shown
        self._closed = threading.Event()
        self._has_failed = False  # whether the screen failed last time
        self._thread: threading.Thread | None = None

    def take(self, chunk: Chunk) -> None:
        """Queue what a rank wrote, if it is to be shown; never waits for the screen."""
        if not chunk.options.shown or isinstance(chunk, ClearChunk):
            return
        if isinstance(chunk, OutputChunk):
            size = len(chunk.text)
        else:  # about the size of a figure, which is in the data
            size = sum(len(str(content)) for content in chunk.data.values())
        with self._news:
            self._arrived.put((monotonic(), chunk), size)
            self._news.notify()
            if self._thread is None:  # most scripts need none
                thread = threading.Thread(target=self._run, name="meshbook log forwarding", daemon=True)
                with contextlib.suppress(RuntimeError):  # the interpreter shuts down; `close` shows the rest
                    thread.start()
                    self._thread = thread

    def flush(self, ended: str = "") -> None:
        """Show what is due now, on this thread; and everything of the execution `ended`."""
        self._show(all_of_it=False, ended=ended)

    def close(self) -> None:
        """Show everything that has arrived, including lines without an end. Idempotent."""
        self._closed.set()
        with self._news:
            self._news.notify()
        if self._thread is not None:
            self._thread.join()
        self._show(all_of_it=True)

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

    def _show(self, *, all_of_it: bool, ended: str = "") -> None:
        with self._showing:
            while (until := self._sort_in()) is not None:
                self._show_lines(self._lines.take(until))
            if ended:
                self._lines.end(ended, monotonic())
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
            # A screen that fails (a closed stdout, a lost display) must not cost later lines.
            if not self._has_failed:
                logger.warning("output of ranks could not be shown: %s: %s", type(error).__name__, error)
            self._has_failed = True

    def _sort_in(self) -> float | None:
        """Sort in queued output, as much as fits in memory; return the time of its last piece if there is more.

        Lines that are unfinished then are not overdue: their end may be in the rest.
        """
        with self._news:
            arrived, lost, self._arrived.lost = self._arrived.take(), self._arrived.lost, 0
            is_more = bool(self._arrived)
        for at, chunk in arrived:
            self._lines.add(chunk, at)
        if lost:
            logger.warning("discarded %d chunks of output of ranks: %s", lost, self._arrived.why)
        return arrived[-1][0] if is_more else None


class ScriptScreen:
    """The script's own stdout and stderr; each line carries its mesh and ranks as a label."""

    def show(self, shown: Sequence[Shown]) -> None:
        for stream, some in itertools.groupby(
            shown, lambda each: "stdout" if isinstance(each, DisplayChunk) else each.stream
        ):
            file = sys.stderr if stream == "stderr" else sys.stdout
            if file is not None:  # a process may have none
                file.write(encodable("".join(map(_labelled, some)), file))
                file.flush()


def _labelled(shown: Shown) -> str:
    if isinstance(shown, DisplayChunk):
        return label_lines(shown.mesh, (shown.rank,), f"{shown.data.get('text/plain', '')}\n")
    if isinstance(shown, DrawnText):  # a script cannot redraw rows
        return label_lines(shown.mesh, (shown.rank,), f"{shown.text}\n") if shown.text.strip() else ""
    return label_lines(shown.mesh, shown.ranks, shown.text)


def label_lines(mesh: str, ranks: Sequence[int], text: str) -> str:
    """Prefix whole lines with a label: `[trainers 0-3] ready`."""
    label = f"[{mesh_name(mesh)} {format_ranks(ranks)}] "
    return label + text[:-1].replace("\n", f"\n{label}") + "\n"
