"""Transfer counters of a process: bytes by owner, transfer backend and direction. Pure."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from meshbook.runtime.formats import format_bytes, format_seconds

MOST_ROWS = 4096  # that a process keeps; further owners are counted together
OTHERS = "others"
_HEAD = ("by", "owner", "backend", "direction", "bytes", "transfers", "time")


@dataclass(frozen=True, slots=True)
class TransferRecord:
    """The bytes that one process moved between its own memory and that of one owner, by one backend, in one direction.

    `by` and `owner` are "rank 3" of the mesh that was asked, else the name of a process. `direction`: "read" is from
    the owner, "write" to it. `seconds` is the sum over all transfers, which may have overlapped.
    """

    by: str
    owner: str
    backend: str
    direction: str
    bytes: int
    transfers: int
    seconds: float

    def __str__(self) -> str:
        return "  ".join(_cells(self))


class TransferTable(list[TransferRecord]):
    """A list of `TransferRecord` that prints as a table. pandas and Polars convert it to data frames."""

    silent: tuple[str, ...] = ()  # processes that did not answer, and are missing from the table

    def __repr__(self) -> str:
        rows = [_HEAD, *map(_cells, self)] if self else [("no transfers",)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        missing = [f"no reply from {', '.join(self.silent)}"] if self.silent else []
        return "\n".join([*(_line(row, widths) for row in rows), *missing])


def _cells(row: TransferRecord) -> tuple[str, ...]:
    amounts = format_bytes(row.bytes), f"{row.transfers:,}", format_seconds(row.seconds)
    return (row.by, row.owner, row.backend, row.direction, *amounts)


def _line(row: Iterable[str], widths: Iterable[int]) -> str:
    texts_first = 4
    padded = [
        cell.ljust(width) if index < texts_first else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(padded)


class Traffic:
    """The transfers of one process. Safe from any thread."""

    def __init__(self, by: str, most: int = MOST_ROWS) -> None:
        self._by = by
        self._most = most
        self._lock = threading.Lock()  # guards the sums
        self._sums: dict[tuple[str, str, bool], list[float]] = {}

    def note(self, owner: str, size: int, backend: str, seconds: float, *, is_write: bool) -> None:
        """Count a completed transfer."""
        with self._lock:
            sums = self._sums.get((owner, backend, is_write))
            if sums is None:
                known = owner if len(self._sums) < self._most else OTHERS
                sums = self._sums.setdefault((known, backend, is_write), [0, 0, 0.0])
            sums[0] += size
            sums[1] += 1
            sums[2] += seconds

    def rows(self) -> list[TransferRecord]:
        """Return the counters, in the order of first use."""
        with self._lock:
            return [
                TransferRecord(
                    self._by, owner, backend, "write" if is_write else "read", int(size), int(count), seconds
                )
                for (owner, backend, is_write), (size, count, seconds) in self._sums.items()
            ]


def table_of(rows: Iterable[TransferRecord], silent: Iterable[str], name: Callable[[str], str]) -> TransferTable:
    """Return all records as a table, with the displayed names of processes."""
    table = TransferTable(replace(row, by=name(row.by), owner=name(row.owner)) for row in rows)
    table.silent = tuple(map(name, silent))
    return table
