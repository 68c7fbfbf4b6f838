"""The data that a dashboard shows of a mesh: the vitals of its processes, its running cells and their progress bars.

The dashboard's thread reads it several times a second, so all of it is in memory.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy

from meshbook.magics.cells.execution import CellExecution
from meshbook.magics.meshes.registry import NotebookMesh
from meshbook.magics.output.ansi import strip_colours
from meshbook.magics.output.progress_bars import merge_bars
from meshbook.runtime.formats import mesh_name
from meshbook.runtime.mesh.procs import ProcMesh
from meshbook.runtime.telemetry.bar_lines import BarLine, parse_bar
from meshbook.runtime.telemetry.curve_media import MediaKey
from meshbook.runtime.telemetry.curves import NOTEBOOK, CurveStore
from meshbook.runtime.telemetry.vitals import HISTORY_SECONDS, METRICS, Activity, Metric, ProcessDetail, Vitals
from meshbook.runtime.wire.messages import Address
from meshbook.widgets.source import (
    CellFacts,
    MeshEvent,
    MeshFacts,
    MeshSnapshot,
    PausedRanks,
    ProgressBar,
    RankConditions,
    Stacks,
)

if TYPE_CHECKING:
    from meshbook.magics.notebook import Notebook


MOST_EVENTS = 10


if TYPE_CHECKING:  # circular: it has the dashboards
    from meshbook.magics.notebook import Notebook


@dataclass(frozen=True)
class _Known:
    """The last known state of a mesh, replaced as a whole, so that other threads always read a consistent one."""

    facts: MeshFacts
    mesh: NotebookMesh | None = None
    addresses: Sequence[Address] = ()
    nodes: tuple[str, ...] = ()


class NotebookSource:
    """The data of the mesh with this name; a mesh started again under the name replaces the previous one."""

    def __init__(self, notebook: Notebook, name: str) -> None:
        self._notebook = notebook
        self._name = name
        self._known = _Known(MeshFacts(name, (("gpus", 0),), (), (), alive=False))
        self.stacks: Stacks | None = None  # the last ones taken
        self.curves: MeshCurves | None = None  # of the present or the last session
        self.when_new: Callable[[], object] = lambda: None  # called when a mesh is seen for the first time

    @property
    def mesh(self) -> NotebookMesh | None:
        """The mesh; None while no mesh of this name is up."""
        return next((mesh for mesh in self._notebook.meshes if mesh.name == self._name), None)

    # -- called by the model -----------------------------------------------------

    def snapshot(self) -> MeshSnapshot:
        """Return the present state of the mesh."""
        mesh = self.mesh
        if mesh is None:
            return self._look_without_mesh()
        known = self._learn(mesh)
        runs = self._notebook.runs_on(mesh)
        return MeshSnapshot(
            mesh=known.facts,
            vitals=mark_idle(mesh.session.history.vitals(known.nodes), mesh.queues.seconds_free(known.nodes)),
            conditions=_conditions(mesh, runs),
            cell=cell_of(self._notebook, mesh),
            pauses=[
                PausedRanks(each.ranks, "in the debugger" if each.is_debugger else "asks for input", each.place)
                for run in runs
                for each in run.pauses
            ],
            bars=[*_engine_bars(mesh), *(bar for run in runs for bar in bars_of(run.live_rows))],
            events=list(_events(mesh)),
            stacks=self.stacks,
            curves=self._version_of_curves(),
        )

    def series(self, ranks: Sequence[int], metrics: Sequence[Metric]) -> Any:
        """Return float32 values of shape [ranks, metrics, points]: one per second, the newest last; NaN if unknown."""
        mesh = self.mesh
        if mesh is None:
            return _full((len(ranks), len(metrics), HISTORY_SECONDS), numpy.nan)
        nodes = self._known.nodes
        return mesh.session.history.series([nodes[rank] for rank in ranks], metrics)

    def details(self, ranks: Sequence[int]) -> list[ProcessDetail | None]:
        """Return the details of these processes as text."""
        mesh, nodes = self.mesh, self._known.nodes
        return [None if mesh is None else mesh.session.history.detail(nodes[rank]) for rank in ranks]

    # -- helpers -----------------------------------------------------------------

    def _look_without_mesh(self) -> MeshSnapshot:
        """Return the ranks in their last known layout, and nothing else."""
        facts = self._known.facts
        if facts.alive:
            facts = replace(facts, alive=False)
            self._known, self.stacks = _Known(facts), None
        size = facts.size
        metrics = {name: _full(size, numpy.nan) for name in METRICS}
        unknown = Vitals(metrics, numpy.zeros(size, numpy.uint8), _full(size, numpy.inf))
        return MeshSnapshot(facts, unknown, RankConditions(dead=range(size)), curves=self._version_of_curves())

    def _version_of_curves(self) -> int:
        return self.curves.version if self.curves is not None else 0

    def _other_meshes(self) -> set[str]:
        others = [mesh for mesh in self._notebook.meshes if mesh.name != self._name]
        return {mesh_name(mesh.procs.name) for mesh in others}

    def _learn(self, mesh: NotebookMesh) -> _Known:
        known, procs = self._known, mesh.procs
        if known.mesh is mesh and known.addresses == procs.nodes:
            return known
        nodes = tuple(address.node for address in procs.nodes)
        known = self._known = _Known(_facts_of(mesh, procs), mesh, procs.nodes, nodes)
        name, size = mesh_name(procs.name), known.facts.size
        self.stacks, self.curves = None, MeshCurves(mesh.session.curves, self._other_meshes, name, size)
        self.when_new()
        return known


class MeshCurves:
    """The curves of one mesh of a notebook (`meshbook.widgets.source.CurveSource`), and those of the notebook itself.

    Curves of the notebook's other meshes are left out, but not those of meshes that actors and scripts have spawned.
    `size` is the number of its ranks.
    """

    def __init__(self, store: CurveStore, other_meshes: Callable[[], Collection[str]], name: str, size: int) -> None:
        self._store = store
        self._other_meshes = other_meshes
        self._name, self._size = name, size
        self.histogram, self.image, self.version_of = store.histogram, store.image, store.version_of

    @property
    def version(self) -> int:
        """A number that grows with each change."""
        return self._store.version

    def metrics(self) -> list[str]:
        """Return the metrics with points, in the order of their first appearance."""
        hidden = self._hidden_runs()
        return [name for name in self._store.metrics() if not hidden or self._shown_runs(name, hidden)]

    def runs(self, metric: str) -> list[str]:
        """Return the runs of a metric, the oldest first."""
        return self._shown_runs(metric, self._hidden_runs())

    def _shown_runs(self, metric: str, hidden: Collection[str]) -> list[str]:
        runs = self._store.runs(metric)
        return [run for run in runs if run not in hidden or NOTEBOOK in self._store.ranks(metric, run)]

    def size_of(self, run: str) -> int | None:
        """Return how many ranks the mesh of a run has now; None if that is not known."""
        return self._size if self._store.meshes().get(run) == self._name else None

    def all_series(self, metric: str, run: str) -> Mapping[int, tuple[Any, Any, Any]]:
        """Return the curves by rank; of another mesh's run, that of the notebook."""
        series = self._store.all_series(metric, run)
        return {NOTEBOOK: series[NOTEBOOK]} if run in self._hidden_runs() else series

    def media(self) -> list[MediaKey]:
        """Return metric, run and rank of all histograms and images, in the order of their last change."""
        hidden = self._hidden_runs()
        return [key for key in self._store.media() if key[1] not in hidden or key[2] == NOTEBOOK]

    def _hidden_runs(self) -> set[str]:
        others = self._other_meshes()
        return {run for run, mesh in self._store.meshes().items() if mesh in others} if others else set()


