"""How far a cell is, as plain data: so that another notebook can see it to its end."""

from __future__ import annotations

from dataclasses import dataclass

from meshbook.magics.schedule import StartWave
from meshbook.runtime.cells.outcome import CellOutcome
from meshbook.runtime.telemetry.output import Chunk


@dataclass(frozen=True)
class CellProgress:
    """A cell that was begun by another notebook, by the ranks it is on.

    `failed` are in the order in which they did, `waves` are still to begin, `calls` are the numbers under which those
    that run will answer. `written` is the output so far; it began at `began`, in seconds since 1970.
    """

    origin: str
    source: str
    outcomes: dict[int, CellOutcome]
    failed: tuple[int, ...]
    waves: tuple[StartWave, ...]
    calls: dict[int, int]
    written: list[Chunk]
    began: float

    def place_of(self, rank: int) -> int:
        """Where a rank stands among those that have ended: the failed ones first, in their order."""
        return self.failed.index(rank) if rank in self.failed else len(self.failed)
