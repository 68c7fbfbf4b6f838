"""The dashboard of a mesh as a widget: a window on a `Conversation`. All that is shown travels as custom messages."""

from __future__ import annotations

from typing import Any

import anywidget

from meshbook.widgets.assets import script, style
from meshbook.widgets.board import Board
from meshbook.widgets.channel import Channel
from meshbook.widgets.conversation import Conversation
from meshbook.widgets.snapshot import at_rest, snapshot_html, snapshot_text

PROTOCOL_VERSION = "2.1.0"  # of Jupyter's widgets


class MeshDashboard(anywidget.AnyWidget):
    """The live dashboard of a mesh; it may be shown in several places at once.

    In a notebook that is shown without its kernel it is a picture of the moment in which it was put up there.
    """

    def __init__(self, board: Board) -> None:
        self._esm = script()
        self._css = style()
        self._board = board
        self._is_open = False
        self._conversation = Conversation(board, self.send)
        super().__init__()
        self.on_msg(lambda widget, content, buffers: self._conversation.receive(content))

    def open(self) -> None:
        """Make the widget known to front ends, by a comm that can be used beside a running cell."""
        if not self._is_open:
            self._is_open = True
            data = {"state": self.get_state(), "buffer_paths": []}  # its traits are the script and the style: text
            self.comm = Channel(target_name="jupyter.widget", data=data, metadata={"version": PROTOCOL_VERSION})
            self.comm.on_close(lambda message: self.close())  # by a front end: whoever asks next gets another one

    def wake(self) -> None:
        """Something has happened to the mesh."""
        self._conversation.wake()

    def end(self) -> None:
        """Stop looking at the mesh; what is shown stays as it is."""
        self._conversation.close()

    def close(self) -> None:
        """Take it down in all places where it is shown, and stop looking at the mesh."""
        self._conversation.close()
        super().close()

    def _repr_mimebundle_(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The widget, and beside it a picture of this moment for where no widget is shown."""
        look = at_rest(self._board.source.look())
        widget, metadata = super()._repr_mimebundle_(**options) or ({}, {})
        return widget | {"text/plain": snapshot_text(look), "text/html": snapshot_html(look)}, metadata
