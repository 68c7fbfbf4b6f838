"""The seam between the dashboard's model and its data: a `Source`, of a real or a simulated mesh.

    vitals of processes ─┐
    the notebook's data  ├─> Source.snapshot() ─> MeshSnapshot ─> DashboardModel ─> messages for the views
    on its cells        ─┘

Ranks are numbered from 0 in row-major order of the mesh's dimensions, as in `%%mesh`. Texts may come from ranks: views
must show them as plain text, never as markup. A `DashboardBackend` adds the actions and requests to the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from meshbook.runtime.telemetry.vitals import Metric, ProcessDetail, Vitals
from meshbook.widgets.protocol import EmptyReply, Reply


@dataclass(frozen=True)
class MeshFacts:
    """The shape of a mesh: the same object until the mesh is resized, ends or starts anew.

    `dims`: names and sizes, the last one changes fastest. `hosts`: names; `host_of`: for each rank the index of its
    host in `hosts`. `alive`: false once the mesh is down.
    """

    name: str
    dims: tuple[tuple[str, int], ...]
    hosts: tuple[str, ...]
    host_of: tuple[int, ...]
    alive: bool = True

    def __post_init__(self) -> None:
        if len(self.host_of) != self.size:
            raise ValueError(
                f"the mesh {self.name!r} has {self.size} ranks, but host_of has {len(self.host_of)} entries"
            )

    @property
    def size(self) -> int:
        """The number of ranks."""
        return math.prod(length for _, length in self.dims)


@dataclass(frozen=True)
class RankConditions:
    """What the notebook knows of ranks beyond their vitals. Each is a set (or an array) of ranks.

    `error`: its last cell has failed, and no other has begun there. `running`: its answer to a cell is pending.
    `paused`: it waits for the user, in the debugger or at a prompt. `stuck`: a cell has ended without its answer.
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

    `seconds`: since it began. `waits`: text on what the cell waits for before it begins; else empty. `jobs`: how many
    run in the background, this one included if it is one.
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
    """Ranks that wait for the user: `what` is `in the debugger` or `asks for input`, `place` is `cell 9:14`."""

    ranks: Collection[int]
    what: str
    place: str = ""


@dataclass(frozen=True, slots=True)
class ProgressBar:
    """A progress bar that several ranks share. `fraction`: of the median rank; `low` and `high`: the extremes."""

    text: str
    fraction: float
    ranks: Collection[int]
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class MeshEvent:
    """One event of the mesh: `at` is the time of day, `kind` one of `telemetry.events.Kind`."""

    at: str
    kind: str
    ranks: Collection[int]
    text: str


@dataclass(frozen=True, slots=True)
class StackGroup:
    """Ranks with a thread at the same place. `frames`: (place, source line), the outermost first."""

    ranks: Collection[int]
    title: str
    frames: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Stacks:
    """The stacks that were taken last. `at`: the time of day."""

    at: str
    groups: tuple[StackGroup, ...]


@dataclass(frozen=True)
class MeshSnapshot:
    """The state of a mesh at one moment. Arrays of `vitals` have a value for each rank of `mesh`."""

    mesh: MeshFacts
    vitals: Vitals
    conditions: RankConditions = field(default_factory=RankConditions)
    cell: CellFacts | None = None
    pauses: Sequence[PausedRanks] = ()
    bars: Sequence[ProgressBar] = ()
    events: Sequence[MeshEvent] = ()  # the newest last
    stacks: Stacks | None = None
    curves: int = 0  # the version of the curves


class CurveSource(Protocol):
    """What `telemetry.curves.CurveStore` offers to charts. Runs are texts such as "cell 12"; rank -1 is the notebook.

    Any thread may call it.
    """

    @property
    def version(self) -> int:
        """A number that grows with each change."""
        ...

    def metrics(self) -> Sequence[str]:
        """Return the metrics with points, in the order of their first appearance."""
        ...

    def runs(self, metric: str) -> Sequence[str]:
        """Return the runs of a metric, the oldest first."""
        ...

    def size_of(self, run: str) -> int | None:
        """Return how many ranks the mesh of a run has now; None if that is not known."""
        ...

    def all_series(self, metric: str, run: str) -> Mapping[int, tuple[Any, Any, Any]]:
        """Return the curves by rank: steps, times (in seconds since 1970) and values, as float64 arrays."""
        ...

    def version_of(self, metric: str, run: str) -> int:
        """Return a number that grows with each change of these curves."""
        ...

    def media(self) -> Sequence[tuple[str, str, int]]:
        """Return metric, run and rank of all histograms and images, in the order of their last change."""
        ...

    def histogram(self, metric: str, run: str, rank: int) -> Any:
        """Return the last `MetricHistogram` of a rank under this name, or None."""
        ...

    def image(self, metric: str, run: str, rank: int) -> Any:
        """Return the last `MetricImage` of a rank under this name, or None."""
        ...


class Source(Protocol):
    """The model's data source, read several times a second: returns from memory, at once, on any thread."""

    def snapshot(self) -> MeshSnapshot:
        """Return the present state of the mesh."""
        ...

    def series(self, ranks: Sequence[int], metrics: Sequence[Metric]) -> Any:
        """Return float32 of the shape [ranks, metrics, points]: a value a second, the newest last; NaN if unknown."""
        ...

    def details(self, ranks: Sequence[int]) -> Sequence[ProcessDetail | None]:
        """Return what these processes report as text; None for a process that has reported nothing."""
        ...

    @property
    def curves(self) -> CurveSource | None:
        """The curves that ranks have logged; None if there are none yet."""
        ...


@dataclass(frozen=True)
class BackendReply:
    """The answer to a request of a view: a reply of the protocol and its buffers."""

    content: Reply = field(default_factory=EmptyReply)
    buffers: Sequence[bytes] = ()


class DashboardBackend(Protocol):
    """A mesh, of a notebook or simulated. Its methods raise errors whose text names the remedy."""

    @property
    def source(self) -> Source:
        """The data source; used on the dashboard's own thread."""
        ...

    def select(self, selector: str) -> Collection[int]:
        """Return the ranks of a selector at once; from any thread."""
        ...

    def watch(self, wake: Callable[[], object] | None) -> None:
        """Call `wake` after each event on the mesh from now on; None: the last view was closed."""
        ...

    def answer(self, request: Mapping[str, Any]) -> BackendReply:
        """Answer the request `act`, `logs`, `timeline` or `curves`; called on a thread of its own, and may block."""
        ...
