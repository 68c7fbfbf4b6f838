"""The model of ranks' rich output: the n-th displays of all ranks form one row, which is one output of the cell.

Pure: displays, updates and clear requests in, outputs to publish out; the caller passes the time in. Not for their
layout (`gallery`). A row waits briefly for the other ranks, and is published again when its content changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from meshbook.magics.output.gallery import MimeBundle, RankDisplay, lay_out
from meshbook.magics.output.publisher import Display, LiveDisplay

MOST_OUTPUTS = 40  # of one cell: JupyterLab shows 50, and trims the rest
BYTES_PER_SECOND = 200_000  # limit on what is published again


class DisplayRows:
    """The rows of one cell. `patience`: how many seconds a row waits for the displays of the other ranks."""

    def __init__(self, patience: float, interval: float = 0.25) -> None:
        self._patience = patience
        self._interval = interval
        self._of: dict[int, list[RankDisplay]] = {}
        self._waiting: dict[int, float | None] = {}  # rows to publish, and since when `take_ready` has seen them
        self._published: list[list[MimeBundle]] = []
        self._count = 0  # of published outputs
        self._next_at = 0.0
        self.hidden: dict[int, int] = {}  # how many displays of each rank exceeded the limit

    def add(self, display: RankDisplay) -> None:
        """Add a display of a rank."""
        rank = display.rank
        row = self._of.setdefault(rank, [])
        if len(row) >= MOST_OUTPUTS:
            self.hidden[rank] = self.hidden.get(rank, 0) + 1
            return
        row.append(display)
        self._waiting.setdefault(len(row) - 1, None)

    def update(self, display: RankDisplay) -> None:
        """Replace the displays of this rank that have the same id."""
        for index, other in enumerate(self._of.get(display.rank, ())):
            if other.display_id == display.display_id:
                self._of[display.rank][index] = display
                self._waiting.setdefault(index, None)

    def clear(self, rank: int) -> None:
        """Remove the displays of a rank."""
        for index in range(len(self._of.pop(rank, ()))):
            self._waiting.setdefault(index, None)

    def take_ready(self, now: float, running: Set[int]) -> list[LiveDisplay]:
        """Return the rows that all running ranks have reached or that have waited long enough; limited in rate."""
        self._waiting = {index: now if since is None else since for index, since in self._waiting.items()}
        if now < self._next_at:
            return []
        ready = [index for index in sorted(self._waiting) if self._is_ready(index, now, running)]
        # A row is never published before the rows above it.
        rows = sorted({other for index in ready for other in self._waiting if other <= index})
        found = [display for index in rows for display in self._publish(index)]
        size = sum(len(str(content)) for display in found for content in display.data.values())
        self._next_at = now + max(self._interval, size / BYTES_PER_SECOND) if found else self._next_at
        return found

    def take_all(self) -> list[LiveDisplay]:
        """Return every waiting row as it is."""
        return [display for index in sorted(self._waiting) for display in self._publish(index)]

    def shown(self) -> list[Display]:
        """Return everything that has been published, in its present state."""
        return [Display(bundle.data, bundle.metadata) for row in self._published for bundle in row if bundle != EMPTY]

    def _is_ready(self, index: int, now: float, running: Set[int]) -> bool:
        since = self._waiting[index]
        is_shown = index < len(self._published)
        is_complete = all(len(self._of.get(rank, ())) > index for rank in running)
        return is_shown or is_complete or (since is not None and now - since >= self._patience)

    def _publish(self, index: int) -> Iterator[LiveDisplay]:
        """Yield what is new in a row: outputs keep their places, and surplus ones are emptied."""
        self._waiting.pop(index, None)
        row = {rank: mine[index] for rank, mine in sorted(self._of.items()) if index < len(mine)}
        self._published += [[] for _ in range(index + 1 - len(self._published))]
        before = self._published[index]
        after = lay_out(row)
        after += [EMPTY] * (len(before) - len(after))
        self._published[index] = after[: len(before)]
        for place, bundle in enumerate(after):
            if place < len(before):
                if bundle != before[place]:
                    yield self._display(index, place, bundle, update=True)
            elif self._count < MOST_OUTPUTS:
                self._count += 1
                self._published[index].append(bundle)
                yield self._display(index, place, bundle, update=False)
            else:
                for rank in row:
                    self.hidden[rank] = self.hidden.get(rank, 0) + 1
                return

    def _display(self, index: int, place: int, bundle: MimeBundle, *, update: bool) -> LiveDisplay:
        return LiveDisplay(bundle.data, update, is_final=not update, name=f"{index}.{place}", metadata=bundle.metadata)


EMPTY = MimeBundle({"text/plain": ""}, {})
