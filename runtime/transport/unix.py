"""Transport between nodes of one host, through AF_UNIX stream sockets in a folder that only this user can enter.

Each node listens at its own socket. To send, a node connects to the socket of the receiver; each connection carries
data in one direction. The bytes on it are packets:

    length (4 bytes) | one frame                                       small frames, one after the other
    length with its top bit set | number, total length | part          a large frame, in several packets

**Sending takes no lock.** Linux writes up to 32 KiB into a stream socket either completely or not at all
(`unix_stream_sendmsg` allocates one buffer), and packets are no longer than that. So several threads may send at once,
and so may a finalizer or a signal handler that interrupts a send. A thread sends directly while nothing is queued for
the peer. Otherwise it appends to the queue, which the I/O thread sends: this keeps the order of each thread's frames.
Only the I/O thread connects, empties queues, reads and closes.

A frame for a node of another host goes to the gateway of this host, through a connection of the same kind whose first
frame is a `LaneRequest` (see `home`).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import logging
import os
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from meshbook.runtime.clock import monotonic
from meshbook.runtime.config import Settings
from meshbook.runtime.threads import HighWaterMark, Latch
from meshbook.runtime.transport import Accept, PeerGone, RunEnded
from meshbook.runtime.transport.home import GATEWAY, UNIX, Home, LaneRequest, host_of
from meshbook.runtime.transport.io_loop import IN, OUT, IoLoop
from meshbook.runtime.wire.frames import Buffer
from meshbook.runtime.wire.messages import Address

logger = logging.getLogger(__name__)

PACKET_BYTES: Final = 32 << 10
FIRST_RETRY = 0.002  # seconds; a peer is often addressed before it listens
RETRY_SHARE = 0.1  # the pause until the next try, as a fraction of the time since the first one
LONGEST_RETRY = 0.5
LINGER_SECONDS = 0.3  # time that `close` waits for queued frames to be sent
ACCEPT_PAUSE = 0.1  # seconds until the next `accept` when no descriptor is left
RUN_ENDED = "its run has ended: its controller ended, or called close_session()"
OTHER_RUN = "it belongs to another run: it was detached, or has another controller"

_LENGTH = struct.Struct("<I")
_PART = struct.Struct("<IIQ")  # length, number, total length
_PART_OF = struct.Struct("<IQ")
_TOP_BIT: Final = 1 << 31
HOLD: Final = bytearray()  # a mark in a queue: later frames wait until another process is the peer
_MOST: Final = PACKET_BYTES - _LENGTH.size  # largest frame that fits into one packet
_SENDS_WHOLE_PACKETS: Final = sys.platform == "linux"


class StreamSocket(socket.socket):
    """A stream socket that is closed with its last reference.

    A thread may be inside `send` when the I/O thread drops the connection. If the descriptor were closed then, it could
    belong to another file by the time the system call begins.
    """

    __slots__ = ()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # it was never made: no descriptor was left
            self.close()


class PeerConnection:
    """The sending connection to one peer. `send` is for any thread, all else for the I/O thread."""

    def __init__(
        self,
        loop: IoLoop,
        node: str,
        path: str,
        *,
        limit: int,
        first: Iterable[Buffer] = (),
        is_lane: bool = False,
        incarnation: int = 0,
    ) -> None:
        self.is_lane = is_lane  # leads to this incarnation of a node of another host
        self.incarnation = incarnation
        self.is_gone = False
        # The unsent frames; never empty before there is a connection.
        self.queue: deque[Buffer] = deque(first)
        self.on_drained: Callable[[], object] = _nothing  # called when the queue has become empty
        self._loop = loop
        self._node = node
        self._path = path
        self._mark = HighWaterMark(self.queue, limit)
        self._flushes = 0  # how often `flush` has begun
        self._requested = -1  # that number at the last request of a `flush`
        self._socket: StreamSocket | None = None
        self._waits_for_room = False  # the descriptor is registered
        self._packet: Buffer = b""  # the rest of the current packet
        self._completes = 0  # queued frames that are complete once that packet is sent
        self._position = 0  # bytes of a large frame, the first of the queue, that are already in packets
        self._numbers = itertools.count(1)
        self._number = 0  # number of that frame
        self._first_try = 0.0
        self._is_retrying = False  # `_retry` is about to run
        self._is_held = False
        self._keep: Callable[[Buffer], Buffer] = lambda frame: frame  # converts a held frame
        self._kept = 0  # converted frames behind the mark

    # -- any thread -----------------------------------------------------------------------

    def send(self, frame: Buffer, *, soon: bool = False) -> None:
        """Send a frame, or queue it if that would block. With `soon`, leave it to the I/O thread in any case."""
        if self.is_gone:
            raise PeerGone(f"node {self._node} was removed")
        if not (soon or self.queue) and _SENDS_WHOLE_PACKETS and (length := len(frame)) <= _MOST:
            try:
                sent = self._socket.send(b"".join((_LENGTH.pack(length), frame)))  # type: ignore[union-attr]
                if sent == length + _LENGTH.size:
                    return
                self._loop.call_soon(self._break)
                raise PeerGone(f"this system sent {sent} of {length + _LENGTH.size} bytes to node {self._node}")
            except (OSError, AttributeError) as error:
                if isinstance(error, PeerGone):
                    raise
                # The socket is full, the peer has closed it, or the connection is held: the I/O thread finds out.
        self.queue.append(frame)
        # One request for all frames that are queued until `flush` begins. It is noted only now, as a Ctrl-C may stop
        # this thread at any point, and by its number, since `flush` may have begun meanwhile.
        if (flushes := self._flushes) != self._requested:
            self._loop.call_soon(self.flush)
            self._requested = flushes
        if len(self.queue) > self._mark.limit:
            self._mark.wait(lambda: self.is_gone or self._is_held)
            if self.is_gone:
                raise PeerGone(f"node {self._node} was removed")

    # -- the I/O thread ---------------------------------------------------------------------

    def flush(self) -> None:
        """Send queued frames until the socket is full."""
        self._flushes += 1  # before the look at the queue: a frame that comes later needs a request of its own
        if not self.queue or self._waits_for_room or self._is_retrying or self.is_gone:
            return
        if self._socket is None and not self._connect():
            return
        try:
            self._send_all()
        except BlockingIOError:
            self._waits_for_room = True
            self._loop.register(self._descriptor, OUT, self._on_room)
        except OSError:
            self._drop()  # the peer has ended; its agent reports that
        self._mark.notify()
        if not self.queue:
            self.on_drained()

    def _send_all(self) -> None:
        assert self._socket is not None
        queue, send = self.queue, self._socket.send
        while queue:
            if not self._packet:
                if queue[0] is HOLD:
                    return self._keep_all()
                self._packet = self._make_packet()
            sent = send(self._packet)
            self._packet = self._packet[sent:] if sent < len(self._packet) else b""
            if not self._packet:
                # Only now: other threads send directly once the queue is empty.
                for _ in range(self._completes):
                    queue.popleft()
        return None

    def _make_packet(self) -> bytes:
        self._completes = 0
        queue, pack = self.queue, _LENGTH.pack
        if len(queue[0]) > _MOST:
            return self._make_part(queue[0])
        parts: list[Buffer] = []
        size = 0
        for frame in itertools.islice(queue.copy(), PACKET_BYTES // _LENGTH.size):
            length = len(frame)
            size += length + _LENGTH.size
            if size > PACKET_BYTES or frame is HOLD:
                break
            parts += (pack(length), frame)
        self._completes = len(parts) // 2
        return b"".join(parts)

    def _make_part(self, frame: Buffer) -> bytes:
        if not self._position:
            self._number = next(self._numbers) & 0xFFFFFFFF
        part = memoryview(frame)[self._position : self._position + PACKET_BYTES - _PART.size]
        self._position += len(part)
        self._completes = int(self._position == len(frame))
        if self._completes:
            self._position = 0
        length = (len(part) + _PART.size - _LENGTH.size) | _TOP_BIT
        return b"".join((_PART.pack(length, self._number, len(frame)), part))

    def _connect(self) -> bool:
        try:
            made = StreamSocket(socket.AF_UNIX, socket.SOCK_STREAM)
            made.setblocking(False)
            made.connect(self._path)
        except OSError as error:  # the peer does not listen yet, or its backlog is full
            now = monotonic()
            if not self._first_try:
                self._first_try = now
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    logger.warning("messages to node %s wait for a free descriptor: raise `ulimit -n`", self._node)
            pause = min(FIRST_RETRY + RETRY_SHARE * (now - self._first_try), LONGEST_RETRY)
            self._is_retrying = True
            self._loop.call_later(pause, self._retry)
            return False
        self._socket, self._first_try = made, 0.0
        return True

    def _retry(self) -> None:
        self._is_retrying = False
        self.flush()

    @property
    def _descriptor(self) -> int:
        assert self._socket is not None
        return self._socket.fileno()

    def _on_room(self, flags: int) -> None:
        self._stop_waiting_for_room()
        self.flush()

    def _stop_waiting_for_room(self) -> None:
        if self._waits_for_room:
            self._loop.unregister(self._descriptor)
            self._waits_for_room = False

    def _drop(self) -> None:
        self.queue.clear()
        self._packet, self._position = b"", 0

    def _break(self) -> None:
        logger.critical("the connection to node %s broke within a frame; messages for it are lost", self._node)
        self.abandon()

    def abandon(self) -> None:
        """Remove the peer: drop the queue and wake the threads that wait for room."""
        self.is_gone = True
        self._disconnect()
        self._socket = None  # a thread that is still sending on it holds the last reference
        self._drop()
        self._mark.wake_all()
        self.on_drained()

    def leads_to_another(self, incarnation: int) -> bool:
        """Whether the connection does not lead to this incarnation of the peer.

        A lane names the incarnation that it leads to. Another connection leads to the process that has accepted it,
        which is the present one unless it has ended.
        """
        if self.is_gone or (self.is_lane and self.incarnation < incarnation):
            return True
        if self._socket is None:
            return False
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _disconnect(self) -> None:
        """Shut the connection down; a thread that is still sending on it fails, and queues its frame."""
        self._stop_waiting_for_room()
        if self._socket is not None:
            with contextlib.suppress(OSError):  # the peer has closed the connection
                self._socket.shutdown(socket.SHUT_RDWR)

    def hold(self, last: Buffer, keep: Callable[[Buffer], Buffer]) -> None:
        """Send the queued frames and this one, and hold all later ones until `reconnect`."""
        if not self._is_held:
            self._is_held, self._keep, self._kept = True, keep, 0
            self.queue.append(last)
            self.queue.append(HOLD)
            self.flush()
            self._mark.wake_all()

    def _keep_all(self) -> None:
        # A thread may have found the queue empty and be about to send directly: after this, its send fails.
        self._disconnect()
        for index, frame in enumerate(self.queue.copy()):
            if index > self._kept:
                self.queue[index] = self._keep(frame)
        self._kept = len(self.queue) - 1

    def reconnect(self, first: Sequence[Buffer], *, anew: bool) -> None:
        """Connect again if frames are held or the peer is another process (`anew`); send `first`, then the queue."""
        if not (anew or self._is_held) or self.is_gone:
            return
        self._disconnect()
        self._socket, self._packet, self._position = None, b"", 0
        self.queue.extendleft(reversed(first))
        if self._is_held:
            self._is_held = False
            self.queue.remove(HOLD)
        self.flush()

    def close_in_child(self) -> None:
        """Close the descriptor in a forked child; the parent still uses it."""
        self.is_gone = True
        if self._socket is not None and self._socket.fileno() >= 0:
            os.close(self._socket.detach())


class Listener:
    """Accepts the connections of other nodes and reads their frames. For the I/O thread."""

    def __init__(self, loop: IoLoop, path: Path, open_reader: Callable[[StreamSocket], Reader]) -> None:
        self.path = path
        self._loop = loop
        self._open_reader = open_reader
        self.readers: set[Reader] = set()
        self._socket = StreamSocket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        path.unlink(missing_ok=True)  # left by an earlier process of this name
        self._socket.bind(str(path))
        path.chmod(0o600)
        self._socket.listen(1024)
        loop.keep_open(self._socket.fileno())
        self._inode = path.stat().st_ino

    def start(self) -> None:
        """Start to accept connections."""
        self._loop.register(self._socket.fileno(), IN, self._on_connection)

    def _on_connection(self, flags: int) -> None:
        try:
            connected, _ = self._socket.accept()
        except BlockingIOError:
            return
        except OSError as error:  # no descriptor is left: the new peer waits, the others continue
            logger.warning("cannot accept a connection yet: %s", error)
            self._loop.unregister(self._socket.fileno())
            self._loop.call_later(ACCEPT_PAUSE, self._resume)
            return
        reader = self._open_reader(StreamSocket(fileno=connected.detach()))
        self.readers.add(reader)
        reader.when_closed.append(lambda: self.readers.discard(reader))
        reader.start()

    def _resume(self) -> None:
        if self._socket.fileno() >= 0:
            self.start()

    def close(self) -> None:
        """Stop listening and reading, and remove the socket's file unless another process has replaced it."""
        if self._socket.fileno() < 0:
            return
        self._loop.unregister(self._socket.fileno())
        self._loop.end_keeping(self._socket.fileno())
        self._socket.close()
        for reader in list(self.readers):
            reader.close()
        with contextlib.suppress(OSError):
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()

    def close_in_child(self) -> None:
        """Close the descriptors in a forked child; the parent still uses them."""
        for reader in self.readers:
            reader.close_in_child()
        if self._socket.fileno() >= 0:
            os.close(self._socket.detach())


