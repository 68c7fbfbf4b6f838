"""Which widget messages are handled off the main thread: those of dashboards, and of a page that is reloaded.

Messages of the user's own widgets are not, since their callbacks expect the main thread. But a page that is reloaded
while a cell runs requests the state of all widgets at once, and shows none until it has that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from meshbook.widgets.comm import DashboardComm

CONTROL = "jupyter.widget.control"  # the target of the comm by which a page requests all widgets
KINDS = frozenset({"comm_open", "comm_msg"})
Handle: TypeAlias = Callable[[dict[str, Any]], object]


def handler_of(manager: Any, kind: str, content: dict[str, Any], *, is_busy: bool) -> Handle | None:
    """Return the handler for this message on the receiving thread; None if the main thread must handle it."""
    if kind == "comm_open":
        return _open_with(manager) if is_busy and content.get("target_name") == CONTROL else None
    comm = manager.comms.get(str(content.get("comm_id")))
    if isinstance(comm, DashboardComm):
        # Always, also without a running cell, so that they stay in order; handling one only queues it.
        return comm.handle_msg if _is_said_by_a_view(content) else None
    return _without_events(comm) if is_busy and getattr(comm, "target_name", "") == CONTROL else None


def _is_said_by_a_view(content: dict[str, Any]) -> bool:
    data = content.get("data")
    return isinstance(data, dict) and data.get("method") in ("custom", "request_state")


def _open_with(manager: Any) -> Handle:
    return lambda message: manager.comm_open(None, None, message)


def _without_events(comm: Any) -> Handle:
    """Skip IPython's events, which would report an executed cell while one still runs."""
    return lambda message: comm._msg_callback and comm._msg_callback(message)
