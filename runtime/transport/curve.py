"""CURVE authentication of peers on other hosts, and detection of failed handshakes.

A run has one key pair. The launcher passes it to the agents, never in argv. A peer with the keys belongs to the run;
nothing is read from any other peer.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import socket
import struct
from collections import OrderedDict, deque

import msgspec
import zmq
from zmq.auth.thread import ThreadAuthenticator

Socket = zmq.Socket[bytes]
_FAILURES: dict[int, str] = {
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "its handshake violates the protocol",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "its key is not the key of this run",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "it aborted the handshake",
}
_EVENT = struct.Struct("=HI")  # its kind; a descriptor or an error (zmq_socket_monitor(3))
_GARBAGE = "it sent no handshake"
_EVENTS = functools.reduce(
    operator.or_, [zmq.EVENT_ACCEPTED, zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_DISCONNECTED, *_FAILURES]
)


class KeyPair(msgspec.Struct, frozen=True):
    """A CURVE key pair (Z85 text, as returned by `zmq.curve_keypair`)."""

    public: bytes
    secret: bytes

    @classmethod
    def generate(cls) -> KeyPair:
        return cls(*zmq.curve_keypair())


def guard(socket: Socket, keys: KeyPair) -> None:
    """Accept only peers with the keys of the run. Call before `bind`; needs a `ZapHandler` in the same context."""
    socket.curve_server = True
    socket.curve_publickey, socket.curve_secretkey = keys.public, keys.secret


def authenticate(socket: Socket, keys: KeyPair) -> None:
    """Set the keys of the run on a socket, so that it connects only to sockets with the same keys."""
    socket.curve_publickey, socket.curve_secretkey = keys.public, keys.secret
    socket.curve_serverkey = keys.public


class ZapHandler:
    """Checks the keys of peers that connect to guarded sockets of this context, on its own thread."""

    def __init__(self, context: zmq.Context[Socket], keys: KeyPair) -> None:
        self._keys = keys
        self._authenticator = ThreadAuthenticator(context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(credentials_provider=self)

    def callback(self, domain: str, key: bytes) -> bool:
        """Return whether a key is valid. The authenticator requires this name."""
        del domain
        return key == self._keys.public

    def close(self) -> None:
        self._authenticator.stop()


class Handshakes:
    """Monitors the connections to a guarded socket until they have shown the keys; closes the oldest of too many.

    A connection has shown the keys when a message arrives on it (`admit`): the event of a handshake that succeeded does
    not name its connection.
    """

    def __init__(self, socket: Socket) -> None:
        self.monitor: Socket = socket.get_monitor_socket(_EVENTS)
        self._socket = socket
        # Descriptors of connections that have not shown the keys, the oldest first. An unknown peer may open thousands.
        self._unknown: OrderedDict[int, None] = OrderedDict()
        self._closing: set[int] = set()  # of those that were closed here, until ZeroMQ has noticed
        self._reasons: deque[str] = deque()  # of handshakes that failed, until their connections end
        # Handshakes on connections that are among the unknown ones, less those on admitted ones whose event is unread.
        self._succeeded = 0

    def note(self, most: int) -> tuple[int, list[str]]:
        """Handle at most `most` events; return their number, and the reasons of the connections that were refused."""
        refused: list[str] = []
        for count in range(most):
            try:
                event, descriptor = _EVENT.unpack(self.monitor.recv_multipart(zmq.NOBLOCK)[0])
            except zmq.Again:
                return count, refused
            if event == zmq.EVENT_ACCEPTED:
                self._unknown[descriptor] = None
            elif event == zmq.EVENT_DISCONNECTED:
                refused += self._note_end(descriptor)
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._succeeded += 1
            else:
                self._reasons.append(_FAILURES[event])
        return most, refused

    def _note_end(self, descriptor: int) -> list[str]:
        """Return the reason if a connection was refused. Concurrent ones may swap reasons; their number is right."""
        if descriptor in self._closing:
            self._closing.remove(descriptor)
            if self._reasons:
                self._reasons.popleft()
            return []
        if descriptor not in self._unknown:
            return []
        del self._unknown[descriptor]
        if self._reasons:
            return [self._reasons.popleft()]
        if self._succeeded > 0:
            self._succeeded -= 1
            return []
        return [_GARBAGE]

    def admit(self, descriptor: int) -> bool:
        """Note that a connection has shown the keys; return False if it is not among the unknown ones."""
        if descriptor not in self._unknown:
            return False
        del self._unknown[descriptor]
        self._succeeded -= 1
        return True

    def close_beyond(self, most: int) -> list[str]:
        """Close the oldest connections that have not shown the keys until `most` remain; return the reasons.

        The oldest, so that a peer with the keys is admitted at once while unknown peers connect: its handshake takes
        milliseconds.
        """
        refused: list[str] = []
        while len(self._unknown) > most:
            descriptor, _ = self._unknown.popitem(last=False)
            self._closing.add(descriptor)
            self._shut_down(descriptor)
            refused.append(f"more than {most} connections were in their handshake")
        return refused

    def _shut_down(self, descriptor: int) -> None:
        """Shut a connection down. ZeroMQ cannot, and has no limit on their number.

        ZeroMQ may have closed the descriptor on its own thread meanwhile, and the system may have reused the number.
        A duplicate descriptor cannot change like that: so check its port first. At worst this shuts down another
        connection to the socket, which that peer replaces without losing messages.
        """
        port = self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2]
        with (
            contextlib.suppress(OSError),
            socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM) as connection,
        ):
            at = connection.getsockname()
            if isinstance(at, tuple) and str(at[1]) == port:
                connection.shutdown(socket.SHUT_RDWR)
