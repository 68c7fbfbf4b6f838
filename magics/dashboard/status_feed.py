"""The feed of JupyterLab's side panel and status bar: the meshes of this notebook, over a comm that the page opens.

The page (`widgets/labextension`) opens a comm to the kernel of the notebook that it shows. The kernel sends the meshes
after each change; the page sends nothing more, so nothing waits for a running cell. Changes are reported by
`MeshRegistry.when_changed` and by the end of cells; an idle kernel does nothing.
"""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypedDict

if TYPE_CHECKING:  # circular: it has the dashboards
    from meshbook.magics.notebook import Notebook

TARGET: Final = "meshbook"  # of the comm; as in lab.js
SOON: Final = 0.1  # seconds, in which the deaths of many ranks become one message
MOST_PAGES: Final = 16  # a page that is loaded again opens another comm, and does not close the last one


class OpenData(TypedDict, total=False):
    """What a page sends as it opens the comm: whether it shows the dashboard of the current mesh."""

    dashboard: bool


class MeshHealth(TypedDict):
    """A mesh: the number of its ranks, of the dead ones, and of those that are stuck, or whose last cell failed."""

    name: str
    ranks: int
    dead: int
    failed: int


class MeshesMessage(TypedDict):
    """All meshes, the current one first. `model` is the widget model of its dashboard, or "" if the page shows none.

    `mode`: whether cells without a magic run on the mesh.
    """

    meshes: list[MeshHealth]
    model: str
    mode: bool


@dataclass(eq=False)
class _OpenPage:
    comm: Any
    shows_dashboard: bool
    received: MeshesMessage | None = None  # the last message


class StatusFeed:
    """The feed of one kernel, for any number of pages. Messages leave on the thread of the shell channel."""

    def __init__(self, notebook: Notebook, loop: Any) -> None:
        self._notebook = notebook
        self._loop = loop  # tornado's, of the shell channel's thread
        self._pages: deque[_OpenPage] = deque(maxlen=MOST_PAGES)
        self._is_due = False

    def install(self) -> None:
        """Accept the comms of pages."""
        shell = self._notebook.shell
        shell.kernel.comm_manager.register_target(TARGET, self._open)
        shell.events.register("post_run_cell", lambda info: self.send_soon())
        self._notebook.meshes.when_changed = self.send_soon

    def send_soon(self) -> None:
        """Send pages what has changed, in a moment; from any thread."""
        if self._pages and not self._is_due:
            self._is_due = True
            self._loop.add_callback(self._loop.call_later, SOON, self._send)

    def _open(self, comm: Any, message: dict[str, Any]) -> None:
        data: OpenData = message["content"]["data"]
        page = _OpenPage(comm, bool(data.get("dashboard")))
        self._pages.append(page)
        comm.on_close(lambda closed: self._forget(page))
        self.send_soon()

    def _forget(self, page: _OpenPage) -> None:
        with contextlib.suppress(ValueError):  # displaced by newer pages
            self._pages.remove(page)

    def _send(self) -> None:
        self._is_due = False  # first: a change from here on is sent by the next call
        meshes = self._health()
        for page in list(self._pages):
            is_shown = bool(meshes) and page.shows_dashboard
            model = self._notebook.dashboards.open(meshes[0]["name"]).model_id if is_shown else ""
            message: MeshesMessage = {"meshes": meshes, "model": model, "mode": self._notebook.mode.line is not None}
            if page.received != message:
                page.received = message
                page.comm.send(message)

    def _health(self) -> list[MeshHealth]:
        meshes = self._notebook.meshes
        current = meshes.get() if len(meshes) else None
        in_order = sorted(meshes, key=lambda mesh: mesh is not current)
        return [
            {
                "name": mesh.name,
                "ranks": mesh.extent.nelements,
                "dead": len(mesh.dead),
                "failed": len((mesh.failed | mesh.stuck).difference(mesh.dead)),
            }
            for mesh in in_order
        ]