def _facts_of(mesh: NotebookMesh, procs: ProcMesh) -> MeshFacts:
    hosts = dict(zip(procs.host_ranks, procs.nodes, strict=True))
    known = procs.host_mesh.names
    names = []
    for index, address in sorted(hosts.items()):
        # The controller's own host, as its agent reports it.
        detail = mesh.session.history.detail(address.node)
        host = detail.host if detail is not None else urlsplit(address.url).hostname
        names.append(known[index] or host or platform.node() or "this host")
    places = {host: place for place, host in enumerate(sorted(hosts))}
    hosts_of_ranks = tuple(places[host] for host in procs.host_ranks)
    return MeshFacts(mesh.name, tuple(procs.extent.items()), tuple(names), hosts_of_ranks)


def mark_idle(vitals: Vitals, seconds: Sequence[float]) -> Vitals:
    """Mark ranks idle that sent no heartbeat since their last cell ended; `seconds` since then, 0 if a cell runs."""
    is_older = (numpy.asarray(vitals.age) > numpy.asarray(seconds)) & (numpy.asarray(seconds) > 0)
    return replace(vitals, activity=numpy.where(is_older, numpy.uint8(Activity.IDLE), vitals.activity))


def _full(shape: Any, value: float) -> Any:
    return numpy.full(shape, value, numpy.float32)


