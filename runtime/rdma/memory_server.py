"""The memory server of a host agent: reads and writes the memory of its host's processes for other hosts.

    a process of another host ==== TCP ==== the agent -> Cross Memory Attach -> the owner, which takes no part

The server opens when a process requests its address from the agent by message. So only processes of the run receive the
key, and the server refuses all others. Connections are encrypted and authenticated: a change is detected.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import secrets
import socket
import threading
from collections.abc import Callable
from functools import partial

import msgspec

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.errors import MeshbookError, RefusedMessage, TransferTimeout
from meshbook.runtime.memory.local_memory import LocalMemory
from meshbook.runtime.memory.process_identity import ProcessMark
from meshbook.runtime.rdma import memory_protocol as protocol
from meshbook.runtime.rdma import pieces
from meshbook.runtime.rdma.backends import Deadline, TransferBackend, TransferJob, Unsuitable
from meshbook.runtime.rdma.backends.process_memory import gone
from meshbook.runtime.rdma.connection import DataConnection, admit
from meshbook.runtime.transport.gateway_connections import RejectedPeers
from meshbook.runtime.wire.messages import Address

logger = logging.getLogger(__name__)

MEMORY = "memory"  # the actor that an agent hosts for this
CONNECTIONS = 256  # the most at once; further ones wait until one is closed, and idle ones are closed for them
MOST_UNKNOWN = 64  # the most that have not proved the key; beyond that the oldest is closed first
HANDSHAKE_SECONDS = 5.0
IDLE_SECONDS = 120.0  # an idle connection is closed after this time; the other side closes it sooner
MOST_SECONDS = 86_400.0
BACKLOG = 128
PAUSE_SECONDS = 1.0  # after a connection that could not be accepted
CHECK_SECONDS = 0.05  # between two checks for room


class State(enum.Enum):
    """The state of a connection."""

    UNKNOWN = enum.auto()  # it has not proved the key
    IDLE = enum.auto()
    BUSY = enum.auto()


class MemoryServerAddress(msgspec.Struct, frozen=True):
    """The address of an agent's memory server, and the key that it requires."""

    ip: str
    port: int
    key: bytes


class MemoryServerActor(Actor):
    """Returns the server's address; hosted inline by an agent. Only processes of the run can send it messages."""

    def __init__(self, server: MemoryServer, ip_towards: Callable[[Address], str]) -> None:
        self._server = server
        self._ip_towards = ip_towards

    @endpoint
    def address(self, sender: Address) -> MemoryServerAddress:
        """Return the server's address for this node, and open the server. Raises OSError if it cannot be opened."""
        return self._server.open(self._ip_towards(sender))

    @endpoint
    def refused(self) -> int:
        """Return how many connections were refused because the peer did not prove that it belongs to the run."""
        return self._server.rejected.count


