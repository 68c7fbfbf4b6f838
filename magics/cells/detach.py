"""The state of a notebook that detaches its run: meshes, jobs, variables; and how another notebook restores it.

Processes and actors belong to the runtime (`runtime.hosts.detaching`).
"""

from __future__ import annotations

import atexit
import dataclasses
import logging
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle

from meshbook.magics.cells.cell import CellProgress, PreparedCell
from meshbook.magics.cells.execution import CellExecution
from meshbook.magics.cells.jobs import Job
from meshbook.magics.cells.push_pull import CellTransfers
from meshbook.magics.meshes.idleness import watch_hosts
from meshbook.magics.meshes.mesh_hosts import MeshHosts
from meshbook.magics.meshes.registry import NotebookMesh
from meshbook.magics.notebook import Notebook
from meshbook.magics.output.publisher import publisher_for
from meshbook.magics.syntax.cell_options import CellOptions
from meshbook.magics.variables.mesh_handle import NotebookProcMesh
from meshbook.runtime.hosts.attaching import AttachedSession
from meshbook.runtime.hosts.detached_runs import remark
from meshbook.runtime.hosts.detaching import ClientState, detach
from meshbook.runtime.hosts.session import Session, close_session, leave_session
from meshbook.runtime.mesh.actors import ActorMesh
from meshbook.runtime.mesh.host_ownership import HostOwnership
from meshbook.runtime.mesh.procs import ProcMesh
from meshbook.runtime.rdma.buffer import RDMABuffer
from meshbook.runtime.wire import pickling

logger = logging.getLogger(__name__)

HANDLES = ProcMesh, ActorMesh, RDMABuffer  # variables of these types are saved and restored
# Fields of a mesh that the attaching notebook creates anew.
SESSION_FIELDS = {"session", "procs", "unwatch", "queues", "is_one_of_several"}


@dataclass(frozen=True)
class DetachedMesh:
    """A mesh: the key of its processes, the keys of its actors by field, and its other state, by field."""

    procs: str
    actors: dict[str, str]
    known: dict[str, bytes]


@dataclass(frozen=True)
class DetachedJob:
    """A cell that keeps running."""

    number: int
    cell: int
    mesh: str
    ranks: tuple[int, ...]
    options: CellOptions
    shown: frozenset[int] | None
    progress: CellProgress
    transfer: bytes | None  # the payload of the cell, and the values that have come back


@dataclass(frozen=True)
class DetachedNotebook:
    """The saved state of a notebook. `variables` are those that name meshes, pickled one by one."""

    meshes: tuple[DetachedMesh, ...]
    default: str
    jobs: tuple[DetachedJob, ...]
    variables: dict[str, bytes]
    detaches_for: float | None = None  # seconds to detach for at the end of each kernel; None: do not detach


def save_state(notebook: Notebook, session: Session) -> ClientState:
    """Return the saved state of this notebook, once the run sends it nothing any more."""
    meshes = list(notebook.meshes)
    jobs = tuple(_detach_cell(number, run) for number, run in _running(notebook))
    saved = DetachedNotebook(
        tuple(map(_save_mesh, meshes)),
        notebook.meshes.get().name if meshes else "",
        jobs,
        {name: pickled for name, value in _variables(notebook) if (pickled := _pickled(value)) is not None},
        notebook.detaches_for,
    )
    for mesh in meshes:
        mesh.unwatch()
    nodes = {mesh.name: mesh.procs.nodes for mesh in meshes}
    calls = {call: nodes[job.mesh][rank].node for job in jobs for rank, call in job.progress.calls.items()}
    return ClientState(pickle.dumps(saved), calls)


def _save_mesh(mesh: NotebookMesh) -> DetachedMesh:
    actors, known = {}, {}
    for field in dataclasses.fields(mesh):
        value = getattr(mesh, field.name)
        if field.name in SESSION_FIELDS:
            continue
        if isinstance(value, ActorMesh):
            [actors[field.name]] = value._keys
        elif (pickled := _pickled(value)) is not None:
            known[field.name] = pickled
    return DetachedMesh(mesh.procs.name, actors, known)


def _running(notebook: Notebook) -> Iterator[tuple[int, CellExecution]]:
    """The running cells, as jobs. Cells that this notebook waits for become jobs in the next one."""
    jobs = list(notebook.jobs)
    yield from ((job.number, job.run) for job in jobs if not job.done())
    yield from enumerate(notebook.foreground_cells, max((job.number for job in jobs), default=0) + 1)


def _detach_cell(number: int, run: CellExecution) -> DetachedJob:
    cell, progress, transfers = run.cell, run.leave(), run.cell.transfers
    return DetachedJob(
        *(number, cell.number, cell.mesh.name, tuple(cell.region.ranks()), cell.options, cell.shown, progress),
        transfer=None if transfers is None else cloudpickle.dumps(transfers.leave()),
    )


def _variables(notebook: Notebook) -> Iterator[tuple[str, Any]]:
    """The user's variables that are handles; others are not saved."""
    for name, value in list(notebook.shell.user_ns.items()):
        if not name.startswith("_") and isinstance(value, HANDLES):
            yield name, value


def _pickled(value: Any) -> bytes | None:
    try:
        body = pickling.dumps(value, "a value")  # as in a message: a handle need not wait for its actors
        return pickle.dumps([bytes(part) for part in body])
    except Exception:  # it cannot be pickled
        return None


def _loaded(pickled: bytes) -> Any:
    return pickling.loads(pickle.loads(pickled), "a value")


