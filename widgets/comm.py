"""The comm of a dashboard: it speaks from a thread of its own, and hears while a cell runs.

A comm of ipykernel's publishes under the parent that was set last, which may be a cell's, and tells IPython's events of
each message as if a cell had run. Both would reach into the cell that runs beside it.
"""

from __future__ import annotations

import threading
from collections import deque
from contextvars import ContextVar
from typing import Any

from ipykernel.comm.comm import BaseComm
from ipykernel.kernelbase import Kernel

# The message that is handled here: front ends that ask for a widget's state look for the answer by it.
_HANDLED: ContextVar[dict[str, Any] | None] = ContextVar("meshbook_comm_message", default=None)


class DashboardComm(BaseComm):
    """Of one widget. What it sends belongs to no cell."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self._heard: deque[Any] = deque()  # what was handed on before its turn
        self._lock = threading.Lock()  # guards it: turns come on the main thread, and on those of subshells
        super().__init__(*arguments, **keywords)

    def _reply_subshell_for(self, data: Any, default: Any) -> Any:
        """ipykernel asks this of a comm where it receives a message for it, also while sync code runs.

        What a view says is handed on there: in its turn it would have to wait for the cell. MeshKernel has a way of its
        own, and a version of ipykernel that asks nothing has the turn.
        """
        if isinstance(data, dict) and data.get("method") == "custom":
            with self._lock:
                self._heard.append(data)
            self._hand_on({"content": {"data": data}, "buffers": []})
        return default

    def handle_msg(self, msg: dict[str, Any]) -> None:
        """Hand on what a front end has sent, unless that was done before; from any thread."""
        if not self._was_heard(msg["content"].get("data")):
            self._hand_on(msg)

    def _was_heard(self, data: Any) -> bool:
        """Whether this was handed on before its turn. What was heard before it and had no turn will have none."""
        with self._lock:
            if data not in self._heard:
                return False
            while self._heard.popleft() != data:
                pass
            return True

    def _hand_on(self, msg: dict[str, Any]) -> None:
        token = _HANDLED.set(msg if "header" in msg else None)
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
        # Not the cell's, nor where it is opened: what runs notebooks without a front end would save the widget with the
        # notebook, its script included, and that would be shown in the place of the picture.
        parent = _HANDLED.get()
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
