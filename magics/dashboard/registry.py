"""The dashboards of a notebook, one for each mesh that is looked at, wherever and how often that is shown."""

from __future__ import annotations

import atexit
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # it has these
    from meshbook.magics.notebook import Notebook


class DashboardRegistry:
    """By the names of meshes. They are kept: what is shown in the notebook lives as long as its kernel."""

    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook
        self._lock = threading.Lock()  # guards the dashboards
        self._by_name: dict[str, Any] = {}
        self._hears_of_cells = False

    def open(self, name: str) -> Any:
        """The dashboard of the mesh with this name: a widget; in IPython on a terminal a picture of the moment."""
        # Widgets and numpy take a quarter of a second to import, which nobody is to wait for who shows no dashboard.
        from meshbook.magics.dashboard.backend import NotebookBackend

        if getattr(self._notebook.shell, "kernel", None) is None:
            from meshbook.magics.dashboard.text_view import TextDashboard

            return TextDashboard(NotebookBackend(self._notebook, name))
        from meshbook.widgets.dashboard import MeshDashboard

        with self._lock:
            known = self._by_name.get(name)
            if known is None or known.comm is None:  # it was closed by hand
                known = self._by_name[name] = MeshDashboard(NotebookBackend(self._notebook, name))
                self._hear_of_cells()
            return known

    def _hear_of_cells(self) -> None:
        """That a cell begins or ends is seen at once, and not at the next look."""
        if not self._hears_of_cells:
            self._hears_of_cells = True
            atexit.register(self.close)  # a thread that still speaks would find the kernel's sockets closed
            for moment in ("pre_run_cell", "post_run_cell"):
                self._notebook.shell.events.register(moment, self._wake)

    def _wake(self, told: Any = None) -> None:
        for dashboard in list(self._by_name.values()):
            dashboard.wake()

    def close(self) -> None:
        """The notebook ends: say nothing more."""
        with self._lock:
            dashboards = list(self._by_name.values())
        for dashboard in dashboards:
            dashboard.end()
