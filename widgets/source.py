"""Where the dashboard's model gets what it shows: a `Source`, of a real mesh or of a simulated one. The words of it.

    vitals of processes ─┐
    what the notebook    ├─> Source.look() ─> Look ─> DashboardModel ─> messages for the views
    knows of its cells  ─┘

Ranks are numbered from 0 in row-major order of the mesh's dimensions, as in `%%mesh`. Texts may come from ranks:
whoever shows them shows them as text.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from meshbook.runtime.telemetry.vitals import Metric, ProcessDetail, Vitals


@dataclass(frozen=True)
class MeshFacts:
    """What a mesh is: the same object while nothing changes, another one once it was resized, has ended or begun anew.

    `dims`: names and sizes, the last one changes fastest. `hosts`: names; `host_of`: for each rank the place of its
    host in them. `alive`: false once the mesh is down.
    """

    name: str
    dims: tuple[tuple[str, int], ...]
    hosts: tuple[str, ...]
    host_of: tuple[int, ...]
    alive: bool = True

    def __post_init__(self) -> None:
        if len(self.host_of) != self.size:
            raise ValueError(f"the mesh {self.name!r} has {self.size} ranks, and host_of is of {len(self.host_of)}")

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return math.prod(length for _, length in self.dims)


@dataclass(frozen=True)
class RankConditions:
    """What the notebook knows of ranks, beside what their vitals say. Each is a set (or an array) of ranks.

    `error`: its last cell has failed, and no other one has begun there. `running`: it owes an answer to a cell.
    `paused`: it waits for a person, in the debugger or at a prompt. `stuck`: a cell has ended without its answer.
    """

    dead: Collection[int] = ()
    starting: Collection[int] = ()
    error: Collection[int] = ()
    running: Collection[int] = ()
    paused: Collection[int] = ()
    stuck: Collection[int] = ()


@dataclass(frozen=True, slots=True)
class CellFacts:
    """The cell that runs in the foreground, or the first of the jobs.

    `seconds`: since it began. `waits`: for whom it waits before it begins, as a person would say it; else empty.
    `jobs`: how many run in the background, this one included if it is one.
    """

    number: int | None
    title: str
    seconds: float
    ranks: Collection[int]
    waits: str = ""
    jobs: int = 0
    interruptible: bool = True


@dataclass(frozen=True, slots=True)
class PausedRanks:
    """Ranks that wait for a person: `what` is `in the debugger` or `asks for input`, `place` is `cell 9:14`."""

    ranks: Collection[int]
    what: str
    place: str = ""


@dataclass(frozen=True, slots=True)
class ProgressBar:
    """A progress bar that ranks have in common. `fraction`: of the median rank, `low` and `high`: ends."""

    text: str
    fraction: float
    ranks: Collection[int]
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class MeshEvent:
    """One thing that happened to the mesh: `at` is the time of day, `kind` one of `telemetry.events.Kind`."""

    at: str
    kind: str
    ranks: Collection[int]
    text: str


@dataclass(frozen=True, slots=True)
class StackGroup:
    """Ranks of which a thread stands at the same place. `frames`: (place, source line), the outermost first."""

    ranks: Collection[int]
    title: str
    frames: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Stacks:
    """The stacks that were asked for last. `at`: the time of day."""

    at: str
    groups: tuple[StackGroup, ...]


@dataclass(frozen=True)
class MeshSnapshot:
    """How a mesh is in one moment. Arrays of `vitals` have a value for each rank of `mesh`."""

    mesh: MeshFacts
    vitals: Vitals
    conditions: RankConditions = field(default_factory=RankConditions)
    cell: CellFacts | None = None
    pauses: Sequence[PausedRanks] = ()
    bars: Sequence[ProgressBar] = ()
    events: Sequence[MeshEvent] = ()  # the newest last
    stacks: Stacks | None = None


class Source(Protocol):
    """What the model asks, several times a second: answers come from memory, at once, and from any thread."""

    def look(self) -> MeshSnapshot:
        """How the mesh is now."""
        ...

    def series(self, ranks: Sequence[int], metrics: Sequence[Metric]) -> Any:
        """Float32 of the shape [ranks, metrics, points]: a value a second, the newest last; NaN is not known."""
        ...

    def details(self, ranks: Sequence[int]) -> Sequence[ProcessDetail | None]:
        """What is told of these processes in words; None for one that has told nothing."""
        ...
