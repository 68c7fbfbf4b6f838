"""Nodes in processes, joined by ZeroMQ: one PULL inbox per node, one guarded PUSH socket per peer.

Sends go out from the calling thread, a thread hop less than through an I/O loop. PUSH and PULL never drop: at the
high-water mark the sender waits. On one host the sockets are files in a folder that only this user can enter; between
hosts they are TCP with CURVE, and a peer whose public key the run does not know is refused before a byte is read.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import zmq
import zmq.auth
from zmq.auth.thread import ThreadAuthenticator

from meshbook.runtime.config import Settings
from meshbook.runtime.transport import PeerGone, RunEnded
from meshbook.runtime.wire.frames import Buffer
from meshbook.runtime.wire.messages import Address

RECONNECT_MS = 5  # peers are often addressed before they have bound their inbox; the default of 100 would be felt
LINGER_MS = 300  # what is queued at close gets this long to leave
IPC = "ipc://"
DOOR = "inproc://door"  # each node has a context of its own
BLOCKED_POLL_MS = 50  # how often a sender at the high-water mark looks whether its peer has been given up


@dataclass(frozen=True)
class KeyPair:
    """A CURVE key pair (Z85 text, as `zmq.curve_keypair` makes it)."""

    public: bytes
    secret: bytes

    @classmethod
    def generate(cls) -> KeyPair:
        return cls(*zmq.curve_keypair())


def ipc_url(folder: Path, node: str) -> str:
    """Where the node of this name is reached on one host. ValueError where the path is too long for a socket."""
    path = str(folder / node)
    if len(path.encode()) > 107:
        raise ValueError(
            f"{path} is over 107 bytes, the limit of a Unix socket: set MESHBOOK_RUNTIME_DIR to a shorter folder"
        )
    return IPC + path


class ZmqTransport:
    """The `Transport` over ZeroMQ. For TCP, `keys` are this node's and `trusted` the public keys that may connect."""

    def __init__(
        self,
        node: str,
        url: str,
        settings: Settings,
        *,
        keys: KeyPair | None = None,
        trusted: Collection[bytes] = (),
    ) -> None:
        self._settings = settings
        self._keys = keys
        self._context = zmq.Context()
        self._authenticator = self._authenticate(trusted) if keys else None
        self._inbox = self._bind(url, node)
        bound = self._inbox.getsockopt_string(zmq.LAST_ENDPOINT)
        self.address = Address(node, bound, keys.public if keys else b"")
        self.greeting: Buffer = b""
        self._token = secrets.token_bytes(16)  # what this node sends itself to make `receive` return
        self._knocking = threading.RLock()  # guards _door; a signal handler may knock while its thread knocks
        self._door = self._connect_door()
        self._peers: dict[str, _Peer] = {}
        self._peers_lock = threading.Lock()  # guards _peers and _closed: one socket per peer, none after close
        self._closed = False
        self._ended = False  # of the receiving thread: the inbox has been read to its end

    def _authenticate(self, trusted: Collection[bytes]) -> ThreadAuthenticator:
        authenticator = ThreadAuthenticator(self._context)
        authenticator.start()
        authenticator.configure_curve_callback(credentials_provider=_Known(frozenset(trusted)))
        return authenticator

    def _bind(self, url: str, node: str) -> zmq.Socket[bytes]:
        if url.startswith("tcp://") and self._keys is None:
            raise ValueError(f"{url}: a TCP inbox needs CURVE keys")
        inbox = self._context.socket(zmq.PULL)
        inbox.rcvhwm = self._settings.high_water_mark
        inbox.maxmsgsize = self._settings.max_message_bytes
        if self._keys is not None:
            inbox.curve_server = True
            inbox.curve_publickey, inbox.curve_secretkey = self._keys.public, self._keys.secret
            _set_heartbeat(inbox)
        try:
            inbox.bind(url)
        except zmq.ZMQError as error:
            inbox.close(0)
            raise OSError(f"node {node} cannot listen on {url}: {error}") from error
        return inbox

    def send(self, to: Address, frame: Buffer) -> None:
        peer = self._peers.get(to.node) or self._connect(to)
        peer.send(frame)

    def _connect(self, to: Address) -> _Peer:
        with self._peers_lock:
            if self._closed:
                raise PeerGone("this node is closed")
            if (peer := self._peers.get(to.node)) is None:
                _check_run(to)
                peer = _Peer(self._context, to, self._settings, self._keys)
                peer.send(self.greeting)  # before any other thread can see the socket
                self._peers[to.node] = peer
            return peer

    def receive(self) -> Buffer | None:
        return self._receive(0)

    def receive_nowait(self) -> Buffer | None:
        try:
            return self._receive(zmq.NOBLOCK)
        except zmq.Again:
            return b""

    def _receive(self, flags: int) -> Buffer | None:
        if self._ended:
            return None
        frame = self._inbox.recv(flags, copy=False)
        if len(frame) == len(self._token) and frame.bytes == self._token:
            return self._knocked()
        return frame.buffer

    def _knocked(self) -> Buffer | None:
        if not self._closed:
            return b""
        self._ended = True
        self._inbox.close(0)
        return None

    def knock(self) -> None:
        # With the pipe full of knocks nobody needs another one, and after `close` nobody listens.
        with self._knocking, contextlib.suppress(zmq.ZMQError):
            self._door.send(self._token, zmq.NOBLOCK)

    def forget(self, node: str) -> None:
        with self._peers_lock:
            peer = self._peers.get(node)
        if peer is not None:
            peer.abandon()

    def remember(self, node: str) -> None:
        with self._peers_lock:
            if (peer := self._peers.get(node)) is not None and peer.is_gone:
                del self._peers[node]  # the next message connects, and greets, anew

    def close(self) -> None:
        with self._peers_lock:
            if self._closed:
                return
            self._closed = True
            peers = list(self._peers.values())
        for peer in peers:
            peer.close()
        self.knock()
        with self._knocking:
            self._door.close()
        if self._authenticator is not None:
            self._authenticator.stop()

    def _connect_door(self) -> zmq.Socket[bytes]:
        door = self._context.socket(zmq.PUSH)
        door.linger = LINGER_MS
        self._inbox.bind(DOOR)
        door.connect(DOOR)
        return door

    def terminate(self) -> None:
        """Wait until queued frames left or lingered out; call after `receive` returned None."""
        self._context.term()