class Reader:
    """One connection from another node: cuts its bytes into frames and passes them to `accept`. For the I/O thread."""

    def __init__(self, loop: IoLoop, connected: StreamSocket, most_bytes: int, accept: Accept) -> None:
        self._loop = loop
        self._socket = connected
        self._most_bytes = most_bytes
        self.accept = accept
        self._partial = b""  # the beginning of an incomplete packet
        self._large: dict[int, tuple[bytearray | None, int]] = {}  # incomplete large frames, and their received bytes
        self.when_closed: list[Callable[[], object]] = []
        self._is_paused = False
        connected.setblocking(False)

    def start(self) -> None:
        """Start to read."""
        self._loop.register(self._socket.fileno(), IN, self._on_bytes)

    def pause(self) -> None:
        """Stop reading until `resume`. Frames that were read together with the current one are still passed on."""
        if not self._is_paused and self._socket.fileno() >= 0:
            self._is_paused = True
            self._loop.unregister(self._socket.fileno())

    def resume(self) -> None:
        """Read again."""
        if self._is_paused and self._socket.fileno() >= 0:
            self._is_paused = False
            self._loop.register(self._socket.fileno(), IN, self._on_bytes)

    def _on_bytes(self, flags: int) -> None:
        try:
            count = self._socket.recv_into(self._loop.buffer)
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if not count:
            self.close()
            return
        data = self._loop.buffer[:count]
        if self._partial:
            data = memoryview(self._partial + data)
        try:
            end = self._cut(data)
        except ValueError as error:
            logger.warning("closed a connection that sent an invalid message: %s", error)
            self.close()
            return
        self._partial = bytes(data[end:])

    def _cut(self, data: memoryview) -> int:
        """Pass on the frames of all complete packets; return the start of the first incomplete one."""
        position, end, length_at = 0, len(data), _LENGTH.unpack_from
        while end - position >= 4:
            (length,) = length_at(data, position)
            start = position + 4
            is_part = length & _TOP_BIT
            if is_part:
                length ^= _TOP_BIT
            if length > PACKET_BYTES:
                raise ValueError(f"a packet of {length:,} bytes")
            stop = start + length
            if stop > end:
                break
            frame = (
                self._add_part(data, start, stop) if is_part else bytes(data[start:stop])
            )  # a copy, since the buffer is reused
            if frame is not None:
                try:
                    self.accept(frame)
                except Exception:  # one failed message must not stop the others
                    logger.exception("a message could not be handled")
            position = stop
        return position

    def _add_part(self, data: memoryview, start: int, stop: int) -> Buffer | None:
        """Add a part of a large frame; return the frame once it is complete, else None."""
        number, total = _PART_OF.unpack_from(data, start)
        if total > self._most_bytes:
            raise ValueError(f"a message of {total:,} bytes, over the limit of {self._most_bytes:,}")
        frame, position = self._large.pop(number, (None, 0))
        if frame is None:
            frame = bytearray(total)
        end = position + stop - start - _PART_OF.size
        if end > len(frame):
            raise ValueError("a part that is longer than the rest of its message")
        frame[position:end] = data[start + _PART_OF.size : stop]
        if end == len(frame):
            return frame
        self._large[number] = frame, end
        return None

    def close(self) -> None:
        """Close the connection."""
        if self._socket.fileno() >= 0:
            self.pause()
            self._socket.close()
            for callback in self.when_closed:
                callback()

    def close_in_child(self) -> None:
        """Close the descriptor in a forked child; the parent still uses it."""
        if self._socket.fileno() >= 0:
            os.close(self._socket.detach())