def _conditions(mesh: NotebookMesh, runs: Sequence[CellExecution]) -> RankConditions:
    at_work = [node for nodes in mesh.queues.at_work().values() for node in nodes]
    running = {rank for node in at_work if (rank := mesh.rank_of.get(node)) is not None}
    failed = mesh.failed
    for run in runs:  # show failed ranks before the others are done
        answers = run.answers
        errors = {rank: error.kind for rank, error in answers.items() if error is not None}
        # A dead rank is shown as dead until it is healed, an interrupted one as idle.
        failures = {rank for rank, kind in errors.items() if kind not in ("died", "interrupted")}
        failed = (failed - answers.keys()) | failures
    paused = {rank for run in runs for asking in run.pauses for rank in asking.ranks}
    return RankConditions(dead=set(mesh.dead), error=failed - running, running=running, paused=paused, stuck=mesh.stuck)


def _events(mesh: NotebookMesh) -> Iterator[MeshEvent]:
    of_mesh = [event for event in mesh.session.events if event.procs == mesh.procs.name]
    for event in of_mesh[-MOST_EVENTS:]:
        clock = str(event).partition(" ")[0]
        yield MeshEvent(clock, event.kind, event.ranks, event.text.partition("\n")[0])


def jobs_on(notebook: Notebook, mesh: NotebookMesh) -> list[CellExecution]:
    """Return the running jobs, which do not block the notebook."""
    jobs = {job.run for job in notebook.jobs if not job.done()}
    return [run for run in notebook.runs_on(mesh) if run in jobs]


def blocks_notebook(notebook: Notebook, mesh: NotebookMesh) -> bool:
    """Whether a cell runs that Ctrl-C would end, and that does not belong to another mesh."""
    if any(run.mesh is not mesh for run in notebook.foreground_cells):
        return False
    return notebook.cell_times.seconds > 0


def cell_of(notebook: Notebook, mesh: NotebookMesh) -> CellFacts | None:
    """Return the cell that blocks the notebook, or the first of the jobs."""
    jobs = jobs_on(notebook, mesh)
    for run in (*[run for run in notebook.runs_on(mesh) if run not in jobs], *jobs):
        return CellFacts(run.cell.number, run.title, run.seconds, tuple(run.ranks), run.waits_for, len(jobs))
    if not blocks_notebook(notebook, mesh):
        return None
    number = notebook.cell_number
    return CellFacts(number, f"cell {number}, in the notebook", notebook.cell_times.seconds, ())


def _engine_bars(mesh: NotebookMesh) -> Iterator[ProgressBar]:
    for engine in mesh.procs.tensor_engines:
        queued = {mesh.rank_of[node]: count for node, count in engine.queued().items() if node in mesh.rank_of}
        if (bar := bar_of_engine(queued)) is not None:
            yield bar


def bar_of_engine(queued: Mapping[int, int]) -> ProgressBar | None:
    """Return a tensor engine's queue as a bar, by the number of commands that each rank has not run; None if empty.

    The bar shows how far the ranks are through the queue of the slowest one.
    """
    counts = sorted(queued.values())
    if not counts or not counts[-1]:
        return None
    slowest = next(rank for rank, count in sorted(queued.items()) if count == counts[-1])
    apart = f"  r{slowest} slowest" if counts[0] < counts[-1] else ""
    done = [1 - count / counts[-1] for count in counts]
    text = f"tensor engine: {counts[-1]:,} commands queued{apart}"
    return ProgressBar(text, done[len(done) // 2], tuple(sorted(queued)), done[-1], done[0])


MOST = 12  # bars shown


def bars_of(rows: Mapping[int, str]) -> list[ProgressBar]:
    """Return the merged bars in the ranks' rows that may still change, in the order of the ranks."""
    alike: dict[str, dict[int, BarLine]] = {}
    for rank, text in sorted(rows.items()):
        for line in text.splitlines():
            if (bar := parse_bar(strip_colours(line).rstrip())) is not None and bar.total:
                alike.setdefault(bar.key, {})[rank] = bar
    merged: list[ProgressBar] = []
    for bars in list(alike.values())[:MOST]:
        done = sorted(bar.progress for bar in bars.values())
        merged.append(ProgressBar(merge_bars(bars), done[len(done) // 2], tuple(bars), done[0], done[-1]))
    return merged
