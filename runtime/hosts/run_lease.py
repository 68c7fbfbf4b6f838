"""The lease of a run: its holder is the controller, an attached notebook, or none. Owned by the first host's agent.

    held --RunDetached, then end of the connection--> detached --attach--> offered --RunTaken--> held
                                                      ^- end before that --'

If the connection ends without RunDetached, the run ends. It also ends when it has been detached for too long.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from meshbook.runtime.hosts.detached_controller import DetachedController
from meshbook.runtime.hosts.journal import Journal
from meshbook.runtime.hosts.launch import AgentSpec
from meshbook.runtime.hosts.lifeline import (
    JOURNAL,
    RUN_SOCKET,
    Line,
    LineReader,
    MeshStatus,
    MeshSummary,
    RunDetached,
    RunReply,
    RunRequest,
    RunState,
    RunTaken,
    Status,
    decode_run_request,
)
from meshbook.runtime.hosts.workers import Workers
from meshbook.runtime.node.node import Node
from meshbook.runtime.transport.home import Home
from meshbook.runtime.transport.unix import UnixTransport
from meshbook.runtime.wire.messages import Address

logger = logging.getLogger(__name__)

State = Literal["held", "detached", "offered"]
REQUEST_SECONDS = 5.0  # for a request line of a client at the listening socket
PAUSE_SECONDS = 0.5  # after a failed accept
LOOK_SECONDS = 30.0  # between two checks that the run's socket has its name


class RunLease:
    """The connection to the run's holder, and the state of the run while there is none."""

    def __init__(
        self,
        spec: AgentSpec,
        line: LineReader,
        node: Node,
        others: Callable[[], list[Address]],
        workers: Workers,
        handed_over: Callable[[int], None] = lambda incarnation: None,
    ) -> None:
        self._spec = spec
        self._line: LineReader | None = line
        self._node = node
        self._others = others  # the workers and clients of the run
        self._workers = workers
        self._handed_over = handed_over  # called with an incarnation of the controller that has ended
        self._lifelines: list[int] = []  # descriptors that keep other hosts while there is no controller
        self._folder = Path(spec.folder)
        # guards all below: the main thread reads the connection, the listener has its own thread
        self._lock = threading.Lock()
        self._state: State = "held"
        self._order: RunDetached | None = None
        self._incarnation = 0  # incarnation of the controller's node
        self._journal: Journal | None = None
        self._controller: DetachedController | None = None
        self._since = 0.0
        self._held_by = ""
        self._listener: socket.socket | None = None

    # -- the connection, on the agent's main thread -----------------------------------

    @property
    def descriptor(self) -> int:
        """The descriptor of the connection; -1 while there is none."""
        return self._line.descriptor if self._line is not None else -1

    def forget(self, descriptor: int) -> None:
        """Close a descriptor that is no longer watched."""
        if descriptor == sys.stdin.fileno():
            with open(os.devnull, "rb") as null:
                os.dup2(null.fileno(), descriptor)  # the next file opened must not become standard input
        else:
            os.close(descriptor)

    def is_over(self) -> bool:
        """Read and handle the messages of the connection; return whether the run has to end."""
        with self._lock:
            assert self._line is not None
            lines = self._line.take()
            if lines is None:
                return not self._handle_disconnect()
            for line in lines:
                self._handle(line)
            return False

    def _handle(self, line: Line) -> None:
        if isinstance(line, RunDetached):
            self._order = line
            for path in line.lifelines:
                with contextlib.suppress(OSError):  # the host has just ended: nothing reads there
                    self._lifelines.append(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        elif isinstance(line, RunTaken):
            self._state, self._order = "held", None
            shutil.rmtree(self._folder / JOURNAL, ignore_errors=True)
            for descriptor in self._lifelines:  # the new controller has its own
                os.close(descriptor)
            self._lifelines.clear()

    def _handle_disconnect(self) -> bool:
        """Handle the end of the connection; return whether the run continues without it."""
        if self._order is None:
            return False
        was_offered = self._state == "offered"
        self._line = None
        try:
            incarnation = self._incarnation + 2 if was_offered else self._order.incarnation + 1
            self._start_detached_controller(self._order, incarnation)
        except OSError:
            logger.exception("cannot keep the run alive without its controller")
            return False
        if not was_offered:
            self._since = time.time()
            self._listen()
            self._node.loop.call_later(self._order.seconds, functools.partial(self._expire, self._order))
        return True

    def _start_detached_controller(self, order: RunDetached, incarnation: int) -> None:
        transport = UnixTransport("controller", Home.of_first_host(self._folder), self._spec.settings)
        former = self._journal if self._state == "offered" else None
        journal = Journal(self._folder / JOURNAL, order.calls if former is None else former.wanted)
        if former is not None:
            journal.down |= former.down
        self._handed_over(incarnation - 1)
        controller = DetachedController(transport, self._spec.run, self._spec.settings, incarnation, journal)
        controller.begin([self._node.address, *self._others(), *order.peers])
        self._incarnation, self._journal, self._controller, self._state = incarnation, journal, controller, "detached"

    def _expire(self, order: RunDetached) -> None:
        with self._lock:
            if self._order is not order:
                return
            if self._state == "offered":  # it is given the time to complete or fail
                self._node.loop.call_later(1.0, functools.partial(self._expire, order))
                return
        logger.warning("ending the run: no client attached to it within %g s", order.seconds)
        self._workers.finish()

    # -- the listener, on a thread of its own ------------------------------------------

    def _listen(self) -> None:
        if self._listener is not None:
            return
        self._listener = self._open_socket()
        threading.Thread(target=self._accept_clients, name="meshbook run socket", daemon=True).start()

    def _open_socket(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(os.fspath(self._folder / RUN_SOCKET))
        (self._folder / RUN_SOCKET).chmod(0o600)
        listener.listen()
        listener.settimeout(LOOK_SECONDS)
        return listener

    def _accept_clients(self) -> None:
        assert self._listener is not None
        while True:
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                self._restore_socket()
                continue
            except OSError as error:  # no descriptor is left, for now
                logger.warning("cannot accept a connection at the run's socket: %s", error)
                time.sleep(PAUSE_SECONDS)  # clients wait for longer than this
                continue
            try:
                self._serve(client)
            except (OSError, msgspec.DecodeError):
                client.close()
            except Exception:  # unforeseen; the listener must still serve the next client
                logger.exception("a request at the run's socket failed")
                client.close()

    def _restore_socket(self) -> None:
        """Open the socket again if its file was removed, as by a cleaner of temporary files: no client finds it."""
        if self._listener is not None and not (self._folder / RUN_SOCKET).exists():
            with contextlib.suppress(OSError):  # the folder is gone as well
                former, self._listener = self._listener, self._open_socket()
                former.close()

    def _serve(self, client: socket.socket) -> None:
        client.settimeout(REQUEST_SECONDS)
        with client.makefile("rb") as lines:
            request = decode_run_request(lines.readline())
        verbs: dict[str, Callable[[RunRequest, socket.socket], None]] = {
            "status": lambda request, client: _send(client, RunReply(status=self.status())),
            "attach": self._offer,
            "end": self._end,
        }
        verbs[request.verb](request, client)
        client.close()  # no effect after `attach`, which detaches the descriptor as the new connection

    def _offer(self, request: RunRequest, client: socket.socket) -> None:
        with self._lock:
            if self._state != "detached":
                return _send(client, RunReply(error=self._why_not()))
            assert self._controller is not None
            assert self._journal is not None
            peers = tuple(self._controller.leave())
            self._journal.close()
            self._handed_over(self._incarnation)
            self._state, self._held_by = "offered", request.label
            self._line = LineReader(client.detach())
        run_state = RunState(self._incarnation + 1, peers, self._journal.dropped)
        with contextlib.suppress(OSError):  # the client is already gone; the connection's end shows that
            os.write(self._line.descriptor, _encode(RunReply(status=self.status(), run_state=run_state)))
        self._workers.look_at_line()
        return None

    def _end(self, request: RunRequest, client: socket.socket) -> None:
        with self._lock:
            if self._state != "detached":
                return _send(client, RunReply(error=self._why_not()))
        _send(client, RunReply(status=self.status()))
        logger.warning("ending the run: %s requested it", request.label)
        return self._workers.finish()

    def _why_not(self) -> str:
        return f"run {self._spec.run} is already attached by {self._held_by}"

    def status(self) -> Status:
        """Return the status of the run."""
        order = self._order
        return Status(
            run=self._spec.run,
            host=socket.gethostname(),
            version=order.version if order is not None else "",
            meshes=tuple(map(self._status_of, order.meshes)) if order is not None else (),
            since=self._since,
            until=self._since + order.seconds if order is not None else 0.0,
            held_by=self._held_by if self._state != "detached" else "",
        )

    def _status_of(self, mesh: MeshSummary) -> MeshStatus:
        assert self._journal is not None
        busy, down = set(self._journal.wanted.values()), self._journal.down
        dead = [node for node in mesh.nodes if node in down]
        return MeshStatus(mesh.name, len(mesh.nodes), len(busy & set(mesh.nodes) - down), len(dead))


def _send(client: socket.socket, answer: RunReply) -> None:
    client.sendall(_encode(answer))


def _encode(answer: RunReply) -> bytes:
    return msgspec.json.encode(answer) + b"\n"
