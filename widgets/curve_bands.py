"""Bands over ranks: the mean, the lowest and the highest value of a metric, and the ranks that leave the others. Pure.

    band = make_band(samples, points=400)      # of one metric in one run, at most 400 points
    band.x, band.mean, band.low, band.high     # arrays of one length
    band.lines                                 # ranks with a line of their own: stragglers, diverging ranks, ...

Points are grouped along x. The groups have the same width, a power of two, so they stay while a run grows.
Between its first and its last point a rank counts in each group, with its last value before if it has none there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshbook.runtime.telemetry.points import NOTEBOOK
from meshbook.widgets.protocol import LineKind

MOST_LINES = 8  # ranks that have a line of their own
MOST_CELLS = 500_000  # ranks times groups: many ranks have fewer groups
FEWEST_GROUPS = 64
FAR = 6.0  # robust standard deviations from the median of the ranks, beyond which a rank diverges
LEAST_SHARE = 0.02  # of the median: ranks that are nearer to it do not diverge, however alike the others are
WINDOWS = 16  # of x, in which ranks are compared; one that diverges does so in its last two
FEWEST_RANKS = 3  # of which one can differ from the others
BEHIND = 0.1  # share of the steps that a straggler lacks at least
FEWEST_STEPS = 3  # that it lacks
_SIGMA = 1.4826  # from a median absolute deviation to the standard deviation of a normal distribution


@dataclass(frozen=True)
class Samples:
    """The points of some ranks, rank by rank. `owners`: for each point the index in `ranks`; the others are float64."""

    ranks: tuple[int, ...]
    owners: Any
    steps: Any
    x: Any
    values: Any


@dataclass(frozen=True, slots=True)
class NamedLine:
    """A rank with a line of its own, and the reason as text; empty for a rank that is like the others."""

    rank: int
    kind: LineKind
    text: str = ""

    @property
    def name(self) -> str:
        """The rank for people."""
        return "notebook" if self.rank == NOTEBOOK else f"rank {self.rank}"


@dataclass(frozen=True)
class Band:
    """Arrays of the length of `x`, NaN where nothing is known; `values` has the shape [lines, points].

    Ranks of the kinds `diverging` and `notebook` are in `values` only. `ranks`: how many are in the band; none if it is
    that of the notebook alone. `more`: how many ranks that leave the others have no line.
    """

    x: Any
    mean: Any
    low: Any
    high: Any
    values: Any
    lines: tuple[NamedLine, ...]
    ranks: int
    more: int = 0


def gather_samples(ranks: Sequence[int], series: Sequence[tuple[Any, Any, Any]], *, by_time: bool) -> Samples:
    """Join the series of ranks: (steps, times, values) of each. Times become seconds since the first point."""

    def joined(part: int) -> Any:
        return np.concatenate([np.empty(0), *(each[part] for each in series)])

    owners: Any = np.repeat(np.arange(len(series), dtype=np.int32), [len(values) for _, _, values in series])
    steps = joined(0)
    times = joined(1) if by_time else steps
    x = times - times.min() if by_time and len(times) else steps
    return Samples(tuple(ranks), owners, steps, x, joined(2))


def make_band(
    samples: Samples, points: int, low: float = -math.inf, high: float = math.inf, *, size: int | None = None
) -> Band:
    """Return the band of these samples in the range of x from `low` to `high`, with at most `points` points.

    `size` is the number of ranks that there are now, if known; the others are not behind.
    """
    shown = _within(samples, low, high)
    groups = min(points, max(FEWEST_GROUPS, MOST_CELLS // max(1, len(samples.ranks))))
    cells = _cells_of(shown, *_number(shown.x, groups))
    filled = _spread(cells, len(samples.ranks))
    found = [*_invalid(samples), *_diverging(samples.ranks, filled), *_stragglers(samples, size)]
    lines = _choose_lines(samples.ranks, found)
    row_of = {rank: row for row, rank in enumerate(samples.ranks)}
    is_inside: Any = np.ones(len(samples.ranks), bool)
    is_inside[[row_of[line.rank] for line in lines if line.kind in ("diverging", "notebook")]] = False
    filled[~is_inside] = np.nan
    mean, lowest, highest = _summarize(cells, filled, is_inside)
    return Band(
        cells.x,
        mean,
        lowest,
        highest,
        _rows_of(cells, [row_of[line.rank] for line in lines]),
        lines,
        int(is_inside.sum()) - (NOTEBOOK in row_of and bool(is_inside[row_of[NOTEBOOK]])),
        len({line.rank for line in found} - {line.rank for line in lines}),
    )


def _within(samples: Samples, low: float, high: float) -> Samples:
    """Return the samples with a finite value in this range of x."""
    most = np.finfo(float).max  # x may be infinite as well
    fits = np.isfinite(samples.values) & (samples.x >= max(low, -most)) & (samples.x <= min(high, most))
    if fits.all():
        return samples
    arrays = {name: getattr(samples, name)[fits] for name in ("owners", "steps", "x", "values")}
    return replace(samples, **arrays)


def _number(x: Any, groups: int) -> tuple[Any, int]:
    """Return the number of the group of each point, from 0 on, and how many numbers there are: at most `groups`."""
    if not len(x):
        return np.empty(0, np.int32), 0
    first, last = float(x.min()), float(x.max())
    width = last / (groups - 1) - first / (groups - 1)  # the difference itself may be infinite
    width = 2.0 ** math.ceil(math.log2(width)) if width > 0 else 1.0
    numbers = x / width
    np.floor(numbers, out=numbers)
    numbers -= math.floor(first / width)
    return numbers.astype(np.int32), math.floor(last / width) - math.floor(first / width) + 1


@dataclass(frozen=True)
class _Cells:
    """What each rank has logged in each group, where it has points.

    `rows` and `columns`: the rank and the group of each cell; `mean`, `low` and `high` are of its points. `x`: that of
    the last point of each group. All groups have points.
    """

    rows: Any
    columns: Any
    mean: Any
    low: Any
    high: Any
    x: Any


def _cells_of(samples: Samples, numbers: Any, size: int) -> _Cells:
    """Return the cells of these samples, whose groups have these numbers below `size`."""
    rows, x, values = samples.owners, samples.x, samples.values
    codes = rows * size + numbers if len(samples.ranks) * size < 2**31 else rows * np.int64(size) + numbers
    changes = np.diff(codes, prepend=codes[:1] - 1)
    if len(codes) and changes.min() < 0:  # a rank has logged steps in another order
        order = np.argsort(codes, kind="stable")
        rows, numbers, codes, x, values = (each[order] for each in (rows, numbers, codes, x, values))
        changes = np.diff(codes, prepend=codes[:1] - 1)
    mean = low = high = values
    if not changes.all():  # cells have several points
        starts = np.flatnonzero(changes)
        mean = np.add.reduceat(values, starts) / np.diff(starts, append=len(codes))
        low, high, x = (
            np.minimum.reduceat(low, starts),
            np.maximum.reduceat(high, starts),
            np.maximum.reduceat(x, starts),
        )
        rows, numbers = rows[starts], numbers[starts]
    ends = np.full(size, -np.inf)
    np.maximum.at(ends, numbers, x)
    has_points = ends > -np.inf
    columns = numbers if has_points.all() else (np.cumsum(has_points, dtype=np.int32) - 1)[numbers]
    return _Cells(rows, columns, mean, low, high, ends[has_points])


def _spread(cells: _Cells, ranks: int) -> Any:
    """Return the mean of each rank in each group, with gaps filled; NaN where a rank is not known."""
    groups = len(cells.x)
    filled = np.full((ranks, groups), np.nan)
    filled.reshape(-1)[cells.rows * np.intp(groups) + cells.columns] = cells.mean
    lacking = np.flatnonzero(np.bincount(cells.rows, minlength=ranks) < groups)
    if len(lacking):
        some = filled[lacking]
        places: Any = np.arange(groups, dtype=np.int32)
        latest = np.maximum.accumulate(np.where(np.isnan(some), np.int32(-1), places), axis=1)
        some = np.take_along_axis(some, np.maximum(latest, 0), axis=1)
        # After its last point a rank is not known, also if its values were held until then.
        some[(latest < 0) | (places > latest[:, -1:])] = np.nan
        filled[lacking] = some
    return filled


def _rows_of(cells: _Cells, rows: Sequence[int]) -> Any:
    """Return the means of some ranks in each group, NaN where they have no point."""
    values = np.full((len(rows), len(cells.x)), np.nan)
    for place, row in enumerate(rows):
        own = slice(np.searchsorted(cells.rows, row), np.searchsorted(cells.rows, row, "right"))
        values[place, cells.columns[own]] = cells.mean[own]
    return values


def _summarize(cells: _Cells, filled: Any, is_inside: Any) -> tuple[Any, Any, Any]:
    """Return the mean of these ranks, and the lowest and the highest point of each group; NaN without any.

    `filled` is NaN for the other ranks, and changes.
    """
    is_unknown = np.isnan(filled)
    counts = len(filled) - np.count_nonzero(is_unknown, axis=0)
    low = np.fmin.reduce(filled, axis=0, initial=np.inf)
    high = np.fmax.reduce(filled, axis=0, initial=-np.inf)
    if cells.low is not cells.mean:  # a rank's mean in a group hides its extremes
        of_band = is_inside[cells.rows]
        np.minimum.at(low, cells.columns[of_band], cells.low[of_band])
        np.maximum.at(high, cells.columns[of_band], cells.high[of_band])
    np.copyto(filled, 0.0, where=is_unknown)
    mean = np.divide(filled.sum(axis=0), counts, out=np.full(len(counts), np.nan), where=counts > 0)
    low[counts == 0] = high[counts == 0] = np.nan
    return mean, low, high


# -- ranks that leave the others ---------------------------------------------------------


def _choose_lines(ranks: Sequence[int], found: Sequence[NamedLine]) -> tuple[NamedLine, ...]:
    """Return at most eight lines, each rank once: the notebook's, those found, and if all fit those of all ranks."""
    lines: dict[int, NamedLine] = {}
    if ranks[:1] == (NOTEBOOK,) and len(ranks) > 1:
        lines[NOTEBOOK] = NamedLine(NOTEBOOK, "notebook")
    for line in found:
        lines.setdefault(line.rank, line)
    if len(ranks) <= MOST_LINES and len(ranks) > 1:
        for rank in ranks:
            lines.setdefault(rank, NamedLine(rank, "rank"))
    return tuple(list(lines.values())[:MOST_LINES])


