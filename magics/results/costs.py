"""The cost of a cell on each rank: a table, the skew below it, and a summary in one line."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from meshbook.runtime.cells.outcome import CellCost
from meshbook.runtime.formats import format_bytes, format_seconds

MOST_ROWS = 64  # of the table; the slowest ranks

_COLUMNS = ("rank", "wall", "CPU", "peak RSS", "peak GPU")
_CELL = '<td style="text-align:right;font-family:var(--jp-code-font-family,monospace)">'


@dataclass(frozen=True, repr=False)
class CostTable:
    """The cost of a cell on each rank, shown as a table with the skew below; with many ranks only the slowest."""

    by_rank: Mapping[int, CellCost]

    def __repr__(self) -> str:
        header = "".join(f"{title:>11}" for title in _COLUMNS)
        rows = ["".join(f"{field:>11}" for field in fields) for fields in self._rows()]
        return "\n".join([header, *rows, *self._notes()])

    def _repr_html_(self) -> str:
        header = "".join(f"<th>{title}</th>" for title in _COLUMNS)
        rows = ["".join(f"{_CELL}{field}</td>" for field in fields) for fields in self._rows()]
        notes = "".join(f"<div>{note}</div>" for note in self._notes())
        return f"<table>{''.join(f'<tr>{row}</tr>' for row in [header, *rows])}</table>{notes}"

    def _rows(self) -> list[tuple[str, ...]]:
        slowest = sorted(self.by_rank, key=lambda rank: -self.by_rank[rank].wall)[:MOST_ROWS]
        rows: list[tuple[str, ...]] = []
        for rank in sorted(slowest):
            cost = self.by_rank[rank]
            gpu = "-" if cost.peak_gpu_memory is None else format_bytes(cost.peak_gpu_memory)
            rows.append(
                (f"{rank}", format_seconds(cost.wall), format_seconds(cost.cpu), format_bytes(cost.peak_rss), gpu)
            )
        return rows

    def _notes(self) -> list[str]:
        omitted = len(self.by_rank) - MOST_ROWS
        rest = [f"… {omitted:,} faster ranks not shown (result.cost.by_rank has all)"] if omitted > 0 else []
        return [*rest, summarise_costs(self.by_rank)]


def summarise_costs(costs: Mapping[int, CellCost], seconds: float = 0.0) -> str:
    """Return the footer of a cell: `wall 3.21 s · slowest r5 +0.40 s over the median · peak mem r2 31 GB`.

    `seconds` are those of the whole cell if some of its ranks have no cost: one of those may be the slowest.
    """
    if not costs:
        return "no ranks"
    slowest = max(costs, key=lambda rank: costs[rank].wall)
    wall = costs[slowest].wall
    skew = wall - statistics.median(cost.wall for cost in costs.values())
    fullest = max(costs, key=lambda rank: _memory_of(costs[rank]))
    parts = [f"wall {format_seconds(seconds or wall)}"]
    # In the same unit as the wall time beside it.
    more = format_seconds(skew) if wall < 1 else f"{skew:.2f} s"
    if len(costs) > 1 and not seconds and not more.startswith(("0 ", "0.00 ")):
        parts.append(f"slowest r{slowest} +{more} over the median")
    return " · ".join([*parts, f"peak mem r{fullest} {format_bytes(_memory_of(costs[fullest])[1])}"])


def _memory_of(cost: CellCost) -> tuple[bool, int]:
    """Return a sort key that prefers GPU memory, which runs out first."""
    return (
        cost.peak_gpu_memory is not None,
        cost.peak_rss if cost.peak_gpu_memory is None else cost.peak_gpu_memory,
    )
