"""The metrics that can colour the grid: a value for each rank, its unit, and a scale that does not flicker. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from meshbook.runtime.telemetry.vitals import STALE_AFTER, Metric, Vitals
from meshbook.widgets.protocol import Channel, RankState
from meshbook.widgets.states import States

Values: TypeAlias = npt.NDArray[np.float32]
_TAILS = (2, 98)  # percentiles: a single outlier does not take the colours from the other ranks
SHRINKS_AFTER = 10.0  # seconds for which a scale must have been more than twice as wide as needed


@dataclass(frozen=True)
class GridMetric:
    """`metric`: the metric that it shows or is computed from. `low`, `high`: fixed ends of its scale.

    The scale is at least as wide as `least`, and as this share of its upper end (`share`): if all ranks have nearly the
    same value, they get nearly the same colour.
    """

    unit: str
    metric: Metric | None = None
    low: float | None = None
    high: float | None = None
    least: float = 0.0
    share: float = 0.0


KINDS: Final[dict[Channel, GridMetric]] = {
    "state": GridMetric("", low=0.0, high=1.0),
    "memory": GridMetric("bytes", "memory", least=1e6, share=0.25),
    "cpu": GridMetric("cores", "cpu", low=0.0, least=1.0),
    "gpu_memory": GridMetric("bytes", "gpu_memory", least=1e6, share=0.25),
    "gpu": GridMetric("share", "gpu", low=0.0, high=1.0),
    "step": GridMetric("seconds", "step", least=1e-3, share=0.25),
    "skew": GridMetric("seconds", "step", low=0.0, least=1e-3),
    "queued": GridMetric("messages", "queued", low=0.0, least=10.0),
    "age": GridMetric("seconds", low=0.0, high=STALE_AFTER),
}


def values_of(channel: Channel, vitals: Vitals, states: States) -> Values:
    """Return the channel's value of each rank; NaN if it is unknown, or the rank is dead."""
    metric = KINDS[channel].metric
    known: Any = vitals.age if channel == "age" else vitals.metrics.get(metric) if metric else None
    values = np.full(len(states), np.nan, np.float32) if known is None else np.array(known, np.float32)
    values[(states == RankState.DEAD) | np.isinf(values)] = np.nan
    if channel == "skew":
        values -= median(values)
    return values


def median(values: Values) -> float:
    """Return the median of the known values; 0 if none is known."""
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else 0.0


class MetricScale:
    """The ends of a channel's scale: it widens at once, and shrinks only after a while."""

    def __init__(self, channel: Channel) -> None:
        self._kind = KINDS[channel]
        self._ends: tuple[float, float] | None = None
        self._wide_since: float | None = None

    @property
    def span(self) -> float:
        """The width of the scale; 0 before the first values."""
        return self._ends[1] - self._ends[0] if self._ends else 0.0

    def follow(self, values: Values, now: float, least: float = 0.0) -> tuple[float, float]:
        """Return the ends for these values, by a clock in seconds. `least`: the minimum width."""
        wanted = self._wanted(values, least)
        ends = self._ends
        holds = ends is not None and ends[0] <= wanted[0] and wanted[1] <= ends[1]
        if ends is None or not holds or self._is_long_too_wide(wanted, now):
            self._ends, self._wide_since = wanted, None
            return wanted
        return ends

    def _wanted(self, values: Values, least: float) -> tuple[float, float]:
        kind = self._kind
        known = values[np.isfinite(values)]
        low, high = np.percentile(known, _TAILS).tolist() if len(known) else (0.0, 0.0)
        low = low if kind.low is None else kind.low
        high = high if kind.high is None else kind.high
        missing = max(kind.least, least, kind.share * abs(high)) - (high - low)
        if missing > 0 and kind.high is None:
            high += missing
        return (low, high) if kind.high is not None else _rounded_outwards(low, high)

    def _is_long_too_wide(self, wanted: tuple[float, float], now: float) -> bool:
        if wanted[1] - wanted[0] > self.span / 2:
            self._wide_since = None
            return False
        self._wide_since = now if self._wide_since is None else self._wide_since
        return now - self._wide_since >= SHRINKS_AFTER


def _rounded_outwards(low: float, high: float) -> tuple[float, float]:
    """Round outwards to numbers that stay the same while the values move a little: 0.23 ... 0.81 gives 0.2 ... 0.85."""
    if not high > low:
        return low, high
    step = 10.0 ** math.floor(math.log10(high - low)) / 2
    ends = math.floor(low / step) * step, math.ceil(high / step) * step
    return float(f"{ends[0]:.6g}"), float(f"{ends[1]:.6g}")
