"""The dashboards of a notebook: their contents, and the actions of their buttons.

There is one dashboard per mesh name (`DashboardRegistry`), and one for each choice of metrics whose curves are shown
alone, in any number of views. A mesh that is started again appears in the same ones. `notebook_source` supplies the
numbers, from the session's `History` and from the notebook. Buttons act like the verbs of `%mesh` (`actions`), on their
own threads. Interrupt sends SIGINT to this process and its children if a cell blocks the notebook, as Ctrl-C does.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # circular: it has these
    from meshbook.magics.notebook import Notebook


class DashboardRegistry:
    """The dashboards and charts of meshes. They are kept: outputs in the notebook last as long as its kernel."""

    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook
        self._lock = threading.Lock()  # guards the dashboards
        # by mesh name, and the patterns of metrics if it shows curves alone
        self._views: dict[tuple[str, tuple[str, ...] | None], Any] = {}
        self._watches_cells = False

    def open(self, name: str) -> Any:
        """Return the dashboard of a mesh: a widget; in IPython on a terminal a snapshot."""
        return self._open(name, None)

    def open_curves(self, name: str, metrics: Sequence[str]) -> Any:
        """Return the charts of these metrics of a mesh, by patterns, like `open`; without patterns, of all."""
        return self._open(name, tuple(metrics))

    def _open(self, name: str, metrics: tuple[str, ...] | None) -> Any:
        # Widgets and numpy take a quarter of a second to import, so only a shown dashboard imports them.
        from meshbook.magics.dashboard.backend import NotebookBackend

        if getattr(self._notebook.shell, "kernel", None) is None:
            from meshbook.magics.dashboard.backend import TextDashboard

            return TextDashboard(NotebookBackend(self._notebook, name), metrics)
        from meshbook.widgets.dashboard import MeshDashboard

        with self._lock:
            known = self._views.get((name, metrics))
            if known is None or known.comm is None:  # the user closed it
                known = self._views[name, metrics] = MeshDashboard(NotebookBackend(self._notebook, name), metrics)
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
        for dashboard in list(self._views.values()):
            dashboard.wake()

    def close(self) -> None:
        """Stop all updates because the notebook ends."""
        with self._lock:
            dashboards = list(self._views.values())
        for dashboard in dashboards:
            dashboard.end()