def _invalid(samples: Samples) -> Iterator[NamedLine]:
    """Yield the ranks with NaN or an infinity, in the order in which it came."""
    bad = np.flatnonzero(~np.isfinite(samples.values))
    seen: set[int] = set()
    for place in bad[np.argsort(samples.steps[bad], kind="stable")][: 64 * MOST_LINES]:
        rank = samples.ranks[samples.owners[place]]
        if rank not in seen:
            seen.add(rank)
            value = "NaN" if math.isnan(samples.values[place]) else f"{samples.values[place]:+}"
            yield NamedLine(rank, "invalid", f"{value} at step {samples.steps[place]:,.10g}")


def _diverging(ranks: Sequence[int], filled: Any) -> Iterator[NamedLine]:
    """Yield the ranks far from the median of all in their last two windows of x, the farthest first."""
    if len(ranks) < FEWEST_RANKS or not filled.size:
        return
    windows = np.array_split(np.arange(filled.shape[1]), min(WINDOWS, filled.shape[1]))
    starts = [window[0] for window in windows]
    is_unknown = np.isnan(filled)
    counts = [len(window) for window in windows] - np.add.reduceat(is_unknown, starts, axis=1, dtype=np.intp)
    sums = np.add.reduceat(np.where(is_unknown, 0.0, filled), starts, axis=1)
    means = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
    medians = _medians(means)
    distances = means - medians
    scales = _SIGMA * _medians(np.abs(distances))
    # By chance a few ranks are almost alike in one window.
    scales = np.fmax(scales, np.nanmedian(scales))
    limits = np.fmax(np.fmax(FAR * scales, LEAST_SHARE * np.abs(medians)), np.finfo(float).tiny)
    order = distances / limits
    is_known = ~np.isnan(order)
    last = order.shape[1] - 1 - is_known[:, ::-1].argmax(axis=1)
    rows = np.arange(len(ranks))
    now, before = order[rows, last], order[rows, np.maximum(last - 1, 0)]
    before = np.where(np.isnan(before), now, before)
    far = np.flatnonzero((np.abs(now) > 1) & (np.abs(before) > 1) & (np.sign(now) == np.sign(before)))
    for row in far[np.argsort(-np.abs(now[far]), kind="stable")]:
        value, median = means[row, last[row]], medians[last[row]]
        text = f"diverges: {value:.3g}, median {median:.3g}"
        yield NamedLine(ranks[row], "diverging", text)


