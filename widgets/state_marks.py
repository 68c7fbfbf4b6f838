"""The ranks of a mesh as rows of marks, for static pictures: a letter and a colour for each state. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from meshbook.runtime.geometry.ranges import format_ranks
from meshbook.widgets.protocol import RankState
from meshbook.widgets.source import MeshFacts
from meshbook.widgets.states import States

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
    per_mark = _ranks_per_mark(mesh)
    missing = -len(states) % per_mark
    worst = np.pad(states, (0, missing)).reshape(-1, per_mark).max(axis=1)
    last = mesh.dims[-1][1] if mesh.dims and per_mark == 1 else ROW
    group = last if last <= ROW else ROW
    return MarkPicture(
        per_mark, tuple(_rows_of(mesh, [RankState(each) for each in worst.tolist()], per_mark, group)), group
    )


def _ranks_per_mark(mesh: MeshFacts) -> int:
    """Return 1 while all ranks fit; else whole rows of the last dimension, if they are short enough to be useful."""
    least = math.ceil(mesh.size / MOST_MARKS)
    last = mesh.dims[-1][1] if mesh.dims else 1
    return least if least == 1 or last > 2 * least else math.ceil(least / last) * last


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
