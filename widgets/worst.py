"""The five ranks that need attention first: by a channel, or by their states. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from meshbook.runtime.amounts import format_bytes, format_seconds
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
        for each in (*_unhealthy(vitals, states), *stragglers, *_lagging(vitals, states)):
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


def _unhealthy(vitals: Vitals, states: States) -> Iterator[WorstRank]:
    for state in UNHEALTHY:
        for rank in np.flatnonzero(states == state)[:MOST].tolist():
            yield WorstRank(rank, float("nan"), _format_unhealthy(state, float(vitals.age[rank])))


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