def _medians(values: Any) -> Any:
    """Return the median of the known values of each column; every column has one."""
    ordered = np.sort(values, axis=0)  # NaN last
    counts = (~np.isnan(values)).sum(axis=0)
    columns = np.arange(values.shape[1])
    return (ordered[(counts - 1) // 2, columns] + ordered[counts // 2, columns]) / 2


def _stragglers(samples: Samples, size: int | None) -> Iterator[NamedLine]:
    """Yield the ranks below `size` that are at a much earlier step than the others, the last one first."""
    is_here: Any = np.array(samples.ranks) < (math.inf if size is None else size)
    if np.count_nonzero(is_here) < FEWEST_RANKS:
        return
    last = np.full(len(samples.ranks), np.nan)
    starts: Any = np.searchsorted(samples.owners, np.arange(len(last) + 1, dtype=np.int32))
    has_points = np.diff(starts) > 0
    last[has_points] = np.maximum.reduceat(samples.steps, starts[:-1][has_points])
    last[~is_here] = np.nan
    if np.isnan(last).all():
        return
    median = float(np.nanmedian(last))
    spread = _SIGMA * float(np.nanmedian(np.abs(last - median)))
    lacking = median - last
    limit = max(FEWEST_STEPS, BEHIND * (median - float(samples.steps.min())), FAR * spread)
    late = np.flatnonzero(lacking >= limit)
    for row in late[np.argsort(last[late], kind="stable")]:
        text = f"behind: step {last[row]:,.10g}, median {median:,.10g}"
        yield NamedLine(samples.ranks[row], "straggler", text)