def plan_to_detach(notebook: Notebook, seconds: float | None) -> None:
    """Detach the meshes for this many seconds when this process ends; None: end them."""
    if seconds is not None and notebook.detaches_for is None:
        atexit.unregister(end_run)  # it may have been registered before
        atexit.register(end_run, notebook)  # a stock kernel has no other hook at its end
    notebook.detaches_for = seconds


def end_run(notebook: Notebook) -> None:
    """Detach the meshes at the end of this process if `%mesh detach --at-exit` was given, else end them."""
    notebook.dashboards.close()
    try:
        if notebook.detaches_for is not None and len(notebook.meshes):
            detach_meshes(notebook, notebook.detaches_for)
    except Exception:  # no cell can show the error now, and no process may be left behind
        logger.exception("failed to detach the meshes; stopping them")
    close_session()


def detach_meshes(notebook: Notebook, seconds: float) -> str:
    """Detach the meshes of this notebook; return the name of their run."""

    def detach_session(session: Session) -> str:
        detach(session, seconds, lambda session: save_state(notebook, session))
        return session.run

    return leave_session(detach_session)


def print_detached_runs() -> None:
    """Print a remark if detached runs exist, since they are easily forgotten."""
    if text := remark():
        print(text)


class AttachedNotebook:
    """One notebook that attaches. `prepare` restores everything but variables, before any message is received."""

    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook
        self._saved = DetachedNotebook((), "", (), {})
        self.meshes: list[NotebookMesh] = []
        self.jobs: list[Job] = []
        self.bound: list[str] = []  # names of variables that were set
        self.lost: list[str] = []

    def prepare(self, session: AttachedSession) -> None:
        """Restore the meshes, and the cells that run on them."""
        if not session.part:
            return
        self._saved = pickle.loads(session.part)
        for saved in self._saved.meshes:
            mesh = _restore_mesh(saved, session)
            self._notebook.meshes.adopt(mesh, is_current=mesh.name == self._saved.default)
            self.meshes.append(mesh)
        if self._saved.detaches_for is not None:
            plan_to_detach(self._notebook, self._saved.detaches_for)
        _share_hosts(self.meshes)
        by_name = {mesh.name: mesh for mesh in self.meshes}
        self.jobs = [self._restore_job(job, session, by_name[job.mesh]) for job in self._saved.jobs]

    def _restore_job(self, saved: DetachedJob, session: AttachedSession, mesh: NotebookMesh) -> Job:
        transfers = None
        if saved.transfer is not None:
            names = self._notebook.shell.user_ns
            transfers = CellTransfers(mesh, saved.ranks, names, {}, saved.options.pull)
            transfers.resume(*pickle.loads(saved.transfer))
        cell = PreparedCell(
            *(session, mesh, mesh.procs.region.pick(saved.ranks), saved.options),
            publisher_for(self._notebook.shell),
            number=saved.cell,
            shown=saved.shown,
            transfers=transfers,
        )
        return self._notebook.jobs.resume(saved.number, cell, saved.progress)

    def bind(self) -> None:
        """Set the variables that name meshes and jobs, unless the user has other variables of these names."""
        for mesh in self.meshes:
            self._notebook.bind(mesh)
        for hosts in {id(mesh.hosts): mesh.hosts for mesh in self.meshes if mesh.hosts is not None}.values():
            watch_hosts(self._notebook, hosts)
        names = self._notebook.shell.user_ns
        self.bound = [mesh.name for mesh in self.meshes if isinstance(names.get(mesh.name), ProcMesh)]
        for job in self.jobs:
            if job.name and isinstance(names.get(job.name), Job | None):
                names[job.name] = job
                self.bound.append(job.name)
        for name in self._saved.variables.keys() - set(self.bound):
            self._bind(name, self._saved.variables[name])

    def _bind(self, name: str, pickled: bytes) -> None:
        names = self._notebook.shell.user_ns
        if names.get(name) is not None and not isinstance(names[name], HANDLES):
            self.lost.append(f"{name}, which is a variable of this notebook")
            return
        try:
            handle = _loaded(pickled)
            of = [mesh for mesh in self.meshes if isinstance(handle, ProcMesh) and mesh.procs.name == handle.name]
            # A slice of a notebook's mesh moves variables, too.
            names[name] = NotebookProcMesh(handle, of[0]) if of else handle
            self.bound.append(name)
        except Exception as error:  # any exception of the import of the user's module
            self.lost.append(f"{name} ({type(error).__name__}: {error})")


def _share_hosts(meshes: Sequence[NotebookMesh]) -> None:
    """Let meshes that were on the same hosts share these again."""
    known: dict[HostOwnership, MeshHosts] = {}
    for mesh in meshes:
        if mesh.hosts is not None:
            machines = mesh.procs.host_mesh
            mesh.hosts = known.setdefault(machines.ownership, mesh.hosts)
            mesh.hosts.machines = machines


def _restore_mesh(saved: DetachedMesh, session: AttachedSession) -> NotebookMesh:
    ledger = session.node.ledger

    def handle(key: str) -> Any:
        owned_mesh = ledger.get(key)
        assert owned_mesh is not None
        return owned_mesh.handle()

    known = {name: _loaded(pickled) for name, pickled in saved.known.items()}
    actors = {name: handle(key) for name, key in saved.actors.items()}
    return NotebookMesh(procs=handle(saved.procs), session=session, **actors, **known)
