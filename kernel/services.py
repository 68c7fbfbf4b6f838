"""Requests that the kernel answers while a cell runs: completion, inspection, history, comms, kernel info.

ipykernel hands each request to the main thread, where it waits for the running cell. Here the thread of the shell
channel inspects each message, and while cells run it answers such a request on a thread of its own. That thread never
sets the parent header, so the cell's output stays the cell's.

`is_complete_request` is not among them: for it IPython changes the warnings filters of the process, which the cell
uses.

Widget messages of dashboards are handled here, and those of a page that is reloaded: while a cell runs, it requests the
state of all widgets at once, and shows none until it has that. JupyterLab's status bar requests the meshes likewise.
Other messages of the user's widgets wait, since their callbacks expect the main thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeAlias

from ipykernel.jsonutil import json_clean

from meshbook.magics.dashboard.status_feed import TARGET
from meshbook.magics.introspection.completer import NotebookCompleter, reply_of
from meshbook.magics.introspection.inspector import Inspector
from meshbook.runtime.threads import BackgroundThreads
from meshbook.widgets.comm import DashboardComm

CONTROL = "jupyter.widget.control"  # the target of the comm by which a page requests all widgets
COMM_KINDS = frozenset({"comm_open", "comm_msg"})
Handle: TypeAlias = Callable[[dict[str, Any]], object]
WITHIN = 1.0  # seconds; then the reply is empty, since an object of the user's hangs


class Services:
    """The requests of one kernel that do not wait for the running cell.

    `take` and `end` see each message of the shell channel, before and after the main thread. The channel's thread sends
    all messages to front ends; only computing an answer has a thread of its own.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._threads = BackgroundThreads("request", most=8)
        # Cells handed to the main thread, and cells that it has finished. Only one thread writes each counter.
        self._started_cells = 0
        self._ended_cells = 0
        self._status_lock = threading.Lock()  # guards _handled, and the order of status messages
        self._handled: dict[int, dict[str, Any]] = {}  # by thread: the request that it handles
        self._answers: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "complete_request": self._complete,
            "inspect_request": self._inspect,
            "history_request": lambda content: dict(kernel.do_history(**content)),
            "kernel_info_request": lambda content: {"status": "ok", **kernel.kernel_info},
            "comm_info_request": self._comms,
        }

    def take(self, message: list[Any]) -> bool:
        """Return whether this message is answered here; on the thread of the shell channel."""
        header = self._header_of(message)
        kind = header.get("msg_type", "")
        if header.get("subshell_id"):
            return False
        if kind == "execute_request":
            self._started_cells += 1
            return False
        if kind in COMM_KINDS:
            return self._take_comm(kind, message)
        if kind not in self._answers or not self._runs_cells:
            return False
        self._serve(message)
        return True

    @property
    def _runs_cells(self) -> bool:
        return self._started_cells > self._ended_cells

    def end(self, message: list[Any]) -> None:
        """Note that the main thread has finished this message."""
        if b'"execute_request"' in self._header(message):  # not parsed as JSON: each cell waits for this
            self._ended_cells += 1

    def publish_status(self, status: str, parent: dict[str, Any]) -> None:
        """Publish the state of the calling thread, which handles or has handled the request `parent`."""
        with self._status_lock:
            if status == "busy":
                self._handled[threading.get_ident()] = parent
            else:
                self._handled.pop(threading.get_ident(), None)
            self._publish(status, parent)
            self._restore_busy(status)

    def _restore_busy(self, status: str) -> None:
        """Publish "busy" again after "idle" if a cell or another request is handled.

        Front ends and servers take the last state that they received for that of the kernel. A server that culls idle
        kernels would end this one within its cell.
        """
        if status == "idle" and self._handled:
            self._publish("busy", next(iter(self._handled.values())))

    def _header_of(self, message: list[Any]) -> dict[str, Any]:
        try:
            found = self._kernel.session.unpack(self._header(message))
        except ValueError:  # no valid Jupyter message; ipykernel reports it
            return {}
        return found if isinstance(found, dict) else {}

    def _header(self, message: list[Any]) -> bytes:
        # Only peek: a message can be deserialized only once.
        try:
            header: bytes = self._kernel.session.feed_identities(message, copy=False)[1][1].bytes
        except (ValueError, IndexError):
            return b""
        return header

    def _take_comm(self, kind: str, message: list[Any]) -> bool:
        """Handle a comm message here, with busy and idle, which ipykernel does not send for one beside a cell."""
        content = self._content(message)
        handle = comm_handler(self._kernel.comm_manager, kind, content, is_busy=self._runs_cells)
        if handle is None:
            return False
        if (read := self._read(message)) is not None:
            self._publish("busy", read[0])
            try:
                handle(read[0])
            except Exception:
                self._kernel.log.exception("cannot handle a %s while a cell runs", kind)
            self._end_request(read[0])
        return True

    def _content(self, message: list[Any]) -> dict[str, Any]:
        try:
            found = self._kernel.session.unpack(self._kernel.session.feed_identities(message, copy=False)[1][4].bytes)
        except (ValueError, IndexError):
            return {}
        return found if isinstance(found, dict) else {}

    def _read(self, message: list[Any]) -> tuple[dict[str, Any], list[bytes]] | None:
        """Return the message and the identities of its sender."""
        session = self._kernel.session
        identities, frames = session.feed_identities(message, copy=False)
        try:
            return session.deserialize(frames, copy=False), identities
        except (ValueError, TypeError):  # a wrong signature, or truncated
            self._kernel.log.exception("invalid message")
            return None

    def _serve(self, message: list[Any]) -> None:
        if (read := self._read(message)) is None:
            return
        request, identities = read
        self._publish("busy", request)
        name = "meshbook request"
        thread = threading.Thread(target=self._compute_reply, args=(request, identities), name=name, daemon=True)
        thread.pydev_do_not_trace = True  # type: ignore[attr-defined]  # a debugger stops all other threads
        thread.start()

    def _reply(self, request: dict[str, Any], identities: list[bytes], content: dict[str, Any]) -> None:
        kernel = self._kernel
        kind = request["header"]["msg_type"].replace("request", "reply")
        kernel.session.send(kernel.shell_stream, kind, content, request, identities)
        self._end_request(request)

    def _end_request(self, request: dict[str, Any]) -> None:
        with self._status_lock:
            self._publish("idle", request)
            self._restore_busy("idle")

    def _publish(self, status: str, parent: dict[str, Any]) -> None:
        kernel = self._kernel
        content = {"execution_state": status}
        kernel.session.send(kernel.iopub_socket, "status", content, parent=parent, ident=kernel._topic("status"))

    # -- on a thread per request -------------------------------------------------

    def _compute_reply(self, request: dict[str, Any], identities: list[bytes]) -> None:
        content = self._answer(request["header"]["msg_type"], request["content"])
        self._kernel.shell_channel_thread.io_loop.add_callback(self._reply, request, identities, content)

    def _answer(self, kind: str, content: dict[str, Any]) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = json_clean(self._threads.run(lambda: self._answers[kind](content), WITHIN))
        except Exception as error:
            if not isinstance(error, TimeoutError):
                self._kernel.log.exception("cannot answer a %s while a cell runs", kind)
            return _nothing(kind, content)
        return answer

    def _complete(self, content: dict[str, Any]) -> dict[str, Any]:
        completion: NotebookCompleter = self._kernel.notebook.completion
        running = self._kernel.get_parent("shell").get("content", {}).get("code", "")
        found = completion.complete_while_busy(content["code"], content["cursor_pos"], running)
        return reply_of(content["code"], content["cursor_pos"], found)

    def _inspect(self, content: dict[str, Any]) -> dict[str, Any]:
        inspection: Inspector = self._kernel.notebook.inspection
        detail, omitted = content.get("detail_level", 0), content.get("omit_sections", ())
        return inspection.inspect_while_busy(content["code"], content["cursor_pos"], detail, omitted)

    def _comms(self, content: dict[str, Any]) -> dict[str, Any]:
        wanted = content.get("target_name")
        comms = dict(self._kernel.comm_manager.comms)
        names = {key: comm.target_name for key, comm in comms.items() if wanted in (None, comm.target_name)}
        return {"status": "ok", "comms": {key: {"target_name": name} for key, name in names.items()}}


