"""The sockets between gateways: the listener, which accepts other hosts, and the socket that dials a listener.

A peer without the keys of the run is refused and counted; the first refusal of each kind is logged. The number of
connections that have not shown the keys is limited.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from dataclasses import dataclass

import zmq

from meshbook.runtime.errors import RefusedMessage
from meshbook.runtime.transport.curve import Handshakes, KeyPair, ZapHandler, authenticate, guard
from meshbook.runtime.transport.home import TCP
from meshbook.runtime.transport.link import AnyLinkMessage, LinkAttach, LinkMessage, pack, unpack
from meshbook.runtime.transport.window import PIECE_BYTES
from meshbook.runtime.wire.frames import Buffer

logger = logging.getLogger(__name__)

Context = zmq.Context[zmq.Socket[bytes]]
LINGER_MS = 100  # for the last messages of a closing socket
MOST_BYTES = PIECE_BYTES + (1 << 20)  # largest message: a piece, or the positions of many streams
BATCH = 100  # messages to read from one socket before the others
HANDSHAKE_MS = 5000  # after which a connection that has not shown the keys is closed
MOST_UNKNOWN = 256  # connections that have not shown the keys, more than `BATCH`; beyond that the oldest is closed
BACKLOG = 1000  # connections that wait to be accepted; beyond that the system ignores a first packet for 1 s
UNREAD_EVENTS = 2000  # high-water marks of both ends of the monitor; at this number ZeroMQ's I/O thread waits


@dataclass(frozen=True)
class Received:
    """A message with its data; a reply goes through `connection`."""

    message: AnyLinkMessage
    data: Buffer
    connection: GatewayConnection
    frame: zmq.Frame


class GatewayConnection:
    """One connection to another gateway; the last messages may be lost when it breaks."""

    def __init__(self, socket: zmq.Socket[bytes], routing_id: bytes | None = None) -> None:
        self._socket = socket
        self.routing_id = routing_id  # the routing id of the peer; None for a socket with one peer

    def send(self, message: LinkMessage, data: Buffer = b"") -> bool:
        """Send a message; return False if the connection is known to be broken."""
        frame = pack(message, data)
        try:
            self._socket.send_multipart(
                [frame] if self.routing_id is None else [self.routing_id, frame], zmq.NOBLOCK, copy=False
            )
        except zmq.ZMQError as error:
            if error.errno in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                return False
            raise
        return True


class RejectedPeers:
    """Counts refused peers and messages, and logs the first of each kind. `by` names the refusing part in the log."""

    def __init__(self, by: str = "the gateway") -> None:
        self.count = 0
        self._by = by
        self._known: set[str] = set()

    def refuse(self, why: str) -> None:
        self.count += 1
        if why not in self._known and len(self._known) < 100:
            self._known.add(why)
            logger.warning("%s refused a peer: %s", self._by, why)


class GatewayListener:
    """Listens for the gateways of other hosts on `tcp://<ip>:<port>`; accepts only peers with the keys of the run."""

    def __init__(self, context: Context, ip: str, keys: KeyPair, rejected_peers: RejectedPeers) -> None:
        self._rejected_peers = rejected_peers
        self._guard = ZapHandler(context, keys)
        self.socket = context.socket(zmq.ROUTER)
        self._handshakes = Handshakes(self.socket)
        self.monitor = self._handshakes.monitor
        self.socket.linger, self.socket.sndhwm, self.socket.maxmsgsize = LINGER_MS, 0, MOST_BYTES
        self.socket.router_mandatory = True  # so that a send to a vanished peer raises
        self.socket.handshake_ivl, self.socket.backlog = HANDSHAKE_MS, BACKLOG
        guard(self.socket, keys)
        address = f"[{ip}]" if ":" in ip else ip
        self.socket.ipv6 = ":" in ip
        try:
            self.socket.bind(f"{TCP}{address}:*")
        except zmq.ZMQError as error:
            self.close()
            raise OSError(f"the gateway cannot listen on {ip}: {error}") from error

    @property
    def prefix(self) -> str:
        """The prefix of the addresses of this host."""
        return self.socket.getsockopt_string(zmq.LAST_ENDPOINT) + "/"

    def read(self) -> Iterator[Received]:
        """Yield the received messages, at most `BATCH`."""
        for received in _read(self.socket, self._rejected_peers):
            if isinstance(received.message, LinkAttach):
                descriptor = int(received.frame.get(zmq.SRCFD))
                # The event of this connection came before its message, but may be unread.
                while not self._handshakes.admit(descriptor) and self.note_rejected_peers():
                    pass
            yield received

    def note_rejected_peers(self) -> bool:
        """Count refused peers, and limit the connections of unknown ones; return whether there may be more events."""
        count, refused = self._handshakes.note(BATCH)
        for why in refused + self._handshakes.close_beyond(MOST_UNKNOWN):
            self._rejected_peers.refuse(why)
        return count > 0

    def close(self) -> None:
        # While events are unread beyond their limit, the I/O thread waits and holds the lock of the monitor.
        self._handshakes.note(2 * UNREAD_EVENTS)
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close()
        self._guard.close()


class DialledConnection:
    """One connection to the listener of another host. It does not reconnect: `HostLink` dials a new one."""

    def __init__(self, context: Context, prefix: str, keys: KeyPair, rejected_peers: RejectedPeers) -> None:
        self._rejected_peers = rejected_peers
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger, self.socket.sndhwm, self.socket.maxmsgsize = LINGER_MS, 0, MOST_BYTES
        self.socket.reconnect_ivl = -1  # an automatic reconnect would hide lost messages
        self.socket.routing_id = secrets.token_bytes(8)
        self.socket.ipv6 = "[" in prefix
        authenticate(self.socket, keys)
        self.socket.connect(prefix.rstrip("/"))
        self.connection = GatewayConnection(self.socket)

    def read(self) -> Iterator[Received]:
        """Yield the received messages, at most `BATCH`."""
        return _read(self.socket, self._rejected_peers)

    def close(self, *, linger: bool = False) -> None:
        self.socket.close(None if linger else 0)


def _read(socket: zmq.Socket[bytes], rejected_peers: RejectedPeers) -> Iterator[Received]:
    has_many_peers = socket.type == zmq.ROUTER
    for _ in range(BATCH):
        try:
            parts = socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return
        routing_id = parts.pop(0).bytes if has_many_peers else None
        try:
            if len(parts) != 1:
                raise RefusedMessage(f"a message of {len(parts)} parts on a link")
            message, data = unpack(parts[0].buffer)
        except RefusedMessage as error:
            rejected_peers.refuse(str(error))
        else:
            yield Received(message, data, GatewayConnection(socket, routing_id), parts[0])