class UnixTransport:
    """The `Transport` of a node on this host. Raises OSError if it cannot listen there."""

    def __init__(self, node: str, home: Home, settings: Settings, loop: IoLoop | None = None) -> None:
        self.address = home.address(node)
        self.greeting: Buffer = b""
        self.loop = loop or IoLoop()
        self._accept: Accept = _ignore
        self._home = home
        self._settings = settings
        self._peers: dict[str, PeerConnection] = {}
        self._incarnations: dict[str, int] = {}  # of restarted peers
        self._closed = False
        try:
            self._listener = Listener(self.loop, home.path(node), self._open_reader)
        except OSError as error:
            self.loop.close()
            raise OSError(f"node {node} cannot listen on {home.path(node)}: {error}") from error
        self.loop.close_in_child.append(self._close_in_child)

    @property
    def _most_bytes(self) -> int:
        return self._settings.max_message_bytes

    @property
    def accept(self) -> Accept:
        return self._accept

    @accept.setter
    def accept(self, accept: Accept) -> None:
        self._accept = accept
        for reader in self._listener.readers.copy():
            reader.accept = accept

    def start(self) -> None:
        self.loop.start()
        self.loop.run(self._listener.start)

    def _open_reader(self, connected: StreamSocket) -> Reader:
        return Reader(self.loop, connected, self._most_bytes, self._accept)

    def send(self, to: Address, frame: Buffer) -> None:
        (self._peers.get(to.node) or self._open(to)).send(frame)

    def send_soon(self, to: Address, frame: Buffer) -> None:
        (self._peers.get(to.node) or self._open(to)).send(frame, soon=True)

    def have_left(self, to: Address) -> bool:
        peer = self._peers.get(to.node)
        return peer is None or not peer.queue

    def _open(self, to: Address) -> PeerConnection:
        if self._closed:
            raise PeerGone("this node is closed")
        incarnation, node, home = self._incarnations.get(to.node, 0), to.node, self._home
        path, first = home.path(GATEWAY), [self.greeting]
        if not home.is_elsewhere(to):
            _check_run(to, home)
            path = home.path_of(to)
        elif path.exists():
            first.insert(0, msgspec.msgpack.encode(LaneRequest(to, incarnation, self.address)))
        else:
            raise RunEnded(RUN_ENDED)
        limit = self._settings.high_water_mark
        is_lane = len(first) > 1
        made = PeerConnection(
            self.loop, node, str(path), limit=limit, first=first, is_lane=is_lane, incarnation=incarnation
        )
        self.loop.start()  # a process may send before it receives
        # Another thread may have made a peer meanwhile: then both use the same.
        return self._peers.setdefault(node, made)

    def forget(self, node: str) -> None:
        # Also without a connection: a thread that does not know yet of the end may be about to make one, and its frame
        # would reach the next process under this name.
        gone = PeerConnection(self.loop, node, "", limit=0)
        gone.is_gone = True
        self.loop.run(self._peers.setdefault(node, gone).abandon)

    def remember(self, node: str, incarnation: int) -> None:
        self._incarnations[node] = incarnation
        peer = self._peers.get(node)
        if peer is not None and self.loop.run(lambda: peer.leads_to_another(incarnation)):
            del self._peers[node]  # the next message connects anew
            self.loop.run(peer.abandon)

    def hold(self, to: Address, last: Buffer, keep: Callable[[Buffer], Buffer]) -> None:
        peer = self._peers.get(to.node) or self._open(to)
        self.loop.run(lambda: peer.hold(last, keep))

    def release(self, to: Address, *, anew: bool, incarnation: int = 0) -> None:
        if anew:
            self._incarnations[to.node] = incarnation
        peer = self._peers.get(to.node)
        if peer is None and anew:
            self.loop.run(self._open(to).flush)
        elif peer is not None:
            first = [self.greeting]
            if peer.is_lane:
                peer.incarnation = self._incarnations.get(to.node, 0)
                first.insert(0, msgspec.msgpack.encode(LaneRequest(to, peer.incarnation, self.address)))
            self.loop.run(functools.partial(peer.reconnect, first, anew=anew))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        drained = Latch()
        self.loop.run(lambda: self._begin_to_close(drained))
        if not self.loop.is_current:
            drained.wait(LINGER_SECONDS)
        self.loop.run(self._finish)
        self.loop.close()

    def _begin_to_close(self, drained: Latch) -> None:
        self._listener.close()
        full = [peer for peer in self._peers.values() if peer.queue]

        def look() -> None:
            if not any(peer.queue for peer in full):
                drained.release()

        for peer in full:
            peer.on_drained = look
            peer.flush()
        look()

    def _finish(self) -> None:
        for peer in self._peers.values():
            peer.abandon()

    def _close_in_child(self) -> None:
        self._closed = True
        self._listener.close_in_child()
        for peer in self._peers.values():
            peer.close_in_child()


def _check_run(to: Address, home: Home) -> None:
    """Raise RunEnded for the address of another run: a frame for it would wait forever."""
    if not to.url.startswith(UNIX):
        return
    if not Path(to.url.removeprefix(UNIX)).parent.is_dir():
        raise RunEnded(RUN_ENDED)
    if host_of(to) != home.prefix:
        raise RunEnded(OTHER_RUN)


def _nothing() -> None:
    return None


def _ignore(ignored: object) -> None:
    return None
