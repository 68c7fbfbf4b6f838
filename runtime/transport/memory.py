"""Transport between nodes of one process, through queues: for tests of a whole mesh with real threads and frames."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from meshbook.runtime.threads import HighWaterMark
from meshbook.runtime.transport import Accept, PeerGone
from meshbook.runtime.transport.io_loop import IoLoop
from meshbook.runtime.wire.frames import Buffer
from meshbook.runtime.wire.messages import Address

logger = logging.getLogger(__name__)

SCHEME: Final = "memory://"


class Switchboard:
    """The inboxes of one process, by node."""

    def __init__(self) -> None:
        self._inboxes: dict[str, FrameQueue] = {}

    def transport(self, node: str, high_water_mark: int = 10_000) -> MemoryTransport:
        """Return the transport of a new node with this name."""
        inbox = self._inboxes[node] = FrameQueue(high_water_mark)
        return MemoryTransport(node, self, inbox)

    def find(self, node: str) -> FrameQueue:
        """Return the inbox of a node. Raises PeerGone if there is none."""
        try:
            return self._inboxes[node]
        except KeyError:
            raise PeerGone(f"no node {node} in this process") from None

    def remove(self, node: str) -> None:
        """Forget the inbox of a node that has ended."""
        self._inboxes.pop(node, None)

    def renew(self, node: str) -> None:
        """Prepare for the restart of a node."""


class FrameQueue:
    """The queued frames of one node. Its I/O thread takes them out."""

    def __init__(self, limit: int) -> None:
        self._frames: deque[Buffer] = deque()
        self._mark = HighWaterMark(self._frames, limit)
        self._loop: IoLoop | None = None
        self.accept: Accept = _ignore
        self.has_ended = False

    def put(self, frame: Buffer, is_over: Callable[[], bool]) -> None:
        """Add a frame, then wait while there are too many, or until `is_over`. Does nothing after `end`."""
        if self.has_ended:
            return
        self._frames.append(frame)
        if self._loop is not None:
            self._loop.call_soon(self._drain)
        if len(self._frames) > self._mark.limit:
            self._mark.wait(lambda: self.has_ended or is_over())

    def start(self, loop: IoLoop) -> None:
        """Start to pass the frames to `accept`, on this loop."""
        self._loop = loop
        loop.call_soon(self._drain)

    def _drain(self) -> None:
        for _ in range(len(self._frames)):
            try:
                self.accept(self._frames.popleft())
            except Exception:  # one failed message must not stop the others
                logger.exception("a message could not be handled")
            self._mark.notify()

    def wake_senders(self) -> None:
        """Wake the waiting senders, so that they check again."""
        self._mark.wake_all()

    def end(self) -> None:
        """Drop all frames and accept no more."""
        self.has_ended = True
        self._frames.clear()
        self._mark.wake_all()


class MemoryTransport:
    """The `Transport` over a switchboard."""

    def __init__(self, node: str, board: Switchboard, inbox: FrameQueue) -> None:
        self.address = Address(node, SCHEME + node)
        self.greeting: Buffer = b""
        self.loop = IoLoop()
        self._board = board
        self._inbox = inbox
        self._greeted: set[str] = set()
        self._gone: set[str] = set()
        self._closed = False
        self._held: dict[str, list[Buffer]] = {}

    @property
    def accept(self) -> Accept:
        return self._inbox.accept

    @accept.setter
    def accept(self, accept: Accept) -> None:
        self._inbox.accept = accept

    def start(self) -> None:
        self._inbox.start(self.loop)
        self.loop.start()

    def send(self, to: Address, frame: Buffer) -> None:
        if (held := self._held.get(to.node)) is not None:
            held.append(frame)
        else:
            self._send(to, frame)

    send_soon = send

    def have_left(self, to: Address) -> bool:
        return to.node not in self._held

    def _send(self, to: Address, frame: Buffer) -> None:
        node = to.node
        inbox = self._board.find(node)
        if self._is_gone(node):
            raise PeerGone(f"node {node} was removed, or this node is closed")
        if node not in self._greeted:
            # Two threads may both greet: a duplicate Hello is harmless, a missing one is not.
            inbox.put(self.greeting, lambda: self._is_gone(node))
            self._greeted.add(node)
        inbox.put(frame, lambda: self._is_gone(node))
        if self._is_gone(node):
            raise PeerGone(f"node {node} was removed, or this node is closed")

    def _is_gone(self, node: str) -> bool:
        return self._closed or node in self._gone

    def forget(self, node: str) -> None:
        self._gone.add(node)
        try:
            self._board.find(node).wake_senders()
        except PeerGone:
            return

    def remember(self, node: str, incarnation: int) -> None:
        self._board.renew(node)
        if node in self._gone:
            self._greeted.discard(node)  # the new process has not received a greeting
            self._gone.discard(node)

    def hold(self, to: Address, last: Buffer, keep: Callable[[Buffer], Buffer]) -> None:
        self._held[to.node] = []
        self._send(to, last)

    def release(self, to: Address, *, anew: bool, incarnation: int = 0) -> None:
        held = self._held.pop(to.node, [])
        if anew:
            self._greeted.discard(to.node)
        for frame in ((self.greeting,) if anew else ()) + tuple(held):
            self._send(to, frame)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._board.remove(self.address.node)
        self._inbox.end()
        for inbox in list(self._board._inboxes.values()):
            inbox.wake_senders()
        self.loop.close()


def _ignore(frame: Buffer) -> None:
    return None