def _nothing(kind: str, content: dict[str, Any]) -> dict[str, Any]:
    """Return an empty answer."""
    if kind == "complete_request":
        return reply_of(content["code"], content["cursor_pos"], ())
    if kind == "inspect_request":
        return {"status": "ok", "found": False, "data": {}, "metadata": {}}
    return {"status": "ok", "history": []} if kind == "history_request" else {"status": "error"}


def comm_handler(manager: Any, kind: str, content: dict[str, Any], *, is_busy: bool) -> Handle | None:
    """Return the handler for this message on the receiving thread; None if the main thread must handle it."""
    if kind == "comm_open":
        opens = is_busy and content.get("target_name") in (CONTROL, TARGET)
        return (lambda message: manager.comm_open(None, None, message)) if opens else None
    comm = manager.comms.get(str(content.get("comm_id")))
    if isinstance(comm, DashboardComm):
        # Always, also without a running cell, so that they stay in order; handling one only queues it.
        data = content.get("data")
        is_of_view = isinstance(data, dict) and data.get("method") in ("custom", "request_state")
        return comm.handle_msg if is_of_view else None
    if not is_busy or getattr(comm, "target_name", "") != CONTROL:
        return None
    # Without IPython's events, which would report an executed cell while one still runs.
    return lambda message: comm._msg_callback and comm._msg_callback(message)
