"""The clients of a run: processes that use its meshes without being its controller or its workers.

A client connects to a socket in the run's folder, which only this user can enter, and keeps the connection. The end of
the connection is the end of the client, or of the run. All else is sent in the messages of nodes.
    client -> ClientHello -> host agent -> ClientWelcome -> client ==== messages ==== workers
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from meshbook.runtime.config import Settings
from meshbook.runtime.errors import ExitReport
from meshbook.runtime.hosts.lifeline import present_version
from meshbook.runtime.node.node import Node
from meshbook.runtime.transport.home import Home
from meshbook.runtime.transport.io_loop import IoLoop
from meshbook.runtime.transport.unix import Listener, Reader, StreamSocket
from meshbook.runtime.wire.messages import Address

logger = logging.getLogger(__name__)
CLIENTS = "clients"  # the socket's name
LEAVES = b"leave\n"  # the last line of a client that leaves; without it the client was killed
LINE_BYTES = 65536


class ClientHello(msgspec.Struct, frozen=True):
    """The first line of a client: the name of its node, its process id, and its version."""

    node: str
    pid: int
    version: str


class ClientWelcome(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: the data that a node of the run needs, or the reason why the process cannot be a client."""

    error: str = ""
    run: str = ""
    controller: Address | None = None
    agent: Address | None = None
    settings: Settings = Settings()
    incarnations: dict[str, int] = {}  # of the nodes that were restarted


_decode_hello = msgspec.json.Decoder(ClientHello).decode
decode_welcome = msgspec.json.Decoder(ClientWelcome).decode


class Clients:
    """The clients of a run, managed by the host agent of its first host.

    `ended` is called with the report of each client that has left or ended, on a thread of its own.
    """

    def __init__(self, node: Node, folder: Path, ended: Callable[[ExitReport], None]) -> None:
        self._node = node
        self._folder = folder
        self._ended = ended
        self._known: dict[str, Address] = {}  # changed on the I/O thread only

    def addresses(self) -> list[Address]:
        """Return the addresses of the clients."""
        return list(self._known.values())

    def open(self) -> None:
        """Accept clients from now on."""
        loop = self._node.loop
        loop.run(Listener(loop, self._folder / CLIENTS, lambda made: ClientConnection(loop, made, self)).start)

    # -- on the I/O thread ---------------------------------------------------------------

    def welcome(self, entry: ClientHello) -> ClientWelcome:
        """Register a client and return the answer to it; an answer with an error registers nothing."""
        node = self._node
        if entry.version != present_version():
            return ClientWelcome(error=f"it was started by {present_version()}, but this process is {entry.version}")
        address = self._known[entry.node] = Home.of_first_host(self._folder).address(entry.node)
        node.routes.trust(address)
        return ClientWelcome(
            run=node.run,
            controller=node.controller,
            agent=node.address,
            settings=node.settings,
            incarnations=node.routes.incarnations(),
        )

    def lose(self, report: ExitReport) -> None:
        """Handle the end of a client's connection."""
        if self._known.pop(report.node, None) is not None:
            # The report takes a lock, under which other threads wait for this one.
            threading.Thread(target=self._report, args=(report,), name="meshbook client's end", daemon=True).start()

    def _report(self, report: ExitReport) -> None:
        self._ended(report)
        (self._folder / report.node).unlink(missing_ok=True)  # its socket, if it was killed


class ClientConnection(Reader):
    """The connection to one client, which sends lines instead of frames. For the I/O thread."""

    def __init__(self, loop: IoLoop, connected: StreamSocket, clients: Clients) -> None:
        super().__init__(loop, connected, LINE_BYTES, lambda frame: None)
        self._clients = clients
        self._entry: ClientHello | None = None
        self._received = b""

    def _on_bytes(self, flags: int) -> None:
        try:
            data = self._socket.recv(LINE_BYTES)
            self._received += data
            if self._entry is None and b"\n" in self._received:
                line, _, self._received = self._received.partition(b"\n")
                self._entry = _decode_hello(line)
                self._socket.sendall(msgspec.json.encode(self._clients.welcome(self._entry)) + b"\n")
        except BlockingIOError:
            return
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("the connection to a client failed: %s", error)
            data = b""
        if not data:
            self.close()

    def close(self) -> None:
        """Close the connection, which ends the client's membership of the run."""
        super().close()
        if (entry := self._entry) is not None:
            self._entry = None
            left = "its client has left the run" if self._received == LEAVES else ""
            hint = "" if left else "the client exited without leaving the run"
            self._clients.lose(ExitReport(entry.node, entry.pid, None, hint=hint, stopped=left))
