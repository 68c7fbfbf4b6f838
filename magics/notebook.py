"""The context that cells and verbs share: the shell, its meshes and its session."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from meshbook.magics.cells.background import BackgroundLoop
from meshbook.magics.cells.execution import CellExecution
from meshbook.magics.cells.jobs import Jobs
from meshbook.magics.cells.maps import show_progress
from meshbook.magics.dashboard.registry import DashboardRegistry
from meshbook.magics.errors import SelectionError, VariableError
from meshbook.magics.meshes.registry import Meshes, NotebookMesh
from meshbook.magics.output.actor_output import ActorOutputRouter
from meshbook.magics.syntax.argparsing import suggestion
from meshbook.magics.syntax.mode import MeshMode
from meshbook.magics.syntax.selectors import SelectedRegion, parse, resolve
from meshbook.magics.syntax.settings import NotebookSettings
from meshbook.magics.tracing.collect import CellTimes
from meshbook.magics.tracing.profiler import ProfilerState
from meshbook.magics.variables.mesh_handle import NotebookProcMesh
from meshbook.runtime.hosts.session import Session, current_session
from meshbook.runtime.mesh.procs import ProcMesh

if TYPE_CHECKING:  # it imports the verbs, which import this module
    from meshbook.magics.introspection.completer import NotebookCompleter
    from meshbook.magics.introspection.inspector import Inspector


class Notebook:
    """The context of an IPython shell that has loaded the extension."""

    # For front ends; set when installed.
    completion: NotebookCompleter
    inspection: Inspector  # only in a kernel

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.meshes = Meshes()
        self.dashboards = DashboardRegistry(self)
        self.meshes.open_dashboard = self.dashboards.open
        self.screen = ActorOutputRouter()
        self.cell_times = CellTimes()
        self.profiling = ProfilerState()
        self.mode = MeshMode(shell)
        self.settings = NotebookSettings()
        self.background = BackgroundLoop()
        self.jobs = Jobs(self.background)
        self.waits_for: list[CellExecution] = []  # cells that this notebook waits for
        self.detaches_for: float | None = None  # seconds, at the end of this process; None: it ends its meshes

    def warm_up(self) -> None:
        """Start the session in the background, so that the fork server is warm at the first `%%mesh`."""
        threading.Thread(target=self.session, name="meshbook warm-up", daemon=True).start()

    def session(self) -> Session:
        """The session. The first call starts it."""
        session = current_session()
        session.forwarder.screen = self.screen
        session.node.on_map = functools.partial(show_progress, self.shell)
        return session

    def select(self, selector: str) -> tuple[NotebookMesh, SelectedRegion]:
        """Return the ranks that a selector selects, as a region of their mesh."""
        return self.meshes.select(selector)

    def ranks_of(self, selector: str) -> tuple[NotebookMesh, list[int]]:
        """Return the ranks that a selector selects, as numbers."""
        mesh, selected = self.select(selector)
        return mesh, list(selected.region.ranks())

    def selector_of(self, mesh: NotebookMesh) -> Callable[[str], tuple[int, ...]]:
        """Return a function that resolves selectors to ranks of this mesh, whichever mesh is the default."""

        def select(text: str) -> tuple[int, ...]:
            parsed = parse(text)
            if parsed.mesh not in (None, mesh.name):
                raise SelectionError(f"the selector must select ranks of {mesh.name}, not of {parsed.mesh}")
            return tuple(resolve(parsed, {mesh.name: mesh.procs.region}, mesh.name, mesh.last).region.ranks())

        return select

    def bind(self, mesh: NotebookMesh) -> None:
        """Set the process mesh under its name, for actors, unless the user has another variable of that name."""
        known = self.shell.user_ns.get(mesh.name)
        if known is None or isinstance(known, ProcMesh):
            self.shell.user_ns[mesh.name] = NotebookProcMesh(mesh.procs, mesh)

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
