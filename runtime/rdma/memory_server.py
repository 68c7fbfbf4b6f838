"""The memory server of a host agent: reads and writes the memory of its host's processes for those of other hosts.

    a process of another host ==== TCP ==== the agent -> Cross Memory Attach -> the owner, who takes no part

It is opened when somebody asks the agent for the way to it, by a message: so only who is of the run learns the key, and
of anybody else nothing is served. What goes over the connection is encrypted, and a change of it is detected.
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
from meshbook.runtime.memory.identity import ProcessMark
from meshbook.runtime.memory.local import LocalMemory
from meshbook.runtime.rdma import pieces, protocol
from meshbook.runtime.rdma.backends import Deadline, TransferBackend, TransferJob, Unsuitable
from meshbook.runtime.rdma.connection import DataConnection, admit
from meshbook.runtime.transport.gateway_connections import RejectedPeers
from meshbook.runtime.wire.messages import Address

logger = logging.getLogger(__name__)

MEMORY = "memory"  # the actor that an agent hosts for this
CONNECTIONS = 256  # at once; more wait until one is closed, and those that nobody uses are closed for them
MOST_UNKNOWN = 64  # of these that have not shown the key; of more the oldest is closed first
HANDSHAKE_SECONDS = 5.0
IDLE_SECONDS = 120.0  # a connection that is not used for so long is closed; the other side does so before
MOST_SECONDS = 86_400.0
BACKLOG = 128
PAUSE_SECONDS = 1.0  # after a connection that could not be taken
LOOK_SECONDS = 0.05  # how often it is looked whether there is room for one more


class State(enum.Enum):
    """What a connection is used for."""

    UNKNOWN = enum.auto()  # it has not shown the key
    IDLE = enum.auto()
    BUSY = enum.auto()


class MemoryServerAddress(msgspec.Struct, frozen=True):
    """Where an agent's memory server is, and the key that it asks for."""

    ip: str
    port: int
    key: bytes


class MemoryServerActor(Actor):
    """Hosted inline by an agent: who sends it a message is of the run, and is told the way to the server."""

    def __init__(self, server: MemoryServer, ip_towards: Callable[[Address], str]) -> None:
        self._server = server
        self._ip_towards = ip_towards

    @endpoint
    def door(self, reply_handler: Address) -> MemoryServerAddress:
        """Where this node reaches the server, which is open from then on. OSError where it cannot be opened."""
        return self._server.open(self._ip_towards(reply_handler))

    @endpoint
    def refused(self) -> int:
        """How often somebody was refused who did not show that he is of the run."""
        return self._server.strangers.count


