"""Curves of metrics in bounded memory, by metric, run and rank. Pure: no threads, no clock.

A curve keeps its points until there are too many. Then it keeps the lowest and the highest of each group of neighbours,
and the groups double each time, so a curve of any length has the same resolution everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from meshbook.runtime.telemetry.points import LoggedPoints

CURVE_POINTS = 2048  # kept of each curve at most
FEWEST_POINTS = 64  # kept of each curve, however many curves there are
ALL_POINTS = 4 << 20  # kept of all curves together, 24 bytes each
TAIL_POINTS = 64  # of the latest points of a curve, which are grouped together: at least so many,
TAIL_FRACTION = 0.25  # or this fraction of the points that are kept
MOST_CURVES = 1 << 18

Series = tuple[Any, Any, Any]  # steps, times, values: float64 arrays of the same length


class CurvePiece(NamedTuple):
    """Points of one curve: float64 arrays of one length, `times` in seconds since 1970."""

    metric: str
    run: str
    rank: int
    steps: Any
    times: Any
    values: Any


class Curve:
    """The points of one metric, run and rank: rows of steps, times and values, in the order of arrival."""

    __slots__ = ("_kept", "_tail", "_tail_count", "count", "group", "last", "next_step")

    def __init__(self) -> None:
        self._kept = np.empty((3, 0))
        self._tail: list[Any] = []  # arrays of new points, not yet grouped
        self._tail_count = 0
        self.count = 0  # points that were added
        self.group = 1  # points of which two are kept
        self.next_step = 0.0
        self.last = np.nan  # the last value

    @property
    def size(self) -> int:
        """The number of points in memory."""
        return self._kept.shape[1] + self._tail_count

    def number(self, steps: Any) -> Any:
        """Return the steps with NaN replaced by the step after the previous one."""
        missing = np.isnan(steps)
        if not missing.any():
            self.next_step = float(steps[-1]) + 1
            return steps
        # Each given step begins a sequence, and so does the first of all.
        places = np.arange(len(steps))
        begins = np.maximum.accumulate(np.where(missing, -1, places))
        numbered = np.where(begins < 0, self.next_step + places, steps[begins] + places - begins)
        self.next_step = float(numbered[-1]) + 1
        return numbered

    def add(self, points: Any, capacity: int) -> None:
        """Add points of shape [3, n]; keep about `capacity` of all."""
        self.count += points.shape[1]
        self.last = float(points[2, -1])
        self._tail.append(points)
        self._tail_count += points.shape[1]
        if self._tail_count >= max(TAIL_POINTS, int(TAIL_FRACTION * capacity), 2 * self.group):
            self.shrink(capacity)

    def shrink(self, capacity: int) -> None:
        """Group what is there, and double the groups until at most `capacity` points are kept."""
        tail = np.concatenate(self._tail, axis=1) if self._tail else np.empty((3, 0))
        whole = tail.shape[1] // self.group * self.group
        self._kept = np.concatenate((self._kept, _extremes(tail[:, :whole], self.group)), axis=1)
        rest = tail[:, whole:].copy()
        self._tail = [rest] if rest.size else []
        self._tail_count = rest.shape[1]
        while self._kept.shape[1] > capacity:
            # Four points of the first level are one group; later ones are two groups with two points each.
            self.group = 4 if self.group == 1 else 2 * self.group
            whole = self._kept.shape[1] // 4 * 4
            rest = self._kept[:, whole:]
            self._kept = np.concatenate((_extremes(self._kept[:, :whole], 4), rest), axis=1)

    def series(self) -> Series:
        """Return the kept points and all of the latest ones."""
        points = np.concatenate((self._kept, *self._tail), axis=1)
        return points[0], points[1], points[2]


def _extremes(points: Any, group: int) -> Any:
    """Return the lowest and the highest point of each group of neighbours, in their order; shape [3, 2 n / group].

    If a group has NaN, return the highest and a NaN: it shows where training diverged.
    """
    if group == 1 or not points.size:
        return points
    groups = points.reshape(3, -1, group)
    values = groups[2]
    is_nan = np.isnan(values)
    if is_nan.any():
        highest = np.where(is_nan, -np.inf, values).argmax(1)
        lowest = np.where(is_nan.any(1), is_nan.argmax(1), values.argmin(1))
    else:
        lowest, highest = values.argmin(1), values.argmax(1)
    places = np.sort(np.stack((lowest, highest), axis=1), axis=1)
    # A flat group has one extreme: its first point, and its last one instead of the other.
    places[:, 1] = np.where(places[:, 0] == places[:, 1], group - 1, places[:, 1])
    return np.take_along_axis(groups, places[np.newaxis], axis=2).reshape(3, -1)


class CurveTable:
    """All curves of a session. Not thread-safe."""

    def __init__(
        self, all_points: int = ALL_POINTS, curve_points: int = CURVE_POINTS, most_curves: int = MOST_CURVES
    ) -> None:
        self.curves: dict[str, dict[str, dict[int, Curve]]] = {}  # by metric, run and rank
        self.versions: dict[tuple[str, str], int] = {}  # by metric and run: how often it has changed
        self.refused = 0  # points of curves beyond the limit
        self._all_points = all_points
        self._most_curves = most_curves
        self._capacity = curve_points
        self._count = 0
        self._size = 0

    def add(self, metric: str, run: str, rank: int, steps: Any, times: Any, values: Any) -> Any:
        """Add points, given as float64 arrays; return their steps, with NaN replaced by numbers."""
        curve = self.curves.get(metric, {}).get(run, {}).get(rank)
        if curve is None:
            if self._count >= self._most_curves and not self._drop_run(besides=run):
                self.refused += len(values)
                return np.where(np.isnan(steps), np.arange(len(steps)), steps)
            curve = self.curves.setdefault(metric, {}).setdefault(run, {})[rank] = Curve()
            self._count += 1
        before = curve.size
        steps = curve.number(steps)
        points = np.empty((3, len(values)))  # a third of the time of `stack`
        points[0], points[1], points[2] = steps, times, values
        curve.add(points, self._capacity)
        self._size += curve.size - before
        self.versions[metric, run] = self.versions.get((metric, run), 0) + 1
        while self._size > self._all_points and self._shrink(run):
            pass
        return steps

    def take(self, run: str, logged: LoggedPoints) -> list[CurvePiece]:
        """Add what a rank logged, and return it with the numbers of its steps."""
        pieces = []
        for new in logged.points:
            times, values = np.frombuffer(new.times), np.frombuffer(new.values)
            steps = np.frombuffer(new.steps) if new.steps else np.full(len(values), np.nan)
            numbered = self.add(new.metric, run, logged.rank, steps, times, values)
            pieces.append(CurvePiece(new.metric, run, logged.rank, numbered, times, values))
        return pieces

    def _shrink(self, run: str) -> bool:
        """Halve what each curve keeps; where that is little already, drop the oldest run. Return whether it helped."""
        if self._capacity <= FEWEST_POINTS:
            return self._drop_run(besides=run)
        self._capacity = max(FEWEST_POINTS, self._capacity // 2)
        self._size = 0
        for curve in self._all():
            curve.shrink(self._capacity)
            self._size += curve.size
        return True

    def _drop_run(self, besides: str) -> bool:
        """Drop the oldest run except this one; return whether there was one."""
        runs = dict.fromkeys(run for by_run in self.curves.values() for run in by_run)
        oldest = next((run for run in runs if run != besides), None)
        if oldest is None:
            return False
        for metric, by_run in list(self.curves.items()):
            gone = by_run.pop(oldest, {})
            self._count -= len(gone)
            self._size -= sum(curve.size for curve in gone.values())
            self.versions.pop((metric, oldest), None)
            if not by_run:
                del self.curves[metric]
        return True

    def _all(self) -> Iterator[Curve]:
        for by_run in self.curves.values():
            for by_rank in by_run.values():
                yield from by_rank.values()
