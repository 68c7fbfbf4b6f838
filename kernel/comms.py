"""Which messages of widgets are handled beside the main thread: those of dashboards, and of a page that comes back.

Of a widget of the user's none is, since its callbacks expect the main thread. But a page that is loaded anew while a
cell runs asks for the state of all widgets at once, and shows none until it has that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from meshbook.widgets.comm import DashboardComm

CONTROL = "jupyter.widget.control"  # the target of the comm by which a page asks for all widgets
KINDS = frozenset({"comm_open", "comm_msg"})
Handle: TypeAlias = Callable[[dict[str, Any]], object]


def handler_of(manager: Any, kind: str, content: dict[str, Any], *, is_busy: bool) -> Handle | None:
    """What handles this message on the thread that receives it; None for one of the main thread's."""
    if kind == "comm_open":
        return _open_with(manager) if is_busy and content.get("target_name") == CONTROL else None
    comm = manager.comms.get(str(content.get("comm_id")))
    if isinstance(comm, DashboardComm):
        # Always, so that they stay in order: all that is done there is to note them.
        return comm.handle_msg if _is_said_by_a_view(content) else None
    return _without_events(comm) if is_busy and getattr(comm, "target_name", "") == CONTROL else None


def _is_said_by_a_view(content: dict[str, Any]) -> bool:
    data = content.get("data")
    return isinstance(data, dict) and data.get("method") in ("custom", "request_state")


def _open_with(manager: Any) -> Handle:
    return lambda message: manager.comm_open(None, None, message)


def _without_events(comm: Any) -> Handle:
    """IPython's events would be told that a cell has run, while one does."""
    return lambda message: comm._msg_callback and comm._msg_callback(message)
