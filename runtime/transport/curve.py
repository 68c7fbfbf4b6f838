"""CURVE authentication of peers on other hosts, and detection of failed handshakes.

A run has one key pair. The launcher passes it to the agents, never in argv. A peer with the keys belongs to the run;
nothing is read from any other peer.
"""

from __future__ import annotations

import functools
import operator
import struct
from collections import OrderedDict

import msgspec
import zmq
from zmq.auth.thread import ThreadAuthenticator

Socket = zmq.Socket[bytes]
_FAILURES: dict[int, str] = {
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "it does not speak as the peers of a run do",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "its key is not that of this run",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "it broke the handshake off",
}
_EVENT = struct.Struct("=HI")  # its kind; a descriptor or an error (zmq_socket_monitor(3))
_GARBAGE = "it came without a handshake"
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
    """Accept only peers with the keys of the run. Call before `bind`; needs a `Guard` in the same context."""
    socket.curve_server = True
    socket.curve_publickey, socket.curve_secretkey = keys.public, keys.secret


def authenticate(socket: Socket, keys: KeyPair) -> None:
    """Set the keys of the run on a socket, so that it connects only to sockets with the same keys."""
    socket.curve_publickey, socket.curve_secretkey = keys.public, keys.secret
    socket.curve_serverkey = keys.public


class Guard:
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
    """Monitors the handshakes on a guarded socket."""

    def __init__(self, socket: Socket) -> None:
        self.monitor: Socket = socket.get_monitor_socket(_EVENTS)
        # Descriptors of connections in their handshake, the oldest first. A stranger may open thousands.
        self._begun: OrderedDict[int, None] = OrderedDict()

    def note(self, most: int) -> tuple[int, list[str]]:
        """Handle so many events at most; return their number, and the reasons of the handshakes that failed."""
        failures: list[str] = []
        for count in range(most):
            try:
                event, descriptor = _EVENT.unpack(self.monitor.recv_multipart(zmq.NOBLOCK)[0])
            except zmq.Again:
                return count, failures
            if event == zmq.EVENT_ACCEPTED:
                self._begun[descriptor] = None
            elif event != zmq.EVENT_DISCONNECTED:
                # The event does not name the connection. Of two concurrent ones this may drop the wrong one, but the
                # count stays right.
                if self._begun:
                    self._begun.popitem(last=False)
                if event in _FAILURES:
                    failures.append(_FAILURES[event])
            elif descriptor in self._begun:
                del self._begun[descriptor]
                failures.append(_GARBAGE)
        return most, failures
