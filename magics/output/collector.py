"""The collector of one cell's output: it stores everything that ranks write and display, and publishes it.

`CellOutput` decides what to show; the output always goes to the cell that caused it. The receiving thread stores chunks
and blocks while it does. Only the event loop of the cell publishes. Not for what is shown and how (`model`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Literal

from meshbook.magics.output.model import CellOutput
from meshbook.magics.output.publisher import Publication, Publisher, StreamText
from meshbook.magics.output.render import Ending
from meshbook.runtime.cells.outcome import ErrorKind, RankError
from meshbook.runtime.telemetry.output import Chunk, DisplayChunk, OutputChunk
from meshbook.runtime.telemetry.spool import DisplaySpool, Spool

LATE = 0.25  # seconds from text that arrives after the cell's end until it is published
StreamName = Literal["stdout", "stderr"]
_ENDINGS: dict[ErrorKind, Ending] = {"interrupted": "interrupted", "skipped": "skipped"}


class OutputCollector:
    """The output of one cell. Create it on the cell's event loop. Any thread may store and read text."""

    def __init__(self, output: CellOutput, publisher: Publisher) -> None:
        self._lock = threading.Lock()  # guards the model and the spools
        self._output = output
        self._publisher = publisher
        self._loop = asyncio.get_running_loop()
        self._spools: dict[tuple[int, StreamName], Spool] = {}
        self._displays: dict[int, DisplaySpool] = {}
        self._is_late = False  # the cell has ended; text may still come
        self._late_planned = False
        self.final: Sequence[Publication] = ()  # what was published at its end

    def take(self, chunk: Chunk) -> None:
        """Store a chunk of text, a display or a clear request of a rank."""
        with self._lock:
            if isinstance(chunk, OutputChunk):
                self._spool(chunk)
                self._output.add(chunk.rank, chunk.stream, chunk.text, chunk.live)
            elif isinstance(chunk, DisplayChunk):
                self._displays.setdefault(chunk.rank, DisplaySpool()).add(chunk)
                self._output.display(chunk.rank, chunk.data, chunk.metadata, chunk.display_id, update=chunk.update)
            else:
                self._output.clear(chunk.rank, wait=chunk.wait)
            plan = self._is_late and not self._late_planned
            self._late_planned = self._late_planned or plan
        if plan:
            self._loop.call_soon_threadsafe(self._loop.call_later, LATE, self._publish_late)

    def _spool(self, chunk: OutputChunk) -> None:
        spool = self._spools.setdefault((chunk.rank, chunk.stream), Spool())
        spool.write(chunk.text)
        if chunk.live is not None:
            spool.live = chunk.live

    def finish(self, rank: int, error: RankError | None) -> None:
        """Record how a rank ended."""
        with self._lock:
            self._output.finish(rank, "done" if error is None else _ENDINGS.get(error.kind, "failed"))

    def leave(self) -> None:
        """Record that the ranks continue without this notebook."""
        with self._lock:
            self._output.leave()

    def remark(self, line: str) -> None:
        """Show this line below the header."""
        with self._lock:
            self._output.remark(line)

    def wait(self, ranks: frozenset[int], what_for: str) -> None:
        """Record the ranks that have not begun, and why."""
        with self._lock:
            self._output.wait(ranks, what_for)

    def publish_due(self) -> None:
        """Publish what is due now."""
        with self._lock:
            publications = self._output.due(self._loop.time())
        self._publisher.publish(publications)

    def pause(self) -> None:
        """Publish all output so far in its final form, above the prompt that follows."""
        with self._lock:
            publications = self._output.pause(self._loop.time())
        self._publisher.publish(publications)

    def resume(self) -> None:
        """Continue after a prompt."""
        with self._lock:
            self._output.resume(self._loop.time())

    def print_beside_prompt(self, text: str) -> None:
        """Publish this text beside the prompt."""
        self._publisher.publish([StreamText("stdout", text)])

    def close(self, footer: Callable[[], str] = str) -> None:
        """End the cell: publish its final output; a longer cell gets a footer."""
        with self._lock:
            publications = self._output.close(self._loop.time(), footer)
            self.final = self._output.final
            self._is_late = True
        self._publisher.publish(publications)

    def forget_final(self) -> None:
        """Drop the final publications, which are not needed again: results are long-lived and refer to this object."""
        with self._lock:
            self.final, self._output.final = (), []

    def headline(self) -> str:
        """Return the cell's state as one line."""
        with self._lock:
            return self._output.headline(self._loop.time())

    def text(self, rank: int, stream: StreamName) -> str:
        """Return all text that a rank wrote."""
        with self._lock:
            spool = self._spools.get((rank, stream))
            return spool.read() if spool is not None else ""

    def live_rows(self) -> dict[int, str]:
        """Return the rows that may still change, for the ranks that have any."""
        with self._lock:
            rows: dict[int, str] = {}
            for (rank, _), spool in self._spools.items():
                if spool.live:
                    rows[rank] = f"{rows.get(rank, '')}{spool.live}\n"
            return rows

    def written(self) -> list[Chunk]:
        """Return everything that ranks wrote and displayed; each rank's chunks in order."""
        with self._lock:
            texts: list[Chunk] = [
                OutputChunk("", "", rank, stream, spool.read().removesuffix(spool.live), live=spool.live or None)
                for (rank, stream), spool in self._spools.items()
            ]
            return [*texts, *(chunk for spool in self._displays.values() for chunk in spool.read())]

    @property
    def seconds(self) -> float:
        """How long the cell has run."""
        return self._loop.time() - self._output.started

    def displays(self, rank: int) -> list[DisplayChunk]:
        """Return everything that a rank displayed."""
        with self._lock:
            spool = self._displays.get(rank)
            return spool.read() if spool is not None else []

    def _publish_late(self) -> None:
        """Publish text that threads of the cell print after its end, in the same cell."""
        with self._lock:
            self._late_planned = False
            publications = self._output.due(self._loop.time())
            if not publications and self._output.has_late_text:
                self._late_planned = True
                self._loop.call_later(LATE, self._publish_late)
        self._publisher.publish(publications)
