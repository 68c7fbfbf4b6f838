"""Output of actors that an ordinary cell called: shown in that cell, labelled, a few times a second.

An ordinary cell may block the main thread, so this publishes from a thread of its own.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Literal

from meshbook.magics.publications import Display, Publication, Stream
from meshbook.magics.publisher import Publisher, publisher_for
from meshbook.runtime.geometry.ranges import format_ranks
from meshbook.runtime.hosts.session import Session
from meshbook.runtime.telemetry.output import Chunk, DisplayChunk, OutputChunk

INTERVAL = 0.1
REMEMBERED_CELLS = 64
CELL_CHARACTERS = 400_000  # of one cell; the rest is in `%mesh log` and in the ranks' own files

StreamName = Literal["stdout", "stderr"]


class Forwarder:
    """Takes what no `%%mesh` cell claims, and publishes it in the ordinary cell that caused it."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._lock = threading.Lock()  # guards the cells and what waits
        self._cells: OrderedDict[str, _Cell] = OrderedDict()
        self._latest = ""
        self._timer: threading.Timer | None = None
        session.output.set_default(self.take)

    def begin(self, origin: str, shell: Any) -> None:
        """An ordinary cell begins."""
        with self._lock:
            self._cells[origin] = _Cell(publisher_for(shell))
            self._latest = origin
            while len(self._cells) > REMEMBERED_CELLS:
                self._cells.popitem(last=False)

    def take(self, chunk: Chunk) -> None:
        """On the receiving thread: note the chunk, and plan to publish."""
        with self._lock:
            cell = self._cells.get(chunk.origin) or self._cells.get(self._latest)
            if cell is None:
                return
            cell.add(chunk)
            if self._timer is None:
                self._timer = threading.Timer(INTERVAL, self.flush)
                self._timer.daemon = True
                self._timer.start()

    def flush(self) -> None:
        """Publish what waits."""
        with self._lock:
            self._timer = None
            waiting = [(cell.publisher, cell.take()) for cell in self._cells.values()]
        for publisher, publications in waiting:
            if publications:
                publisher.publish(publications)


class _Cell:
    """What waits to be shown in one cell: the text of each rank since the last time, and displays."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self._room = CELL_CHARACTERS
        self._texts: dict[tuple[str, StreamName], dict[int, list[str]]] = {}
        self._displays: list[Publication] = []

    def add(self, chunk: Chunk) -> None:
        mesh = chunk.mesh.rpartition("-")[0]
        if isinstance(chunk, DisplayChunk):
            label = f"[{mesh} {chunk.rank}]"
            self._displays += [Display({"text/plain": label}, {}), Display(chunk.data, chunk.metadata)]
        elif isinstance(chunk, OutputChunk) and self._room > 0:
            self._room -= len(chunk.text)
            texts = self._texts.setdefault((mesh, chunk.stream), {}).setdefault(chunk.rank, [])
            texts.append(chunk.text if self._room > 0 else f"… more is not shown (%mesh log {chunk.rank})\n")

    def take(self) -> list[Publication]:
        texts, self._texts = self._texts, {}
        displays, self._displays = self._displays, []
        return [*(_labelled(mesh, stream, by_rank) for (mesh, stream), by_rank in texts.items()), *displays]


def _labelled(mesh: str, stream: StreamName, by_rank: dict[int, list[str]]) -> Stream:
    """Each line with the ranks it came from; what several ranks said alike, once."""
    ranks_of: dict[str, list[int]] = {}
    for rank, parts in sorted(by_rank.items()):
        ranks_of.setdefault("".join(parts), []).append(rank)
    lines = [
        f"[{mesh} {format_ranks(ranks)}] {line}\n" for text, ranks in ranks_of.items() for line in text.splitlines()
    ]
    return Stream(stream, "".join(lines))
