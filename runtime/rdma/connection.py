"""A TCP connection for bulk data: sends and receives a given number of bytes within a deadline.

The socket blocks, and the kernel enforces the time limit. So a large piece is one call, and a transferring thread waits
for the GIL once per piece instead of once per packet.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
from collections.abc import Callable, Iterator

from meshbook.runtime.errors import RefusedMessage, TransferTimeout
from meshbook.runtime.rdma import memory_protocol as protocol
from meshbook.runtime.rdma.backends import Deadline

PIECE = 8 << 20  # bytes of one call, and between two checks of the deadline
_TIME = struct.Struct("@ll")  # a timeval
Buffer = bytes | bytearray | memoryview


class DataConnection:
    """One connection. Raises ConnectionError if it breaks, and TransferTimeout at the deadline.

    It checks the deadline at least every `check_seconds` seconds, because the deadline may be cancelled.
    """

    def __init__(self, sock: socket.socket, check_seconds: float = 0.5) -> None:
        self._socket = sock
        self._check_seconds = check_seconds
        self.what: Callable[[], str] = lambda: "talking to a memory server"  # for errors
        self.seal_out: protocol.Seal  # set by the handshake
        self.seal_in: protocol.Seal
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: Buffer, deadline: Deadline) -> None:
        rest = memoryview(data)
        while rest:
            with self._within(deadline, socket.SO_SNDTIMEO):
                rest = rest[self._socket.send(rest[:PIECE]) :]

    def receive_into(self, target: memoryview, deadline: Deadline) -> None:
        rest = target
        while rest:
            with self._within(deadline, socket.SO_RCVTIMEO):
                count = self._socket.recv_into(rest, min(len(rest), PIECE), socket.MSG_WAITALL)
                if not count:
                    raise ConnectionError("the peer closed it")
                rest = rest[count:]

    def send_message(self, data: bytes, deadline: Deadline) -> None:
        """Send a request or an answer, preceded by its length."""
        self.send(b"".join(map(self._seal, (protocol.pack_length(len(data)), data))), deadline)

    def _seal(self, data: bytes) -> bytearray:
        sealed = bytearray(len(data) + protocol.TAG)
        self.seal_out.seal(data, sealed)
        return sealed

    def receive_length(self, deadline: Deadline) -> int:
        """Receive the length of the next request or answer. Raises DamagedData."""
        return protocol.unpack_length(self.receive_message(protocol.LENGTH_BYTES, deadline))

    def receive_message(self, length: int, deadline: Deadline) -> bytearray:
        """Receive a request or answer of this length. Raises DamagedData."""
        data = bytearray(length)
        self.seal_in.open(self.receive(length + protocol.TAG, deadline), data)
        return data

    def send_piece(self, data: memoryview, between: memoryview, deadline: Deadline) -> None:
        """Send a piece of the data, sealed into the memory `between`, which must have room for it."""
        sealed = between[: len(data) + protocol.TAG]
        self.seal_out.seal(data, sealed)
        self.send(sealed, deadline)

    def receive_piece(self, data: memoryview, between: memoryview, deadline: Deadline) -> None:
        """Receive a piece that fills `data`, through the memory `between`. Raises DamagedData."""
        sealed = between[: len(data) + protocol.TAG]
        self.receive_into(sealed, deadline)
        self.seal_in.open(sealed, data)

    def receive(self, size: int, deadline: Deadline) -> bytearray:
        data = bytearray(size)
        self.receive_into(memoryview(data), deadline)
        return data

    def has_something(self) -> bool:
        """Return whether data or the end of the connection has arrived."""
        try:
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    @contextlib.contextmanager
    def _within(self, deadline: Deadline, limit: int) -> Iterator[None]:
        """Limit the time of one socket call. A timeout of the call is no error: the caller checks the deadline."""
        deadline.check(self.what)
        left = min(deadline.left, self._check_seconds)
        seconds = int(left)
        time = _TIME.pack(seconds, max(1000, int((left - seconds) * 1e6)))  # a zero timeval would mean no limit
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, limit, time)
            with contextlib.suppress(BlockingIOError):
                yield
        except OSError as error:
            raise ConnectionError(f"the connection failed: {error}") from error

    def interrupt(self) -> None:
        """Break the connection, from any thread: pending sends and receives raise ConnectionError."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


def admit(connection: DataConnection, key: bytes, deadline: Deadline) -> None:
    """Run the agent's side of the handshake. Raises RefusedMessage if the peer does not prove that it has the key."""
    own = secrets.token_bytes(protocol.NONCE)
    try:
        connection.send(protocol.pack_greeting(own), deadline)
        asked = bytes(connection.receive(protocol.NONCE, deadline))
        proof = bytes(connection.receive(protocol.PROOF, deadline))
    except (ConnectionError, TransferTimeout) as error:
        raise RefusedMessage("it aborted the handshake") from error
    if not protocol.is_proof(proof, key, "process", own, asked):
        raise RefusedMessage("it does not have the key of this run")
    connection.send(protocol.prove(key, "agent", asked, own), deadline)
    connection.seal_out, connection.seal_in = (protocol.Seal(key, side, own + asked) for side in ("agent", "process"))


def be_admitted(connection: DataConnection, key: bytes, deadline: Deadline) -> None:
    """Run the process's side of the handshake.

    Raises RefusedMessage if the agent does not prove that it has the key, and ConnectionError if the agent refuses.
    """
    asked = protocol.unpack_greeting(connection.receive(protocol.GREETING_BYTES, deadline))
    own = secrets.token_bytes(protocol.NONCE)
    connection.send(own + protocol.prove(key, "process", asked, own), deadline)
    if not protocol.is_proof(bytes(connection.receive(protocol.PROOF, deadline)), key, "agent", own, asked):
        raise RefusedMessage("the peer does not have the key of this run")
    connection.seal_out, connection.seal_in = (protocol.Seal(key, side, asked + own) for side in ("process", "agent"))