def _check_run(to: Address) -> None:
    """RunEnded for a handle of a run that has ended: ZeroMQ would wait for its socket for ever."""
    if to.url.startswith(IPC) and not Path(to.url.removeprefix(IPC)).parent.is_dir():
        raise RunEnded("its run has ended: its controller ended, or called close_session()")


class _Known:
    """The public keys that may connect, in the form pyzmq's authenticator asks for (keys are Z85 text)."""

    def __init__(self, trusted: frozenset[bytes]) -> None:
        self._trusted = trusted

    def callback(self, domain: str, key: bytes) -> bool:
        del domain
        return key in self._trusted


class _Peer:
    """One outbound socket. ZeroMQ sockets may change threads only under a full fence: hence the lock."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], to: Address, settings: Settings, keys: KeyPair | None):
        self._node = to.node
        self._lock = threading.Lock()  # guards _socket
        self._gone = False
        self._socket = context.socket(zmq.PUSH)
        self._socket.sndhwm = settings.high_water_mark
        self._socket.reconnect_ivl = RECONNECT_MS
        self._socket.linger = LINGER_MS
        if to.key:
            _set_keys(self._socket, to, keys)
            _set_heartbeat(self._socket)
        self._socket.connect(to.url)

    def send(self, frame: Buffer) -> None:
        with self._lock:
            while not self._gone:
                try:
                    # A large frame is handed over as it is: it was made for this message alone.
                    self._socket.send(frame, zmq.NOBLOCK, copy=len(frame) < 65536)
                    return
                except zmq.Again:
                    self._socket.poll(BLOCKED_POLL_MS, zmq.POLLOUT)
        raise PeerGone(f"node {self._node} was given up")

    @property
    def is_gone(self) -> bool:
        return self._gone

    def abandon(self) -> None:
        self._gone = True  # a sender that waits under the lock sees it and leaves
        with self._lock:
            self._socket.close(0)

    def close(self) -> None:
        with self._lock:
            self._gone = True
            self._socket.close()


def _set_keys(socket: zmq.Socket[bytes], to: Address, keys: KeyPair | None) -> None:
    if keys is None:
        raise PeerGone(f"node {to.node} at {to.url} wants CURVE, and this node has no keys")
    socket.curve_publickey, socket.curve_secretkey = keys.public, keys.secret
    socket.curve_serverkey = to.key


def _set_heartbeat(socket: zmq.Socket[bytes]) -> None:
    """Notice a cut link within about a second; ZeroMQ reconnects by itself and what is queued resumes in order."""
    socket.heartbeat_ivl = 300
    socket.heartbeat_timeout = 1000
