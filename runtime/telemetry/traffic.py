"""Who has moved how many bytes from and to whose memory, by which way: counted by whoever moves them. Pure."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from meshbook.runtime.amounts import format_bytes, format_seconds

MOST_ROWS = 4096  # that a process keeps; what comes for further owners is counted together
OTHERS = "others"
_HEAD = ("by", "owner", "way", "direction", "bytes", "transfers", "time")


@dataclass(frozen=True, slots=True)
class TransferRecord:
    """What one process has moved between its own memory and that of one owner, by one way, in one direction.

    `by` and `owner` are "rank 3" of the mesh that was asked, else the name of a process. `direction`: "read" is from
    the owner, "write" to it. `seconds` is the sum over all transfers, which may have gone at the same time.
    """

    by: str
    owner: str
    way: str
    direction: str
    bytes: int
    transfers: int
    seconds: float

    def __str__(self) -> str:
        return "  ".join(_cells(self))


class TransferTable(list[TransferRecord]):
    """A list of `TransferRecord` that shows itself as a table. pandas and Polars make data frames of it."""

    silent: tuple[str, ...] = ()  # who did not answer, and of whom nothing is in it

    def __repr__(self) -> str:
        rows = [_HEAD, *map(_cells, self)] if self else [("nothing was moved",)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        missing = [f"no answer: {', '.join(self.silent)}"] if self.silent else []
        return "\n".join([*(_line(row, widths) for row in rows), *missing])


def _cells(row: TransferRecord) -> tuple[str, ...]:
    amounts = format_bytes(row.bytes), f"{row.transfers:,}", format_seconds(row.seconds)
    return (row.by, row.owner, row.way, row.direction, *amounts)


def _line(row: Iterable[str], widths: Iterable[int]) -> str:
    texts_first = 4
    padded = [
        cell.ljust(width) if index < texts_first else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(padded)


class Traffic:
    """What one process has moved. Safe from any thread."""

    def __init__(self, by: str, most: int = MOST_ROWS) -> None:
        self._by = by
        self._most = most
        self._lock = threading.Lock()  # guards the sums
        self._sums: dict[tuple[str, str, bool], list[float]] = {}

    def note(self, owner: str, size: int, way: str, seconds: float, *, is_write: bool) -> None:
        """A transfer is done."""
        with self._lock:
            sums = self._sums.get((owner, way, is_write))
            if sums is None:
                known = owner if len(self._sums) < self._most else OTHERS
                sums = self._sums.setdefault((known, way, is_write), [0, 0, 0.0])
            sums[0] += size
            sums[1] += 1
            sums[2] += seconds

    def rows(self) -> list[TransferRecord]:
        """In the order in which they first came."""
        with self._lock:
            return [
                TransferRecord(self._by, owner, way, "write" if is_write else "read", int(size), int(count), seconds)
                for (owner, way, is_write), (size, count, seconds) in self._sums.items()
            ]


def table_of(rows: Iterable[TransferRecord], silent: Iterable[str], name: Callable[[str], str]) -> TransferTable:
    """All of it, with the names of processes as they are to be shown."""
    table = TransferTable(replace(row, by=name(row.by), owner=name(row.owner)) for row in rows)
    table.silent = tuple(map(name, silent))
    return table
