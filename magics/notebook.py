"""The context that cells and verbs share: the shell, its meshes and its session."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from meshbook.magics.cells.background import BackgroundLoop
from meshbook.magics.cells.execution import CellExecution
from meshbook.magics.cells.jobs import Jobs
from meshbook.magics.cells.maps import show_progress
from meshbook.magics.dashboard import DashboardRegistry
from meshbook.magics.errors import VariableError
from meshbook.magics.meshes.registry import MeshRegistry, NotebookMesh
from meshbook.magics.output.actor_output import ActorOutputRouter
from meshbook.magics.syntax.argparsing import suggestion
from meshbook.magics.syntax.mode import MeshMode
from meshbook.magics.syntax.settings import NotebookSettings
from meshbook.magics.tracing.collect import CellTimes
from meshbook.magics.tracing.profiler import ProfilerState
from meshbook.magics.variables.mesh_handle import NotebookProcMesh
from meshbook.runtime.hosts.session import Session, current_session
from meshbook.runtime.mesh.procs import ProcMesh

if TYPE_CHECKING:  # it imports the verbs, which import this module
    from meshbook.magics.introspection.completer import NotebookCompleter
    from meshbook.magics.introspection.inspector import Inspector
    from meshbook.magics.verbs.start_stop import UpVerb


@dataclass(eq=False, repr=False)
class Notebook:
    """The context of an IPython shell that has loaded the extension; `extension.load` composes it."""

    shell: Any
    meshes: MeshRegistry
    screen: ActorOutputRouter
    cell_times: CellTimes
    profiling: ProfilerState
    mode: MeshMode
    settings: NotebookSettings
    background: BackgroundLoop
    jobs: Jobs
    foreground_cells: list[CellExecution] = field(default_factory=list)  # cells that this notebook waits for
    fixed_meshes: dict[str, UpVerb] = field(default_factory=dict)  # by name, from `%mesh up --fixed`
    detaches_for: float | None = None  # seconds, at the end of this process; None: it ends its meshes
    # These parts refer to the notebook, so they are set once it exists.
    dashboards: DashboardRegistry = field(init=False)
    completion: NotebookCompleter = field(init=False)
    inspection: Inspector = field(init=False)  # only in a kernel

    def session(self) -> Session:
        """The session. The first call starts it."""
        session = current_session()
        session.forwarder.screen = self.screen
        session.node.on_map = functools.partial(show_progress, self.shell)
        return session

    def bind(self, mesh: NotebookMesh) -> None:
        """Set the process mesh under its name, for actors, unless the user has another variable of that name."""
        known = self.shell.user_ns.get(mesh.name)
        if known is None or isinstance(known, ProcMesh):
            self.shell.user_ns[mesh.name] = NotebookProcMesh(mesh.procs, mesh)

    def runs_on(self, mesh: NotebookMesh) -> list[CellExecution]:
        """Return the running cells on this mesh: those that block the notebook, then the others."""
        beside = [running.run for running in list(self.background.running)]
        return [run for run in (*self.foreground_cells, *beside) if run.mesh is mesh]

    def values_of(self, names: Iterable[str]) -> dict[str, Any]:
        """Return variables of the notebook. VariableError if one does not exist."""
        known = self.shell.user_ns
        if missing := [name for name in names if name not in known]:
            raise VariableError(f"{missing[0]} is not defined in the notebook{suggestion(missing[0], known)}")
        return {name: known[name] for name in names}

    @property
    def cell_number(self) -> int:
        """The number of the cell that runs."""
        # The shell's own counter may already be that of the next cell; this differs between versions of IPython.
        running = getattr(self.shell.displayhook, "exec_result", None)
        return int(getattr(running, "execution_count", None) or self.shell.execution_count)
