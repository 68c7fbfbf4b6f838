"""How each rank is: one `State` from what it says of itself, its signs of life, and what the notebook knows. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from meshbook.runtime.telemetry.vitals import STALE_AFTER
from meshbook.widgets.protocol import State
from meshbook.widgets.source import Conditions, Look

States: TypeAlias = npt.NDArray[np.uint8]
ILL = (State.DEAD, State.STALE, State.STUCK, State.ERROR)  # the worst first


def states_of(look: Look) -> States:
    """A `State` for each rank, as uint8: of those that hold the one with the highest number."""
    states = np.asarray(look.vitals.activity).astype(np.uint8)  # the first four states are the activities
    for ranks, state in _conditions(look):
        states[ranks] = np.maximum(states[ranks], state)
    return states


def _conditions(look: Look) -> Iterator[tuple[Any, State]]:
    size, known = look.mesh.size, look.conditions
    yield indices(known.running, size), State.RUNNING
    yield indices(known.paused, size), State.PAUSED
    yield indices(known.starting, size), State.STARTING
    yield indices(known.error, size), State.ERROR
    yield indices(known.stuck, size), State.STUCK
    yield _silent(look.vitals.age, known, size), State.STALE
    yield indices(known.dead, size), State.DEAD


def _silent(age: Any, known: Conditions, size: int) -> npt.NDArray[np.bool_]:
    # Who has never given a sign is not measured at all, or is starting: neither is a reason for alarm.
    age = np.asarray(age)
    silent: npt.NDArray[np.bool_] = np.isfinite(age) & (age > STALE_AFTER)
    silent[indices(known.starting, size)] = False
    return silent


def indices(ranks: Collection[int], size: int) -> npt.NDArray[np.intp]:
    """The ranks as an array that picks; those are left out that a mesh of this size has not, as after a resize."""
    array = ranks if isinstance(ranks, np.ndarray) else np.fromiter(ranks, np.intp, len(ranks))
    picked: npt.NDArray[np.intp] = array.astype(np.intp)
    return picked[(picked >= 0) & (picked < size)]


def counts_of(states: States) -> dict[str, int]:
    """How many ranks are in each state, by its lower-case name; states of no rank are left out."""
    counts = np.bincount(states, minlength=len(State)).tolist()
    return {state.name.lower(): counts[state] for state in State if counts[state]}


def count_ill(states: States) -> int:
    """How many ranks a person should look at."""
    return int(np.isin(states, ILL).sum())
