"""The backend of a dashboard for a notebook's mesh: its data, and the requests of its views.

`TextDashboard` shows a snapshot of it as text, on terminals without widgets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from meshbook.magics.dashboard.actions import DashboardActions
from meshbook.magics.dashboard.notebook_source import NotebookSource
from meshbook.magics.errors import MeshError
from meshbook.magics.meshes.lifecycle import wait_for
from meshbook.magics.meshes.registry import NotebookMesh
from meshbook.magics.tracing.timeline_json import take_timeline
from meshbook.runtime.actor.context import CURRENT, Context
from meshbook.runtime.hosts.session import Session
from meshbook.widgets.curve_charts import answer_curves
from meshbook.widgets.curve_picture import curves_picture
from meshbook.widgets.sections import answer_logs
from meshbook.widgets.snapshot import at_rest, snapshot_text
from meshbook.widgets.source import BackendReply, DashboardBackend

if TYPE_CHECKING:
    from meshbook.magics.notebook import Notebook


class NotebookBackend:
    """The backend for the mesh with this name (`meshbook.widgets.source.DashboardBackend`)."""

    def __init__(self, notebook: Notebook, name: str) -> None:
        self._notebook = notebook
        self._name = name
        self.source = NotebookSource(notebook, name)
        self._actions = DashboardActions(notebook, self.source)
        self._lock = threading.Lock()  # guards the following: any thread may see a new mesh first
        self._wake: Callable[[], object] | None = None
        self._watched: Session | None = None
        self._unwatch: Callable[[], None] = lambda: None
        self.source.when_new = self._follow

    def select(self, selector: str) -> tuple[int, ...]:
        """Return the ranks of a selector within this mesh, even if another mesh is the current one."""
        return self._mesh().resolve(selector)

    def watch(self, wake: Callable[[], object] | None) -> None:
        """Let the hosts measure more often while a view is open; `wake` is called at once for deaths and heals."""
        self._wake = wake
        self._follow()

    def _follow(self) -> None:
        """Watch the present session of the mesh."""
        with self._lock:
            mesh, wake = self.source.mesh, self._wake
            session = None if mesh is None or wake is None else mesh.session
            if session is self._watched:
                return
            self._unwatch()
            self._watched, self._unwatch = session, lambda: None
            if session is not None and wake is not None:
                self._unwatch = watch_session(session, wake)

    def answer(self, request: Mapping[str, Any]) -> BackendReply:
        """Answer a request, on the request's own thread; there the notebook's client sends the calls."""
        if request.get("kind") == "curves" and (curves := self.source.curves) is not None:
            chosen = frozenset(self.select(str(request["sel"]))) if request.get("sel") else None
            return answer_curves(curves, chosen, request)
        mesh = self._mesh()
        CURRENT.set(Context(mesh.session.context.actor_instance))
        selector = str(request.get("sel") or "").strip()
        match request.get("kind"):
            case "act":
                return self._actions.do(str(request.get("action")), mesh, selector, request.get("cell"))
            case "logs":
                nodes = {mesh.procs.nodes[rank].node: rank for rank in mesh.resolve(selector or "all")}
                return BackendReply(answer_logs(mesh.session.output.logbook, nodes, request))
            case _:
                cell = request.get("cell")
                number = None if cell is None else int(cell)
                return BackendReply(wait_for(take_timeline(self._notebook, mesh, number)))

    def _mesh(self) -> NotebookMesh:
        mesh = self.source.mesh
        if mesh is None:
            raise MeshError(f"mesh {self._name} is down; start it with %mesh up --name {self._name}")
        return mesh


def watch_session(session: Session, wake: Callable[[], object]) -> Callable[[], None]:
    """Watch the measurements and events of a session closely; return the function that ends this."""

    def on_event(report: Any) -> None:
        wake()

    sources: tuple[list[Any], ...] = (
        session.node.peers.when_down,
        session.node.peers.when_restarted,
        session.events.when_added,
    )
    for listeners in sources:
        listeners.append(on_event)
    session.watch(True)

    def end() -> None:
        session.watch(False)
        for listeners in sources:
            listeners.remove(on_event)

    return end


class TextDashboard:
    """A dashboard that takes a new snapshot each time it is displayed."""

    def __init__(self, board: DashboardBackend, metrics: Sequence[str] | None = None) -> None:
        self._board = board
        self._metrics = metrics  # to show as curves; None: the mesh

    def __repr__(self) -> str:
        source = self._board.source
        snapshot = source.snapshot()
        if self._metrics is None:
            return snapshot_text(at_rest(snapshot))
        return curves_picture(source.curves, self._metrics).text

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"text/plain": repr(self)}, {}

    def outputs(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Return the outputs to display, as data and metadata."""
        return [self._repr_mimebundle_()]
