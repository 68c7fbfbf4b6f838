"""The five ranks that need attention first: by a channel, or by their states. Pure: time is passed in.

`StragglerDetector` finds ranks that still work while most others wait in a collective. In synchronous training all
ranks have steps of the same length, whichever rank is slow, because all steps end together. But the slow rank is busy
while the others wait for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from meshbook.runtime.formats import format_bytes, format_seconds
from meshbook.runtime.telemetry.vitals import Metric, Vitals
from meshbook.widgets.grid_metrics import KINDS, median, values_of
from meshbook.widgets.protocol import Channel, RankState
from meshbook.widgets.states import UNHEALTHY, States

MOST = 5
LAGGING = 0.1  # of the median step, beyond which a rank is behind
LOW_IS_WORSE: Final[tuple[Channel, ...]] = ("gpu",)
_AT_WORK = (RankState.RUNNING, RankState.IN_COLLECTIVE)
ONLY_POSITIVE: Final[tuple[Channel, ...]] = ("skew", "queued")


@dataclass(frozen=True, slots=True)
class WorstRank:
    """A rank and why it is listed. `value`: of the channel, NaN if unknown."""

    rank: int
    value: float
    text: str


def worst_of(channel: Channel, vitals: Vitals, states: States, stragglers: Iterable[WorstRank] = ()) -> list[WorstRank]:
    """Return the worst ranks first, at most five; only ranks worth a report. `stragglers`: the stragglers."""
    if channel == "state":
        by_rank: dict[int, WorstRank] = {}
        unhealthy = [(rank, state) for state in UNHEALTHY for rank in np.flatnonzero(states == state)[:MOST].tolist()]
        worst = [
            WorstRank(rank, float("nan"), _format_unhealthy(state, float(vitals.age[rank])))
            for rank, state in unhealthy
        ]
        for each in (*worst, *stragglers, *_lagging(vitals, states)):
            by_rank.setdefault(each.rank, each)
        return list(by_rank.values())[:MOST]
    values = values_of(channel, vitals, states)
    ranks = _extremes(-values if channel in LOW_IS_WORSE else values)
    worst = [WorstRank(rank, float(values[rank]), format_value(channel, float(values[rank]))) for rank in ranks]
    return [each for each in worst if channel not in ONLY_POSITIVE or each.value > 0]


def metric_of(channel: Channel, vitals: Vitals) -> Metric:
    """Return the metric whose history is shown beside the worst ranks of a channel."""
    if (metric := KINDS[channel].metric) is not None:
        return metric
    steps = vitals.metrics.get("step")
    return "step" if steps is not None and np.isfinite(steps).any() else "cpu"


def _format_unhealthy(state: RankState, age: float) -> str:
    if state is RankState.STALE:
        return f"no heartbeat for {age:.0f} s"
    if state is RankState.STUCK:
        return "still runs a cell that has ended; Interrupt may free it"
    return "dead" if state is RankState.DEAD else "its last cell failed"


def _lagging(vitals: Vitals, states: States) -> Iterator[WorstRank]:
    skews = values_of("skew", vitals, states)
    least = lag_of(vitals, states)
    for rank in _extremes(np.where(np.isin(states, _AT_WORK), skews, np.float32("nan"))):
        if skews[rank] > least:
            yield WorstRank(rank, float(skews[rank]), format_value("skew", float(skews[rank])))


def lag_of(vitals: Vitals, states: States) -> float:
    """Return by how many seconds a step must exceed the median one for its rank to be behind."""
    return LAGGING * median(values_of("step", vitals, states))


def _extremes(values: npt.NDArray[np.float32]) -> list[int]:
    """Return the ranks of the highest known values, the highest first, equal ones by rank."""
    known = np.where(np.isnan(values), -np.inf, values)
    ranks = np.argsort(-known, kind="stable")[:MOST]
    found: list[int] = ranks[np.isfinite(known[ranks])].tolist()
    return found


def format_value(channel: Channel, value: float) -> str:
    """Format a value of a channel for the user."""
    match KINDS[channel].unit:
        case "bytes":
            return format_bytes(value)
        case "seconds":
            return f"{format_seconds(value)} behind" if channel == "skew" else format_seconds(value)
        case "share":
            return f"{value:.0%}"
        case "cores":
            return f"{value:.2f} cores"
        case unit:
            return f"{value:.0f} {unit}"


LONG = 2.0  # seconds of one wait that are reported
OFTEN = 0.1  # share of the time
MEMORY = 30.0  # seconds: time constant of the share; older observations fade
LONGEST_GAP = 1.0  # seconds between two snapshots; a longer gap counts as this long


class StragglerDetector:
    """Measures how long, and how often, the other ranks have waited for each rank."""

    def __init__(self, size: int) -> None:
        self._since = np.full(size, np.nan)
        self._share = np.zeros(size)
        self._now, self._is_at_rest = 0.0, True

    def follow(self, states: States, now: float) -> None:
        """Record the states of the ranks, by a clock in seconds."""
        waiting, working = states == RankState.IN_COLLECTIVE, states == RankState.RUNNING
        # If fewer ranks wait than work, the first ones have arrived and no rank is late yet.
        late = working & (waiting.sum() >= max(1, working.sum()))
        fades = math.exp(-min(now - self._now, LONGEST_GAP) / MEMORY)
        self._share = fades * self._share + (1 - fades) * late
        self._since = np.where(late, np.fmin(self._since, now), np.nan)
        self._now, self._is_at_rest = now, not (waiting.any() or working.any())

    def stragglers(self) -> Iterator[WorstRank]:
        """Yield the ranks that others wait for long or often, the worst first; `value`: the present wait in seconds."""
        if self._is_at_rest:  # stragglers of a cell that has ended are not reported
            return
        waits = np.nan_to_num(self._now - self._since, nan=0.0)
        for rank in np.lexsort((-self._share, -waits))[:MOST].tolist():
            if waits[rank] >= LONG:
                yield WorstRank(rank, float(waits[rank]), f"others have waited {waits[rank]:.0f} s for it")
            elif self._share[rank] >= OFTEN:
                yield WorstRank(rank, float(waits[rank]), f"others wait for it {self._share[rank]:.0%} of the time")
