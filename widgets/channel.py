"""The comm of a dashboard: it speaks from a thread of its own, and hears while a cell runs.

A comm of ipykernel's publishes under the parent that was set last, which may be a cell's, and tells IPython's events of
each message as if a cell had run. Both would reach into the cell that runs beside it.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from ipykernel.comm.comm import BaseComm
from ipykernel.kernelbase import Kernel

# The message that is handled here: front ends that ask for a widget's state look for the answer by it.
_HANDLED: ContextVar[dict[str, Any] | None] = ContextVar("meshbook_comm_message", default=None)


class Channel(BaseComm):
    """Of one widget. What it sends belongs to no cell."""

    def handle_msg(self, msg: dict[str, Any]) -> None:
        """Hand on what a front end has sent; from any thread."""
        token = _HANDLED.set(msg)
        try:
            if self._msg_callback is not None:
                self._msg_callback(msg)
        finally:
            _HANDLED.reset(token)

    def publish_msg(
        self,
        msg_type: str,
        data: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
        buffers: list[Any] | None = None,
        **keys: Any,
    ) -> None:
        """Send to all front ends; from any thread."""
        if not Kernel.initialized():
            return
        kernel = self.kernel = Kernel.instance()  # ipywidgets looks whether there is one
        # It is opened by the cell that makes the widget; nothing else that it says is of a cell.
        parent = kernel.get_parent("shell") if msg_type == "comm_open" else _HANDLED.get()
        content = {"data": data or {}, "comm_id": self.comm_id, **keys}
        kernel.session.send(
            kernel.iopub_socket,
            msg_type,
            content,
            metadata=metadata or {},
            parent=parent,
            ident=self.topic,
            buffers=buffers,
        )