class MemoryServer:
    """`way` reaches the memory of this host's processes; `is_ours` says of one whether it is of this run.

    `folder` is where they look for who is at their memory.
    """

    def __init__(self, way: TransferBackend, folder: str, is_ours: Callable[[ProcessMark], bool]) -> None:
        self._way = way
        self._folder = folder
        self._is_ours = is_ours
        self._key = secrets.token_bytes(32)
        self._buffers = pieces.Buffers()
        self._room = threading.Semaphore(CONNECTIONS)
        self._lock = threading.Lock()  # guards all below
        self._doors: dict[str, socket.socket] = {}  # by the IP address at which they listen
        self._lines: dict[DataConnection, State] = {}  # the connections; the longest unused first
        self._closing = threading.Event()
        self.strangers = RejectedPeers("the memory server")

    def open(self, ip: str) -> MemoryServerAddress:
        """Listen at this address of ours; where it does already, that is the answer."""
        with self._lock:
            if self._closing.is_set():
                raise OSError("the memory server is closed")
            if (listening := self._doors.get(ip)) is None:
                family = socket.AF_INET6 if ":" in ip else socket.AF_INET
                listening = socket.create_server((ip, 0), family=family, backlog=BACKLOG)
                self._begin_to_accept(listening)
                self._doors[ip] = listening
            return MemoryServerAddress(ip, listening.getsockname()[1], self._key)

    def _begin_to_accept(self, listening: socket.socket) -> None:
        thread = threading.Thread(target=self._accept, args=(listening,), name="meshbook memory server", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # there are too many already: who connected there would wait for nobody
            listening.close()
            raise OSError(str(error)) from error

    def close(self) -> None:
        """Serve nobody any more. Idempotent."""
        with self._lock:
            self._closing.set()
            lines, doors = list(self._lines), list(self._doors.values())
        for line in lines:
            line.interrupt()
        for listening in doors:
            with contextlib.suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)  # who accepts there is woken, and closes it

    # -- connections -----------------------------------------------------------------------

    def _accept(self, listening: socket.socket) -> None:
        with listening:
            while not self._closing.is_set():
                self._make_room()
                try:
                    self._attend_next(listening)
                except (OSError, RuntimeError) as error:  # it is closed; or no descriptors, or no threads, are left
                    self._room.release()
                    if not self._closing.is_set():
                        logger.warning("the memory server cannot take a connection: %s", error)
                        self._closing.wait(PAUSE_SECONDS)

    def _make_room(self) -> None:
        has_room = self._room.acquire(blocking=False)
        while not has_room and not self._closing.is_set():
            with self._lock:
                unknown, idle = (
                    [line for line, state in self._lines.items() if state is wanted]
                    for wanted in (State.UNKNOWN, State.IDLE)
                )
            # Idle ones first, unless strangers have come: a process that connects is unknown for a moment, too.
            for line in (unknown if len(unknown) > MOST_UNKNOWN or not idle else idle)[:1]:
                line.interrupt()
            has_room = self._room.acquire(timeout=LOOK_SECONDS)

    def _attend_next(self, listening: socket.socket) -> None:
        connection, _ = listening.accept()
        try:
            line = DataConnection(connection, HANDSHAKE_SECONDS)
        except OSError:
            connection.close()
            raise
        # Here, not on its thread: while that has not begun, another one would be closed to make room.
        self._note(line, State.UNKNOWN)
        try:
            threading.Thread(target=self._attend, args=(line,), name="meshbook memory", daemon=True).start()
        except RuntimeError:
            self._forget(line)
            raise

    def _attend(self, line: DataConnection) -> None:
        """Serve one connection, until it ends or does not behave."""
        try:
            admit(line, self._key, Deadline(HANDSHAKE_SECONDS))
            while not self._closing.is_set():
                self._note(line, State.IDLE)
                length = line.receive_length(Deadline(IDLE_SECONDS))
                self._note(line, State.BUSY)
                self._serve(line, length)
        except (RefusedMessage, protocol.DamagedData) as error:
            self.strangers.refuse(str(error))
        except (OSError, TransferTimeout):
            pass  # the other side has closed it, or let it wait for too long
        finally:
            self._forget(line)
            self._room.release()

    def _forget(self, line: DataConnection) -> None:
        with self._lock:
            self._lines.pop(line, None)
        line.close()

    def _note(self, line: DataConnection, state: State) -> None:
        with self._lock:
            self._lines.pop(line, None)
            self._lines[line] = state

    # -- requests ----------------------------------------------------------------------------

    def _serve(self, line: DataConnection, length: int) -> None:
        request = protocol.unpack_request(line.receive_message(length, Deadline(HANDSHAKE_SECONDS)))
        deadline = Deadline(min(request.seconds, MOST_SECONDS))
        if request.is_write:
            self._write(line, request, deadline)
        else:
            self._read(line, request, deadline)

    def _check(self, request: protocol.TransferRequest) -> None:
        handle = request.handle
        if why := self._way.refusal(handle, None):
            raise Unsuitable(f"its host agent cannot reach it: {why}")
        if handle.lease.folder != self._folder or not self._is_ours(handle.process):
            raise Unsuitable(f"its host agent knows no process {handle.process.pid} of this run")

    def _read(self, line: DataConnection, request: protocol.TransferRequest, deadline: Deadline) -> None:
        """The answer goes out with the first piece. What fails later ends the connection: who asked asks again."""
        has_begun = False
        try:
            self._check(request)
            with self._buffers.borrowed() as buffer, self._buffers.borrowed() as sealed:
                for start, size in pieces.cut(request.size):
                    piece = buffer.part(0, size)
                    self._way.read(_job(request, start, piece, deadline))
                    if not has_begun:
                        line.send_message(protocol.pack_answer(), deadline)
                        has_begun = True
                    line.send_piece(piece.view(), sealed.view(), deadline)
        except (MeshbookError, Unsuitable) as error:
            if has_begun:
                raise ConnectionError(str(error)) from error
            line.send_message(protocol.pack_answer(error), deadline)

    def _write(self, line: DataConnection, request: protocol.TransferRequest, deadline: Deadline) -> None:
        """What cannot be written is told at once, and the rest of what comes is taken in for nothing."""
        trouble = self._try(lambda: self._check(request), line, deadline)
        with self._buffers.borrowed() as buffer, self._buffers.borrowed() as sealed:
            for start, size in pieces.cut(request.size):
                piece = buffer.part(0, size)
                line.receive_piece(piece.view(), sealed.view(), deadline)
                if not trouble:
                    job = _job(request, start, piece, deadline)
                    trouble = self._try(partial(self._way.write, job), line, deadline)
        if not trouble:
            line.send_message(protocol.pack_answer(), deadline)

    def _try(self, do: Callable[[], object], line: DataConnection, deadline: Deadline) -> bool:
        """Do it; where it fails, tell so, and return True."""
        try:
            do()
        except (MeshbookError, Unsuitable) as error:
            line.send_message(protocol.pack_answer(error), deadline)
            return True
        return False


def _job(request: protocol.TransferRequest, start: int, buffer: LocalMemory, deadline: Deadline) -> TransferJob:
    return TransferJob(request.handle, request.offset + start, buffer, deadline)
