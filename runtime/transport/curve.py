"""CURVE: who may connect from other hosts, and the count of those who may not.

A run has one pair of keys, which its agents get through the launcher, never by argv. Whoever has it is of the run; of
anybody else nothing is read.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator

import msgspec
import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import recv_monitor_message

Socket = zmq.Socket[bytes]
_FAILURES: dict[int, str] = {
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "it does not speak as the peers of a run do",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "its key is not that of this run",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "it broke the handshake off",
}
_GARBAGE = "it came without a handshake"
_EVENTS = functools.reduce(
    operator.or_, [zmq.EVENT_ACCEPTED, zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_DISCONNECTED, *_FAILURES]
)


class KeyPair(msgspec.Struct, frozen=True):
    """A CURVE key pair (Z85 text, as `zmq.curve_keypair` makes it)."""

    public: bytes
    secret: bytes

    @classmethod
    def generate(cls) -> KeyPair:
        return cls(*zmq.curve_keypair())


def guard(socket: Socket, keys: KeyPair) -> None:
    """Let only those connect who have the keys of the run. Before `bind`, with a `Guard` in the same context."""
    socket.curve_server = True
    socket.curve_publickey, socket.curve_secretkey = keys.public, keys.secret


def authenticate(socket: Socket, keys: KeyPair) -> None:
    """Connect as one of the run, and only to one of the run."""
    socket.curve_publickey, socket.curve_secretkey = keys.public, keys.secret
    socket.curve_serverkey = keys.public


class Guard:
    """Checks the keys of those who connect to guarded sockets of this context, on a thread of its own."""

    def __init__(self, context: zmq.Context[Socket], keys: KeyPair) -> None:
        self._keys = keys
        self._authenticator = ThreadAuthenticator(context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(credentials_provider=self)

    def callback(self, domain: str, key: bytes) -> bool:
        """Asked by the authenticator; by this name."""
        del domain
        return key == self._keys.public

    def close(self) -> None:
        self._authenticator.stop()


class Handshakes:
    """Who tries to connect to a guarded socket, and why some are not let in."""

    def __init__(self, socket: Socket) -> None:
        self.monitor: Socket = socket.get_monitor_socket(_EVENTS)
        self._begun: list[int] = []  # descriptors of connections that are at their handshake

    def failures(self) -> Iterator[str]:
        """Why each of those was refused that have been since."""
        while self.monitor.poll(0):
            happened = recv_monitor_message(self.monitor)
            event, descriptor = happened["event"], happened["value"]
            if event == zmq.EVENT_ACCEPTED:
                self._begun.append(descriptor)
            elif event != zmq.EVENT_DISCONNECTED:
                # Which one it was is not told. Of two at a time the other may be taken for it: the sum is the same.
                del self._begun[:1]
                if event in _FAILURES:
                    yield _FAILURES[event]
            elif descriptor in self._begun:
                self._begun.remove(descriptor)
                yield _GARBAGE
