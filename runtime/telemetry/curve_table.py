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
FIRST_ROOM = 16  # points for which a new curve has room
MOST_CURVES = 1 << 18
SHOWN_RUNS = 8  # of a metric in a chart at most; older runs leave memory first

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
    """The points of one metric, run and rank, in the order of arrival: groups, and then the latest points."""

    __slots__ = ("_grouped", "_points", "count", "group", "last", "next_step", "size")

    def __init__(self) -> None:
        # Rows of steps, times and values. Columns from `size` on are free; the others do not change any more.
        self._points = np.empty((3, FIRST_ROOM))
        self._grouped = 0  # columns before the latest points
        self.size = 0  # points in memory
        self.count = 0  # points that were added
        self.group = 1  # points of which two are kept
        self.next_step = 0.0
        self.last = np.nan  # the last value

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

    def add(self, steps: Any, times: Any, values: Any, capacity: int) -> None:
        """Add points, arrays of one length; keep about `capacity` of all."""
        start, end = self.size, self.size + len(values)
        most_latest = max(TAIL_POINTS, int(TAIL_FRACTION * capacity), 2 * self.group)
        if end > (room := self._points.shape[1]):
            grown = np.empty((3, max(end, min(2 * room, self._grouped + most_latest))))
            grown[:, :start] = self._points[:, :start]
            self._points = grown
        for row, new in zip(self._points, (steps, times, values), strict=True):
            row[start:end] = new
        self.size = end
        self.count += len(values)
        self.last = float(values[-1])
        if end - self._grouped >= most_latest:
            self.shrink(capacity)

    def shrink(self, capacity: int) -> None:
        """Group the latest points, and double the groups until at most `capacity` points are kept."""
        latest = self._points[:, self._grouped : self.size]
        whole = latest.shape[1] // self.group * self.group
        kept = np.concatenate((self._points[:, : self._grouped], _extremes(latest[:, :whole], self.group)), axis=1)
        while kept.shape[1] > capacity:
            # Four points of the first level are one group; later ones are two groups with two points each.
            self.group = 4 if self.group == 1 else 2 * self.group
            pairs = kept.shape[1] // 4 * 4
            kept = np.concatenate((_extremes(kept[:, :pairs], 4), kept[:, pairs:]), axis=1)
        self._grouped = kept.shape[1]
        self._points = np.concatenate((kept, latest[:, whole:]), axis=1)
        self.size = self._points.shape[1]

    def series(self) -> Series:
        """Return the kept points and all of the latest ones. The arrays do not change, and must not be changed."""
        steps, times, values = self._points[:, : self.size]
        return steps, times, values


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
        self.has_dropped_runs = False
        self._runs: dict[str, None] = {}  # in the order of their last change
        self._all_points = all_points
        self._most_curves = most_curves
        self._capacity = curve_points
        self._count = 0
        self._size = 0

    def add(self, metric: str, run: str, rank: int, steps: Any, times: Any, values: Any) -> Any:
        """Add points, given as float64 arrays; return their steps, with NaN replaced by numbers."""
        if next(reversed(self._runs), None) != run:
            self._runs.pop(run, None)
            self._runs[run] = None
        curve = self.curves.get(metric, {}).get(run, {}).get(rank)
        if curve is None:
            if self._count >= self._most_curves and not self._drop_run(besides=run):
                self.refused += len(values)
                return np.where(np.isnan(steps), np.arange(len(steps)), steps)
            curve = self.curves.setdefault(metric, {}).setdefault(run, {})[rank] = Curve()
            self._count += 1
        before = curve.size
        steps = curve.number(steps)
        curve.add(steps, times, values, self._capacity)
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
        """Drop the oldest run if it is in no chart; else halve what each curve keeps, while that is not little.

        Return whether it helped.
        """
        if self._capacity <= FEWEST_POINTS or len(self._runs) > SHOWN_RUNS:
            return self._drop_run(besides=run)
        self._capacity = max(FEWEST_POINTS, self._capacity // 2)
        self._size = 0
        for curve in self._all():
            curve.shrink(self._capacity)
            self._size += curve.size
        return True

    def _drop_run(self, besides: str) -> bool:
        """Drop the run without points for the longest time, except this one; return whether there was one."""
        oldest = next((run for run in self._runs if run != besides), None)
        if oldest is None:
            return False
        del self._runs[oldest]
        self.has_dropped_runs = True
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
