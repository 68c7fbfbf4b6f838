"""The `RankState` of each rank, from its own status, its heartbeats and the notebook's data. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from meshbook.runtime.telemetry.vitals import STALE_AFTER
from meshbook.widgets.protocol import RankState
from meshbook.widgets.source import MeshSnapshot

States: TypeAlias = npt.NDArray[np.uint8]
UNHEALTHY = (RankState.DEAD, RankState.STALE, RankState.STUCK, RankState.ERROR)  # the most severe first


def states_of(snapshot: MeshSnapshot) -> States:
    """Return a `RankState` for each rank, as uint8; if several hold, the one with the highest number."""
    states = np.asarray(snapshot.vitals.activity).astype(np.uint8)  # the first four states are the activities
    for ranks, state in _conditions(snapshot):
        states[ranks] = np.maximum(states[ranks], state)
    return states


def _conditions(snapshot: MeshSnapshot) -> Iterator[tuple[Any, RankState]]:
    size, known = snapshot.mesh.size, snapshot.conditions
    yield indices(known.running, size), RankState.RUNNING
    yield indices(known.paused, size), RankState.PAUSED
    yield indices(known.starting, size), RankState.STARTING
    yield indices(known.error, size), RankState.ERROR
    yield indices(known.stuck, size), RankState.STUCK
    # A rank that has never sent a heartbeat is not measured at all, or is starting: neither is an alarm.
    age = np.asarray(snapshot.vitals.age)
    is_silent: npt.NDArray[np.bool_] = np.isfinite(age) & (age > STALE_AFTER)
    is_silent[indices(known.starting, size)] = False
    yield is_silent, RankState.STALE
    yield indices(known.dead, size), RankState.DEAD


def indices(ranks: Collection[int], size: int) -> npt.NDArray[np.intp]:
    """Return the ranks as an index array, without ranks that a mesh of this size does not have, as after a resize."""
    array = ranks if isinstance(ranks, np.ndarray) else np.fromiter(ranks, np.intp, len(ranks))
    picked: npt.NDArray[np.intp] = array.astype(np.intp)
    return picked[(picked >= 0) & (picked < size)]


def counts_of(states: States) -> dict[str, int]:
    """Return how many ranks are in each state, by its lower-case name; states without ranks are left out."""
    counts = np.bincount(states, minlength=len(RankState)).tolist()
    return {state.name.lower(): counts[state] for state in RankState if counts[state]}


def count_unhealthy(states: States) -> int:
    """Return how many ranks need attention."""
    return int(np.isin(states, UNHEALTHY).sum())
