"""Nodes in processes, joined by ZeroMQ: one PULL inbox per node, one guarded PUSH socket per peer.

Sends go out from the calling thread, a thread hop less than through an I/O loop. PUSH and PULL never drop: at the
high-water mark the sender waits. The sockets are files in a folder that only this user can enter. What is for another
host goes to the gateway of this one, by the same kind of socket (see `home`).
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq

from meshbook.runtime.config import Settings
from meshbook.runtime.transport import PeerGone, RunEnded
from meshbook.runtime.transport.home import GATEWAY, IPC, Home, LaneRequest, host_of
from meshbook.runtime.wire.frames import Buffer
from meshbook.runtime.wire.messages import Address

RECONNECT_MS = 5  # peers are often addressed before they have bound their inbox; the default of 100 would be felt
LINGER_MS = 300  # what is queued at close gets this long to leave
DOOR = "inproc://door"  # each node has a context of its own
RUN_ENDED = "its run has ended: its controller ended, or called close_session()"
OTHER_RUN = "its run is not this one: it was detached, or has another controller"
BLOCKED_POLL_MS = 50  # how often a sender at the high-water mark looks whether its peer has been given up


class ZmqTransport:
    """The `Transport` over ZeroMQ, of the node of this name on this host."""

    def __init__(self, node: str, home: Home, settings: Settings) -> None:
        self.address = home.address(node)
        self.greeting: Buffer = b""
        self._home = home
        self._settings = settings
        self._context = zmq.Context()
        self._inbox = self._bind(home.socket(node))
        self._token = secrets.token_bytes(16)  # what this node sends itself to make `receive` return
        self._knocking = threading.RLock()  # guards _door; a signal handler may knock while its thread knocks
        self._door = self._connect_door()
        self._peers: dict[str, _Peer] = {}
        self._lives: dict[str, int] = {}  # of peers that were there before
        # Guards these, and _closed: one socket per peer, none after close. Garbage may be collected under it, and what
        # the user lets his finalizers send goes out from the thread that has it: so here, and with a peer's own lock.
        self._peers_lock = threading.RLock()
        self._closed = False
        self._ended = False  # of the receiving thread: the inbox has been read to its end

    def _bind(self, url: str) -> zmq.Socket[bytes]:
        inbox = self._context.socket(zmq.PULL)
        inbox.rcvhwm = self._settings.high_water_mark
        inbox.maxmsgsize = self._settings.max_message_bytes
        try:
            inbox.bind(url)
        except zmq.ZMQError as error:
            inbox.close(0)
            raise OSError(f"node {self.address.node} cannot listen on {url}: {error}") from error
        return inbox

    def send(self, to: Address, frame: Buffer) -> None:
        peer = self._peers.get(to.node) or self._connect(to)
        peer.send(frame)

    def _connect(self, to: Address) -> _Peer:
        with self._peers_lock:
            if self._closed:
                raise PeerGone("this node is closed")
            if (peer := self._peers.get(to.node)) is None:
                peer = self._open(to)
                peer.send(self.greeting)  # before any other thread can see the socket
                self._peers[to.node] = peer
            return peer

    def _open(self, to: Address) -> _Peer:
        if not self._home.is_elsewhere(to):
            _check_run(to, self._home)
            return _Peer(self._context, to.node, self._home.nearest(to), self._settings)
        if not (self._home.folder / GATEWAY).exists():
            raise RunEnded(RUN_ENDED)
        request = LaneRequest(to, self._lives.get(to.node, 0), self.address)
        peer = _Peer(self._context, to.node, self._home.lane(request), self._settings)
        peer.ask_gateway(self._home.socket(GATEWAY), request)
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

    def remember(self, node: str, life: int) -> None:
        with self._peers_lock:
            self._lives[node] = life
            if (peer := self._peers.get(node)) is not None and (peer.is_gone or peer.is_of_former(life)):
                del self._peers[node]  # the next message connects, and greets, anew
                peer.abandon()

    def hold(self, to: Address, last: Buffer, keep: Callable[[Buffer], Buffer]) -> None:
        (self._peers.get(to.node) or self._connect(to)).hold(last, keep)

    def release(self, to: Address, *, anew: bool) -> None:
        if (peer := self._peers.get(to.node)) is not None:
            peer.release(self.greeting if anew else None)
        elif anew:
            self._connect(to)

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

    def _connect_door(self) -> zmq.Socket[bytes]:
        door = self._context.socket(zmq.PUSH)
        door.linger = LINGER_MS
        self._inbox.bind(DOOR)
        door.connect(DOOR)
        return door

    def terminate(self) -> None:
        """Wait until queued frames left or lingered out; call after `receive` returned None."""
        self._context.term()


def _check_run(to: Address, home: Home) -> None:
    """RunEnded for a handle of a run that has ended, or is another one: its sender would wait for ever."""
    if not to.url.startswith(IPC):
        return
    if not Path(to.url.removeprefix(IPC)).parent.is_dir():
        raise RunEnded(RUN_ENDED)
    if host_of(to) != home.prefix:
        raise RunEnded(OTHER_RUN)


class _Peer:
    """One outbound socket. ZeroMQ sockets may change threads only under a full fence: hence the lock."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], node: str, url: str, settings: Settings) -> None:
        self._context = context
        self._node = node
        self._lock = threading.RLock()  # guards _socket
        self._gone = False
        self._url = url
        self._most = settings.high_water_mark
        self._held: list[Buffer] | None = None  # what waits for another process to be this peer
        self._keep: Callable[[Buffer], Buffer] = lambda frame: frame
        self._socket = self._connect(url, self._most)
        self._asking: zmq.Socket[bytes] | None = None
        self._life: int | None = (
            None  # of the peer: what has left for it must not come to the next. On one host none has
        )

    def _connect(self, url: str, high_water_mark: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.PUSH)
        socket.sndhwm = high_water_mark
        socket.reconnect_ivl = RECONNECT_MS
        socket.linger = LINGER_MS
        socket.connect(url)
        return socket

    def ask_gateway(self, url: str, request: LaneRequest) -> None:
        """Let the gateway of this host bind the lane that this socket connects to."""
        self._life = request.life
        self._asking = self._connect(url, 1)  # stays open: closed, it would forget the request if the gateway is slow
        self._asking.send(msgspec.msgpack.encode(request))

    def send(self, frame: Buffer) -> None:
        with self._lock:
            if self._held is None:
                self._put(frame)
            else:
                self._held.append(self._keep(frame))

    def _put(self, frame: Buffer) -> None:
        while not self._gone:
            try:
                # A large frame is handed over as it is: it was made for this message alone.
                self._socket.send(frame, zmq.NOBLOCK, copy=len(frame) < 65536)
                return
            except zmq.Again:
                self._socket.poll(BLOCKED_POLL_MS, zmq.POLLOUT)
        raise PeerGone(f"node {self._node} was given up")

    def hold(self, last: Buffer, keep: Callable[[Buffer], Buffer]) -> None:
        with self._lock:
            self._put(last)
            self._keep = keep
            self._held = self._held or []

    def release(self, greeting: Buffer | None) -> None:
        if greeting is None and self._held is None:
            return  # without the lock: a sender may wait under it, and who receives must not
        with self._lock:
            held, self._held = self._held or [], None
            if greeting is not None and not self._gone:
                # Another socket: this one may not have noticed yet that its connection leads nowhere. What it still
                # has, of one that was not held, finds the new process by itself.
                self._close(None)
                self._socket = self._connect(self._url, self._most + len(held) + 1)
                self._put(greeting)
            for frame in held:
                self._put(frame)

    @property
    def is_gone(self) -> bool:
        return self._gone

    def is_of_former(self, life: int) -> bool:
        """Whether it leads to a life of the peer before this one."""
        return self._life is not None and self._life < life

    def abandon(self) -> None:
        self._leave(0)

    def close(self) -> None:
        self._leave(None)

    def _leave(self, linger: int | None) -> None:
        self._gone = True  # a sender that waits under the lock sees it and leaves
        with self._lock:
            self._close(linger)

    def _close(self, linger: int | None) -> None:
        self._socket.close(linger)
        if self._asking is not None:
            self._asking.close(linger)
