"""The dashboards of a notebook: their contents, and the actions of their buttons.

There is one dashboard per mesh name (`DashboardRegistry`), in any number of views; a mesh that is started again appears
in the same one. `notebook_source` supplies the numbers, from the session's `History` and from the notebook. Buttons act
like the verbs of `%mesh` (`actions`), on their own threads. Interrupt sends SIGINT to this process if a cell blocks the
notebook, so it acts like Ctrl-C.
"""

from __future__ import annotations

import atexit
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # circular: it has these
    from meshbook.magics.notebook import Notebook


class DashboardRegistry:
    """The dashboards by mesh name. They are kept: outputs in the notebook last as long as its kernel."""

    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook
        self._lock = threading.Lock()  # guards the dashboards
        self._by_name: dict[str, Any] = {}
        self._watches_cells = False

    def open(self, name: str) -> Any:
        """Return the dashboard of a mesh: a widget; in IPython on a terminal a snapshot."""
        # Widgets and numpy take a quarter of a second to import, so only a shown dashboard imports them.
        from meshbook.magics.dashboard.backend import NotebookBackend

        if getattr(self._notebook.shell, "kernel", None) is None:
            from meshbook.magics.dashboard.backend import TextDashboard

            return TextDashboard(NotebookBackend(self._notebook, name))
        from meshbook.widgets.dashboard import MeshDashboard

        with self._lock:
            known = self._by_name.get(name)
            if known is None or known.comm is None:  # the user closed it
                known = self._by_name[name] = MeshDashboard(NotebookBackend(self._notebook, name))
                self._watch_cells()
            return known

    def _watch_cells(self) -> None:
        """Update at once when a cell begins or ends, not at the next poll."""
        if not self._watches_cells:
            self._watches_cells = True
            atexit.register(self.close)  # otherwise a running thread would find the kernel's sockets closed
            for moment in ("pre_run_cell", "post_run_cell"):
                self._notebook.shell.events.register(moment, self._wake)

    def _wake(self, info: Any = None) -> None:
        for dashboard in list(self._by_name.values()):
            dashboard.wake()

    def close(self) -> None:
        """Stop all updates because the notebook ends."""
        with self._lock:
            dashboards = list(self._by_name.values())
        for dashboard in dashboards:
            dashboard.end()
