"""The dashboard of a mesh as a widget, a view of a `DashboardServer`. All state travels as custom messages."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

import anywidget
import traitlets
from IPython.display import publish_display_data

from meshbook.widgets.assets import script, style
from meshbook.widgets.comm import DashboardComm
from meshbook.widgets.curve_picture import curves_picture
from meshbook.widgets.server import DashboardServer
from meshbook.widgets.snapshot import at_rest, picture_data, snapshot_picture
from meshbook.widgets.source import DashboardBackend

PROTOCOL_VERSION = "2.1.0"  # of Jupyter's widgets


class MeshDashboard(anywidget.AnyWidget):
    """The live dashboard of a mesh, or with `metrics` its curves; it may be shown in several places at once.

    A second output beside it has a picture of the mesh, which shows where the widget is not live: in a reopened
    notebook, and on web pages. Front ends renew the picture when they save the notebook.
    """

    picture_id = traitlets.Unicode().tag(sync=True)  # front ends find the outputs with its picture by this id
    # None, or patterns of the metrics whose charts are all that it shows
    metrics = traitlets.List(traitlets.Unicode(), None, allow_none=True).tag(sync=True)

    def __init__(self, backend: DashboardBackend, metrics: Sequence[str] | None = None) -> None:
        self._esm = script()
        self._css = style()
        self._backend = backend
        self._is_open = False
        self._server = DashboardServer(backend, self.send, self._picture)
        super().__init__(picture_id=uuid.uuid4().hex, metrics=None if metrics is None else list(metrics))
        self.on_msg(lambda widget, content, buffers: self._server.receive(content))

    def open(self) -> None:
        """Register the widget with front ends, by a comm that works while a cell runs."""
        if not self._is_open:
            self._is_open = True
            data = {"state": self.get_state(), "buffer_paths": []}  # its traits are the script and the style: text
            self.comm = DashboardComm(target_name="jupyter.widget", data=data, metadata={"version": PROTOCOL_VERSION})
            # closed by a front end: the next request makes a new dashboard
            self.comm.on_close(lambda message: self.close())

    def wake(self) -> None:
        """Report an event on the mesh to the server; from any thread."""
        self._server.wake()

    def end(self) -> None:
        """Stop watching the mesh; the views stay as they are."""
        self._server.close()

    def close(self) -> None:
        """Close all views, and stop watching the mesh."""
        self._server.close()
        super().close()

    def outputs(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Return the outputs that show it, as data and metadata: the widget, then a picture of this moment."""
        return [self._repr_mimebundle_(), (self._picture(), {"meshbook": {"picture_id": self.picture_id}})]

    def _ipython_display_(self) -> None:
        for data, metadata in self.outputs():
            publish_display_data(data, metadata)

    def _repr_mimebundle_(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        widget, metadata = super()._repr_mimebundle_(**options) or ({}, {})
        what = "Dashboard" if self.metrics is None else "Curves"
        return widget | {"text/plain": f"{what} of {self._backend.source.snapshot().mesh.name}"}, metadata

    def _picture(self) -> dict[str, str]:
        source = self._backend.source
        if self.metrics is not None:
            picture = curves_picture(source.curves, self.metrics)
        else:
            picture = snapshot_picture(at_rest(source.snapshot()))
        return picture_data(picture, self.picture_id, time.strftime("%Y-%m-%d %H:%M:%S"))
