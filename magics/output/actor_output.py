"""Output of actors that an ordinary cell called: published in that cell, labelled, a few times a second.

An ordinary cell may block the main thread, so the runtime's `Forwarder` publishes from its own thread.

Progress bars of actors in an ordinary cell share one area per mesh, which merges the bars of all ranks.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from meshbook.magics.output.grouping import Block, group_blocks, split_lines
from meshbook.magics.output.publisher import Display, LiveDisplay, Publication, Publisher, StreamText, publisher_for
from meshbook.magics.output.render import render_area
from meshbook.magics.output.text_buffer import TextBuffer
from meshbook.magics.output.truncation import fit_details, fit_streams
from meshbook.runtime.formats import mesh_name
from meshbook.runtime.telemetry.forwarding import label_lines
from meshbook.runtime.telemetry.lines import CompleteLines, DrawnText, Shown
from meshbook.runtime.telemetry.output import DisplayChunk, StreamName

REMEMBERED_CELLS = 64
CELL_DISPLAYS = 20  # of one cell, each with a label: front ends show about fifty outputs
CELL_CHARACTERS = 400_000  # of one cell; the rest is in `%mesh log` and in the ranks' files
CELL_LINES = 4000  # of one cell: a page with many more lines is slow

Ranks = tuple[int, ...]


class ActorOutputRouter:
    """Publishes output that no `%%mesh` cell claims, in the ordinary cell that caused it or else in the latest."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the cells: one may begin while others are published
        self._cells: OrderedDict[str, _Cell] = OrderedDict()
        self._latest = ""

    def begin(self, origin: str, shell: Any) -> None:
        """Register an ordinary cell that begins."""
        with self._lock:
            self._cells[origin] = _Cell(publisher_for(shell))
            self._latest = origin
            while len(self._cells) > REMEMBERED_CELLS:
                self._cells.popitem(last=False)

    def publish(self, origin: str, publications: Sequence[Publication]) -> None:
        """Publish in the cell of this origin, or else in the latest cell."""
        with self._lock:
            cell = self._cells.get(origin) or self._cells.get(self._latest)
        if cell is not None:
            cell.publisher.publish(publications)

    def show(self, shown: Sequence[Shown]) -> None:
        with self._lock:
            for each in shown:
                cell = self._cells.get(each.origin) or self._cells.get(self._latest)
                if cell is not None:
                    cell.add(each)
            waiting = [(cell.publisher, cell.take()) for cell in self._cells.values()]
        for publisher, publications in waiting:
            if publications:
                publisher.publish(publications)


class _Cell:
    """The unpublished output of one cell: the text of each rank since the last update, bars, and displays."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self._room = CELL_CHARACTERS
        self._places = CELL_DISPLAYS
        self._texts: dict[tuple[str, StreamName], dict[Ranks, list[str]]] = {}
        self._displays: list[Publication] = []
        self._drawings = ActorProgressBars()

    def add(self, shown: Shown) -> None:
        if isinstance(shown, DrawnText):
            self._draw(shown)
        elif isinstance(shown, DisplayChunk):
            self._add_display(shown)
        elif self._room > 0:
            texts = self._texts.setdefault((shown.mesh, shown.stream), {}).setdefault(shown.ranks, [])
            texts.append(self._fit(shown.text, shown.ranks[0]))

    def _fit(self, text: str, rank: int) -> str:
        """Return the text, or only its first lines if the rest exceeds the budget."""
        costs = [max(len(line), CELL_CHARACTERS // CELL_LINES) for line in text.splitlines(keepends=True)]
        room, self._room = self._room, self._room - sum(costs)
        if self._room > 0:
            return text
        count = sum(1 for total in accumulate(costs) if total <= room)
        kept = "".join(text.splitlines(keepends=True)[:count])
        return f"{kept}… more is not shown (%mesh log {rank})\n"

    def _draw(self, drawn: DrawnText) -> None:
        if self.publisher.updates:
            self._drawings.add(drawn)
            return
        # A terminal shows bars in their final state; text that ends with a carriage return is still to be overwritten.
        whole, _, rest = drawn.text.rpartition("\n")
        text = "\n".join(split_lines(whole if rest.endswith("\r") else drawn.text)).strip("\n")
        if text:
            self.add(CompleteLines(drawn.origin, drawn.mesh, (drawn.rank,), drawn.stream, f"{text}\n"))

    def _add_display(self, shown: DisplayChunk) -> None:
        label = label_lines(shown.mesh, (shown.rank,), "\n").rstrip()
        self._places -= 1
        if self._places >= 0:
            self._displays += [Display({"text/plain": label}, {}), Display(shown.data, shown.metadata)]
        elif self._places == -1:
            self._displays.append(Display({"text/plain": f"{label} … more displays are not shown"}, {}))

    def take(self) -> list[Publication]:
        texts, self._texts = self._texts, {}
        displays, self._displays = self._displays, []
        streams = [_labelled(mesh, stream, by_ranks) for (mesh, stream), by_ranks in texts.items()]
        return [*streams, *self._drawings.take(), *displays]


def _labelled(mesh: str, stream: StreamName, by_ranks: dict[Ranks, list[str]]) -> StreamText:
    """Prefix each line with its ranks; text that several ranks share appears once."""
    ranks_of: dict[str, list[int]] = {}
    for ranks, parts in sorted(by_ranks.items()):
        ranks_of.setdefault("".join(parts), []).extend(ranks)
    return StreamText(stream, "".join(label_lines(mesh, ranks, text) for text, ranks in ranks_of.items()))


LINES = 20  # the last ones of each rank
KEPT_CHARACTERS = 20_000
AREA_BYTES = 12_000


class ActorProgressBars:
    """The progress bar areas of one cell. Pure: drawn text in, publications out."""

    def __init__(self) -> None:
        self._meshes: dict[str, dict[StreamName, dict[int, TextBuffer]]] = {}
        self._shown: set[str] = set()
        self._changed: dict[str, None] = {}

    def add(self, drawn: DrawnText) -> None:
        """Add the bars that a rank has redrawn or finished."""
        streams = self._meshes.setdefault(drawn.mesh, {"stdout": {}, "stderr": {}})
        capture = streams[drawn.stream].setdefault(drawn.rank, TextBuffer(KEPT_CHARACTERS))
        capture.add(drawn.text)
        capture.live = drawn.live
        self._changed[drawn.mesh] = None

    def take(self) -> list[LiveDisplay]:
        """Return the areas that have changed."""
        changed, self._changed = list(self._changed), {}
        return [self._draw(mesh) for mesh in changed]

    def _draw(self, mesh: str) -> LiveDisplay:
        groups = {
            name: group_blocks({rank: Block(capture.last_lines(LINES)) for rank, capture in captures.items()})
            for name, captures in self._meshes[mesh].items()
        }
        is_new = mesh not in self._shown
        self._shown.add(mesh)
        area = render_area(fit_details(fit_streams(groups, AREA_BYTES), AREA_BYTES), f"{mesh_name(mesh)}:")
        return LiveDisplay(area, update=not is_new, is_final=False, name=f"bars {mesh}")
