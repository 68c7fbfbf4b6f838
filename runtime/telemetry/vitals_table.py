"""Vitals of many processes: current values, and one value a second of the last five minutes. Pure; time is passed in.

Each process has a row, which is reused after the process. Row 0 has no process: unknown nodes map to it. The values of
one second are contiguous, so that a new second is cleared at once; 12 KB a process.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from meshbook.runtime.telemetry.vitals import HISTORY_SECONDS, METRICS, Metric, Vitals, VitalsBatch

FIRST_ROWS = 64
GAP = 2  # seconds without a value that repeat the one before: batches do not arrive at exact times
REMEMBERED_SEQUENCES = 16
_ACTIVITY, _AGE = len(METRICS), len(METRICS) + 1


class VitalsTable:
    """Vitals by node."""

    def __init__(self, seconds: int = HISTORY_SECONDS) -> None:
        self._seconds = seconds
        self._rows: dict[str, int] = {}
        self._free: list[int] = []
        self._next = 1
        self._found: dict[tuple[str, ...], Any] = {}  # rows of node sequences that were requested
        self._second = 0  # the last one with values
        self._latest = _unknown(len(METRICS), FIRST_ROWS)
        self._ring = _unknown(seconds, len(METRICS), FIRST_ROWS)
        self._activity: Any = np.zeros(FIRST_ROWS, np.uint8)
        self._seen: Any = np.full(FIRST_ROWS, -np.inf)  # the time of each last heartbeat
        self._filled: Any = np.full(FIRST_ROWS, -1, np.int64)  # the last second with a value of each

    def __len__(self) -> int:
        """Return how many processes have a row."""
        return len(self._rows)

    def add(self, batch: VitalsBatch, now: float, without: Collection[str] = ()) -> None:
        """Add a batch, except the processes in `without`."""
        nodes, numbers = batch.nodes, np.frombuffer(batch.numbers, np.float32).reshape(-1, _AGE + 1)
        if without:
            kept = [index for index, node in enumerate(nodes) if node not in without]
            nodes, numbers = tuple(nodes[index] for index in kept), numbers[kept]
        for node in nodes:
            if node not in self._rows:
                self._give_row(node)
        rows = self._rows_of(nodes)
        values = numbers[:, :_ACTIVITY].T
        self._latest[:, rows] = values
        self._activity[rows] = numbers[:, _ACTIVITY].astype(np.uint8)
        self._seen[rows] = now - numbers[:, _AGE]
        second = int(now)
        self._advance(second)
        self._fill_gaps(rows, second)
        self._ring[second % self._seconds][:, rows] = values
        self._filled[rows] = second

    def end(self, node: str) -> None:
        """Record the end of a process: its past is kept, its current values become unknown."""
        if row := self._rows.get(node, 0):
            self._latest[:, row] = np.nan
            self._activity[row] = 0

    def forget(self, nodes: Sequence[str]) -> None:
        """Drop everything about these processes."""
        for node in nodes:
            if row := self._rows.pop(node, 0):
                self._latest[:, row] = self._ring[:, :, row] = np.nan
                self._activity[row], self._seen[row], self._filled[row] = 0, -np.inf, -1
                self._free.append(row)
        self._found.clear()

    def nodes(self) -> list[str]:
        """Return the processes that have a row."""
        return list(self._rows)

    def vitals(self, nodes: Sequence[str], now: float) -> Vitals:
        """Return the current vitals of these processes."""
        rows = self._rows_of(nodes)
        latest = self._latest[:, rows]
        age = (now - self._seen[rows]).astype(np.float32)
        return Vitals(dict(zip(METRICS, latest, strict=True)), self._activity[rows], age)

    def series(self, nodes: Sequence[str], metrics: Sequence[Metric], now: float) -> Any:
        """Return their past values: float32[nodes, metrics, seconds], the newest last."""
        # The present second may have no value yet.
        self._advance(int(now) - GAP)
        slots: Any = np.arange(self._second + 1, self._second + 1 + self._seconds) % self._seconds
        wanted = [METRICS.index(metric) for metric in metrics]
        return np.ascontiguousarray(self._ring[np.ix_(slots, wanted, self._rows_of(nodes))].transpose(2, 1, 0))

    # -- rows ------------------------------------------------------------------------------

    def _rows_of(self, nodes: Sequence[str]) -> Any:
        key = tuple(nodes)
        if (rows := self._found.get(key)) is None:
            while len(self._found) >= REMEMBERED_SEQUENCES:
                del self._found[next(iter(self._found))]
            rows = self._found[key] = np.array([self._rows.get(node, 0) for node in key], np.intp)
        return rows

    def _give_row(self, node: str) -> None:
        if self._free:
            row = self._free.pop()
        else:
            row, self._next = self._next, self._next + 1
            if row == len(self._activity):
                self._latest, self._ring = _doubled(self._latest, np.nan), _doubled(self._ring, np.nan)
                self._activity, self._filled = _doubled(self._activity, 0), _doubled(self._filled, -1)
                self._seen = _doubled(self._seen, -np.inf)
        self._rows[node] = row
        self._found.clear()

    # -- seconds ---------------------------------------------------------------------------

    def _advance(self, second: int) -> None:
        for new in range(max(self._second, second - self._seconds) + 1, second + 1):
            self._ring[new % self._seconds] = np.nan
        self._second = max(self._second, second)

    def _fill_gaps(self, rows: Any, second: int) -> None:
        filled = self._filled[rows]
        is_near = filled >= second - GAP - 1
        for missing in range(second - GAP, second):
            late = rows[is_near & (filled < missing)]
            if len(late):
                self._ring[missing % self._seconds][:, late] = self._ring[(missing - 1) % self._seconds][:, late]


def _unknown(*shape: int) -> Any:
    return np.full(shape, np.nan, np.float32)


def _doubled(array: Any, empty: float) -> Any:
    """Return the array with twice as many rows, which are the last axis."""
    return np.concatenate([array, np.full_like(array, empty)], axis=-1)
