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
    """The points of some ranks. `owners`: for each point the index of its rank in `ranks`; the others are float64."""

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
    lengths = [len(values) for _, _, values in series]
    steps, times, values = (np.concatenate([np.empty(0), *(each[part] for each in series)]) for part in range(3))
    owners: Any = np.repeat(np.arange(len(lengths)), lengths)
    x = times - times.min() if by_time and len(times) else steps
    return Samples(tuple(ranks), owners, steps, x, values)


def make_band(samples: Samples, points: int, low: float = -math.inf, high: float = math.inf) -> Band:
    """Return the band of these samples in the range of x from `low` to `high`, with at most `points` points."""
    shown = _within(samples, low, high)
    groups = min(points, max(FEWEST_GROUPS, MOST_CELLS // max(1, len(samples.ranks))))
    places, x = _group(shown.x, groups)
    known, filled = _spread(shown, places, len(x))
    found = [*_invalid(samples), *_diverging(samples.ranks, filled), *_stragglers(samples)]
    lines = _choose_lines(samples.ranks, found)
    apart = {line.rank for line in lines if line.kind in ("diverging", "notebook")}
    inside = np.array([rank not in apart for rank in samples.ranks], bool)
    row_of = {rank: row for row, rank in enumerate(samples.ranks)}
    of_band = inside[shown.owners]
    mean, lowest, highest = _summarize(filled[inside], places[of_band], shown.values[of_band])
    return Band(
        x,
        mean,
        lowest,
        highest,
        known[[row_of[line.rank] for line in lines]],
        lines,
        sum(rank != NOTEBOOK and rank not in apart for rank in samples.ranks),
        len({line.rank for line in found} - {line.rank for line in lines}),
    )


def _within(samples: Samples, low: float, high: float) -> Samples:
    """Return the samples with a finite value in this range of x."""
    fits = np.isfinite(samples.values) & (samples.x >= low) & (samples.x <= high)
    arrays = {name: getattr(samples, name)[fits] for name in ("owners", "steps", "x", "values")}
    return replace(samples, **arrays)


def _group(x: Any, groups: int) -> tuple[Any, Any]:
    """Return the group of each point, and the x of each group: that of its last point. All groups have points."""
    if not len(x):
        return np.empty(0, np.intp), np.empty(0)
    span = float(x.max() - x.min())
    width = 2.0 ** math.ceil(math.log2(span / (groups - 1))) if span else 1.0
    numbers = np.floor(x / width)
    numbers = (numbers - numbers.min()).astype(np.intp)
    has_points = np.bincount(numbers) > 0
    places = (np.cumsum(has_points) - 1)[numbers]
    ends = np.full(int(has_points.sum()), -np.inf)
    np.maximum.at(ends, places, x)
    return places, ends


def _spread(samples: Samples, places: Any, groups: int) -> tuple[Any, Any]:
    """Return the means of each rank in each group, NaN where it has no point, and the same with gaps filled."""
    size = len(samples.ranks), groups
    cells = samples.owners * groups + places
    counts = np.bincount(cells, minlength=size[0] * groups).reshape(size)
    sums = np.bincount(cells, weights=samples.values, minlength=size[0] * groups).reshape(size)
    known = np.divide(sums, counts, out=np.full(size, np.nan), where=counts > 0)
    if (counts > 0).all():
        return known, known
    latest = np.maximum.accumulate(np.where(counts > 0, np.arange(groups, dtype=np.int32), np.int32(-1)), axis=1)
    filled = np.take_along_axis(known, np.maximum(latest, 0), axis=1)
    # After its last point a rank is not known, also if its values were held until then.
    is_over = np.arange(groups) > latest[:, -1:] if groups else np.empty(size, bool)
    filled[(latest < 0) | is_over] = np.nan
    return known, filled


def _summarize(filled: Any, places: Any, values: Any) -> tuple[Any, Any, Any]:
    """Return the mean of the ranks, and the lowest and the highest point of each group. NaN for a group without any."""
    is_known = ~np.isnan(filled)
    counts = is_known.sum(axis=0)
    sums = np.where(is_known, filled, 0.0).sum(axis=0)
    mean = np.divide(sums, counts, out=np.full(len(counts), np.nan), where=counts > 0)
    low = np.where(is_known, filled, np.inf).min(axis=0, initial=np.inf)
    high = np.where(is_known, filled, -np.inf).max(axis=0, initial=-np.inf)
    # A rank's mean in a group hides its extremes.
    np.minimum.at(low, places, values)
    np.maximum.at(high, places, values)
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
    means = np.stack([_row_means(filled[:, window]) for window in windows], axis=1)
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


def _row_means(values: Any) -> Any:
    counts = (~np.isnan(values)).sum(axis=1)
    return np.divide(np.nansum(values, axis=1), counts, out=np.full(len(counts), np.nan), where=counts > 0)


def _medians(values: Any) -> Any:
    """Return the median of the known values of each column; every column has one."""
    ordered = np.sort(values, axis=0)  # NaN last
    counts = (~np.isnan(values)).sum(axis=0)
    columns = np.arange(values.shape[1])
    return (ordered[(counts - 1) // 2, columns] + ordered[counts // 2, columns]) / 2


def _stragglers(samples: Samples) -> Iterator[NamedLine]:
    """Yield the ranks that are at a much earlier step than the others, the last one first."""
    if len(samples.ranks) < FEWEST_RANKS:
        return
    last = np.full(len(samples.ranks), np.nan)
    np.fmax.at(last, samples.owners, samples.steps)
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
