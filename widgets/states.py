"""The `RankState` of each rank, from its own status, its heartbeats and the notebook's data. Pure.

Static pictures show the ranks as rows of marks, with a letter and a colour for each state.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from meshbook.runtime.formats import format_ranks
from meshbook.runtime.telemetry.vitals import STALE_AFTER
from meshbook.widgets.protocol import RankState
from meshbook.widgets.source import MeshFacts, MeshSnapshot

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


MOST_MARKS = 256
ROW = 32  # marks
MOST_PLACES = 16  # rows that get coordinates as their labels


@dataclass(frozen=True, slots=True)
class StateMark:
    """How a state is shown: legible without its colours, on a light and on a dark background."""

    letter: str
    title: str
    ground: str
    colour: str = "#fff"


MARKS: Final[dict[RankState, StateMark]] = {
    RankState.IDLE: StateMark("·", "idle", "#9aa4b1", "#000"),
    RankState.RUNNING: StateMark("R", "running", "#007a59"),
    RankState.IN_COLLECTIVE: StateMark("C", "in a collective", "#0072b2"),
    RankState.PAUSED: StateMark("P", "paused", "#f0e442", "#000"),
    RankState.STARTING: StateMark("S", "starting", "#cc79a7", "#000"),
    RankState.ERROR: StateMark("E", "error", "#b84c00"),
    RankState.STUCK: StateMark("!", "stuck", "#8a1c7c"),
    RankState.STALE: StateMark("?", "no heartbeat", "#e69f00", "#000"),
    RankState.DEAD: StateMark("X", "dead", "#5c1a33"),
}


@dataclass(frozen=True, slots=True)
class MarkRow:
    """A row of marks. `label`: its coordinates in the mesh."""

    label: str
    states: tuple[RankState, ...]


@dataclass(frozen=True, slots=True)
class MarkPicture:
    """All rows; a mark shows the worst state among its `per_mark` ranks."""

    per_mark: int
    rows: tuple[MarkRow, ...]
    group: int  # marks drawn as a group

    def groups_of(self, row: MarkRow) -> Iterator[tuple[RankState, ...]]:
        """Yield the marks of a row, in groups."""
        return (row.states[start : start + self.group] for start in range(0, len(row.states), self.group))


def picture_of(mesh: MeshFacts, states: States) -> MarkPicture:
    """Return the mesh in at most 256 marks."""
    # One rank a mark while all fit; else whole rows of the last dimension, if they are short enough to be useful.
    least, width = math.ceil(mesh.size / MOST_MARKS), mesh.dims[-1][1] if mesh.dims else 1
    per_mark = least if least == 1 or width > 2 * least else math.ceil(least / width) * width
    missing = -len(states) % per_mark
    worst = np.pad(states, (0, missing)).reshape(-1, per_mark).max(axis=1)
    last = mesh.dims[-1][1] if mesh.dims and per_mark == 1 else ROW
    group = last if last <= ROW else ROW
    return MarkPicture(
        per_mark, tuple(_rows_of(mesh, [RankState(each) for each in worst.tolist()], per_mark, group)), group
    )


def _rows_of(mesh: MeshFacts, states: list[RankState], per_mark: int, group: int) -> Iterator[MarkRow]:
    fits = per_mark == 1 and len(mesh.dims) > 1 and mesh.dims[-1][1] == group
    by_dims = fits and len(states) // group <= MOST_PLACES
    width = group if by_dims else ROW // group * group
    for start in range(0, len(states), width):
        shown = tuple(states[start : start + width])
        first = start * per_mark
        ranks = range(first, min(first + len(shown) * per_mark, mesh.size))
        yield MarkRow(_place(mesh, first) if by_dims else format_ranks(ranks), shown)


def _place(mesh: MeshFacts, rank: int) -> str:
    """Return the coordinates of a rank, without the last one: `hosts=3`."""
    words: list[str] = []
    rest = rank // mesh.dims[-1][1]
    for name, size in reversed(mesh.dims[:-1]):
        words.insert(0, f"{name}={rest % size}")
        rest //= size
    return " ".join(words)