class MemoryServer:
    """Serves the memory of this host's processes through `backend`. `is_ours` returns whether a process is of this run.

    `folder` is where owners look for marks of processes that use their memory.
    """

    def __init__(self, backend: TransferBackend, folder: str, is_ours: Callable[[ProcessMark], bool]) -> None:
        self._backend = backend
        self._folder = folder
        self._is_ours = is_ours
        self._key = secrets.token_bytes(32)
        self._buffers = pieces.make_buffers()
        self._room = threading.Semaphore(CONNECTIONS)
        self._lock = threading.Lock()  # guards all below
        self._listeners: dict[str, socket.socket] = {}  # by the IP address that they listen on
        self._connections: dict[DataConnection, State] = {}  # the longest unused first
        self._closing = threading.Event()
        self.rejected = RejectedPeers("the memory server")

    def open(self, ip: str) -> MemoryServerAddress:
        """Listen on this address of the host. Returns the existing address if it already listens there."""
        with self._lock:
            if self._closing.is_set():
                raise OSError("the memory server is closed")
            if (listener := self._listeners.get(ip)) is None:
                family = socket.AF_INET6 if ":" in ip else socket.AF_INET
                listener = socket.create_server((ip, 0), family=family, backlog=BACKLOG)
                self._start_accepting(listener)
                self._listeners[ip] = listener
            return MemoryServerAddress(ip, listener.getsockname()[1], self._key)

    def _start_accepting(self, listener: socket.socket) -> None:
        thread = threading.Thread(target=self._accept, args=(listener,), name="meshbook memory server", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # too many threads: nothing would accept a connection there
            listener.close()
            raise OSError(str(error)) from error

    def close(self) -> None:
        """Stop serving. Idempotent."""
        with self._lock:
            self._closing.set()
            connections, listeners = list(self._connections), list(self._listeners.values())
        for connection in connections:
            connection.interrupt()
        for listener in listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread, which closes the socket

    # -- connections -----------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        with listener:
            while not self._closing.is_set():
                self._make_room()
                try:
                    self._accept_one(listener)
                except (OSError, RuntimeError) as error:  # closed; or no file descriptors or threads are left
                    self._room.release()
                    if not self._closing.is_set():
                        logger.warning("the memory server cannot accept a connection: %s", error)
                        self._closing.wait(PAUSE_SECONDS)

    def _make_room(self) -> None:
        has_room = self._room.acquire(blocking=False)
        while not has_room and not self._closing.is_set():
            with self._lock:
                unknown, idle = (
                    [connection for connection, state in self._connections.items() if state is wanted]
                    for wanted in (State.UNKNOWN, State.IDLE)
                )
            # Close idle ones first, unless many are unknown: a legitimate connection is unknown for a moment, too.
            for connection in (unknown if len(unknown) > MOST_UNKNOWN or not idle else idle)[:1]:
                connection.interrupt()
            has_room = self._room.acquire(timeout=CHECK_SECONDS)

    def _accept_one(self, listener: socket.socket) -> None:
        sock, _ = listener.accept()
        try:
            connection = DataConnection(sock, HANDSHAKE_SECONDS)
        except OSError:
            sock.close()
            raise
        # Before the thread starts: until the connection is listed, another one would be closed to make room.
        self._note(connection, State.UNKNOWN)
        try:
            threading.Thread(
                target=self._serve_connection, args=(connection,), name="meshbook memory", daemon=True
            ).start()
        except RuntimeError:
            self._forget(connection)
            raise

    def _serve_connection(self, connection: DataConnection) -> None:
        """Serve one connection until it ends or breaks the protocol."""
        try:
            admit(connection, self._key, Deadline(HANDSHAKE_SECONDS))
            while not self._closing.is_set():
                self._note(connection, State.IDLE)
                length = connection.receive_length(Deadline(IDLE_SECONDS))
                self._note(connection, State.BUSY)
                self._serve(connection, length)
        except (RefusedMessage, protocol.DamagedData) as error:
            self.rejected.refuse(str(error))
        except (OSError, TransferTimeout):
            pass  # the other side closed it, or was idle for too long
        finally:
            self._forget(connection)
            self._room.release()

    def _forget(self, connection: DataConnection) -> None:
        with self._lock:
            self._connections.pop(connection, None)
        connection.close()

    def _note(self, connection: DataConnection, state: State) -> None:
        with self._lock:
            self._connections.pop(connection, None)
            self._connections[connection] = state

    # -- requests ----------------------------------------------------------------------------

    def _serve(self, connection: DataConnection, length: int) -> None:
        request = protocol.unpack_request(connection.receive_message(length, Deadline(HANDSHAKE_SECONDS)))
        deadline = Deadline(min(request.seconds, MOST_SECONDS))
        if request.is_write:
            self._write(connection, request, deadline)
        else:
            self._read(connection, request, deadline)

    def _check(self, request: protocol.TransferRequest) -> None:
        handle = request.handle
        if why := self._backend.refusal(handle, None):
            raise Unsuitable(f"its host agent cannot reach it: {why}")
        if handle.lease.folder != self._folder or not self._is_ours(handle.process):
            if handle.process.has_ended:
                raise gone(handle)
            raise Unsuitable(f"its host agent finds no process {handle.process.pid} in this run")

    def _read(self, connection: DataConnection, request: protocol.TransferRequest, deadline: Deadline) -> None:
        """Send the answer with the first piece. A later failure closes the connection, and the client asks again."""
        has_begun = False
        try:
            self._check(request)
            with self._buffers.borrowed() as buffer, self._buffers.borrowed() as sealed:
                for start, size in pieces.cut(request.size):
                    piece = buffer.part(0, size)
                    self._backend.read(_job(request, start, piece, deadline))
                    if not has_begun:
                        connection.send_message(protocol.pack_answer(), deadline)
                        has_begun = True
                    connection.send_piece(piece.view(), sealed.view(), deadline)
        except (MeshbookError, Unsuitable) as error:
            if has_begun:
                raise ConnectionError(str(error)) from error
            connection.send_message(protocol.pack_answer(error), deadline)

    def _write(self, connection: DataConnection, request: protocol.TransferRequest, deadline: Deadline) -> None:
        """Report a failed write at once, and discard the pieces that still arrive."""
        trouble = self._try(lambda: self._check(request), connection, deadline)
        with self._buffers.borrowed() as buffer, self._buffers.borrowed() as sealed:
            for start, size in pieces.cut(request.size):
                piece = buffer.part(0, size)
                connection.receive_piece(piece.view(), sealed.view(), deadline)
                if not trouble:
                    job = _job(request, start, piece, deadline)
                    trouble = self._try(partial(self._backend.write, job), connection, deadline)
        if not trouble:
            connection.send_message(protocol.pack_answer(), deadline)

    def _try(self, do: Callable[[], object], connection: DataConnection, deadline: Deadline) -> bool:
        """Run `do`. On failure, send the error and return True."""
        try:
            do()
        except (MeshbookError, Unsuitable) as error:
            connection.send_message(protocol.pack_answer(error), deadline)
            return True
        return False


def _job(request: protocol.TransferRequest, start: int, buffer: LocalMemory, deadline: Deadline) -> TransferJob:
    return TransferJob(request.handle, request.offset + start, buffer, deadline)
