"""The comm of a dashboard: it sends from a thread of its own, and receives while a cell runs.

ipykernel's comm publishes under the parent that was set last, which may be a cell's. For each message it also fires
IPython's events as if a cell had run. Both would disturb the cell that runs at the same time.
"""

from __future__ import annotations

import threading
from collections import deque
from contextvars import ContextVar
from typing import Any

from ipykernel.comm.comm import BaseComm
from ipykernel.kernelbase import Kernel

# The message that is being handled. Front ends that request a widget's state find the reply by this parent.
_HANDLED: ContextVar[dict[str, Any] | None] = ContextVar("meshbook_comm_message", default=None)


class DashboardComm(BaseComm):
    """The comm of one widget. Its messages have no cell as their parent, except for replies to a state request."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self._handled_early: deque[Any] = deque()  # messages that were handed on as soon as they arrived
        # guards _handled_early: messages are handled on the main thread and on those of subshells
        self._lock = threading.Lock()
        super().__init__(*arguments, **keywords)

    def _reply_subshell_for(self, data: Any, default: Any) -> Any:
        """Hand on a view's message as soon as it arrives, and return the default.

        ipykernel calls this for a comm on receipt of a message, also while sync code runs. Handled in its turn, the
        message would wait for the cell. MeshKernel has its own mechanism; in versions of ipykernel without this call
        the message waits for its turn.
        """
        if isinstance(data, dict) and data.get("method") == "custom":
            with self._lock:
                self._handled_early.append(data)
            self._dispatch({"content": {"data": data}, "buffers": []})
        return default

    def handle_msg(self, msg: dict[str, Any]) -> None:
        """Hand on a message of a front end, unless that was done on receipt; from any thread."""
        data = msg["content"].get("data")
        with self._lock:
            was_handled = data in self._handled_early
            # Earlier entries are dropped: their messages were skipped and will not come.
            while was_handled and self._handled_early.popleft() != data:
                pass
        if not was_handled:
            self._dispatch(msg)

    def _dispatch(self, msg: dict[str, Any]) -> None:
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
        kernel = self.kernel = Kernel.instance()  # ipywidgets checks that a kernel is set
        # Neither the cell's parent nor that of opening: nbconvert and other runners without a front end would save the
        # widget with the notebook, its script included, and show it in place of the picture.
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
