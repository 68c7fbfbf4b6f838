"""What a dashboard shows of a mesh of the notebook: its processes' vitals, and what the notebook knows of its cells.

It is asked several times a second, on the dashboard's thread: all of this lies in memory.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy

from meshbook.magics.dashing.bars import bars_of
from meshbook.magics.dashing.cells import cell_of, runs_on
from meshbook.magics.meshes import NotebookMesh
from meshbook.magics.run import CellRun
from meshbook.runtime.telemetry.history import History
from meshbook.runtime.telemetry.vitals import HISTORY_SECONDS, METRICS, Metric, ProcessDetail, Vitals
from meshbook.runtime.wire.messages import Address
from meshbook.widgets.source import Conditions, Happening, Look, MeshFacts, Pause, Stacks

MOST_EVENTS = 10


if TYPE_CHECKING:  # it has the dashboards
    from meshbook.magics.notebook import Notebook


class NotebookSource:
    """Of the mesh with this name, whichever that is: one that is brought up again under it is shown as well."""

    def __init__(self, notebook: Notebook, name: str) -> None:
        self._notebook = notebook
        self._name = name
        self._facts = MeshFacts(name, (("gpus", 0),), (), (), alive=False)
        self._nodes: tuple[str, ...] = ()
        self._known: Any = None  # of what mesh, with what processes, the facts are
        self.stacks: Stacks | None = None  # that were taken last
        self.when_new: Callable[[], object] = lambda: None  # a mesh is seen for the first time

    @property
    def mesh(self) -> NotebookMesh | None:
        """None while no mesh of this name is up."""
        return next((mesh for mesh in self._notebook.meshes if mesh.name == self._name), None)

    # -- what the model asks -----------------------------------------------------

    def look(self) -> Look:
        """How the mesh is now."""
        mesh = self.mesh
        if mesh is None:
            return self._look_at_none()
        self._learn(mesh)
        runs = runs_on(self._notebook, mesh)
        return Look(
            mesh=self._facts,
            vitals=self._vitals(mesh),
            conditions=_conditions(mesh, runs),
            cell=cell_of(self._notebook, mesh),
            pauses=list(_pauses(runs)),
            bars=[bar for run in runs for bar in bars_of(run.live_rows)],
            events=list(_events(mesh)),
            stacks=self.stacks,
        )

    def series(self, ranks: Sequence[int], metrics: Sequence[Metric]) -> Any:
        """Float32 of the shape [ranks, metrics, points]: a value a second, the newest last; NaN is not known."""
        mesh = self.mesh
        if mesh is None:
            return _filled((len(ranks), len(metrics), HISTORY_SECONDS), numpy.nan)
        return mesh.session.history.series([self._nodes[rank] for rank in ranks], metrics)

    def details(self, ranks: Sequence[int]) -> list[ProcessDetail | None]:
        """What is told of these processes in words."""
        mesh = self.mesh
        return [None if mesh is None else mesh.session.history.detail(self._nodes[rank]) for rank in ranks]

    # -- what it is made of ------------------------------------------------------

    def _look_at_none(self) -> Look:
        """Its ranks as they were laid out, and nothing else."""
        if self._facts.alive:
            facts = self._facts
            self._facts = MeshFacts(facts.name, facts.dims, facts.hosts, facts.host_of, alive=False)
            self._known = self.stacks = None
        size = self._facts.size
        return Look(self._facts, _unknown(size), Conditions(dead=range(size)))

    def _learn(self, mesh: NotebookMesh) -> None:
        procs = mesh.procs
        known = (mesh, procs.nodes)
        if self._known is not None and known[0] is self._known[0] and known[1] == self._known[1]:
            return
        self._known, self.stacks = known, None
        self._nodes = tuple(address.node for address in procs.nodes)
        hosts = dict(zip(procs.host_ranks, procs.nodes, strict=True))
        names = tuple(_host_name(mesh.session.history, address) for _, address in sorted(hosts.items()))
        places = {host: place for place, host in enumerate(sorted(hosts))}
        host_of = tuple(places[host] for host in procs.host_ranks)
        self._facts = MeshFacts(mesh.name, tuple(mesh.extent.items()), names, host_of)
        self.when_new()

    def _vitals(self, mesh: NotebookMesh) -> Vitals:
        found: Vitals = mesh.session.history.vitals(self._nodes)
        return found


def _host_name(history: History, address: Address) -> str:
    """As the host's agent calls it; of a mesh that has just come up, its address."""
    told = history.detail(address.node)
    return (told.host if told is not None else urlsplit(address.url).hostname) or platform.node() or "this host"


def _unknown(size: int) -> Vitals:
    """Of processes of which nothing is known."""
    metrics = {name: _filled(size, numpy.nan) for name in METRICS}
    return Vitals(metrics, numpy.zeros(size, numpy.uint8), _filled(size, numpy.inf))


def _filled(shape: Any, value: float) -> Any:
    return numpy.full(shape, value, numpy.float32)


def _conditions(mesh: NotebookMesh, runs: Sequence[CellRun]) -> Conditions:
    last = mesh.last
    at_work = [node for nodes in mesh.queues.at_work().values() for node in nodes]
    running = {rank for node in at_work if (rank := mesh.rank_of.get(node)) is not None}
    failed = {rank for rank in last.failed if mesh.fresh.get(rank) != last.serial}
    paused = {rank for run in runs for asking in run.pauses for rank in asking.ranks}
    return Conditions(dead=set(mesh.dead), error=failed - running, running=running, paused=paused)


def _pauses(runs: Sequence[CellRun]) -> Iterator[Pause]:
    for run in runs:
        for asking in run.pauses:
            yield Pause(asking.ranks, "in the debugger" if asking.is_debugger else "asks for input", asking.place)


def _events(mesh: NotebookMesh) -> Iterator[Happening]:
    of_mesh = [event for event in mesh.session.events if event.procs == mesh.procs.name]
    for event in of_mesh[-MOST_EVENTS:]:
        clock = str(event).partition(" ")[0]
        yield Happening(clock, event.kind, event.ranks, event.text.partition("\n")[0])
