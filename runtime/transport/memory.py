"""Nodes of one process, joined by queues: a whole mesh for a test, with real threads and real frames."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final

from meshbook.runtime.transport import PeerGone
from meshbook.runtime.wire.frames import Buffer
from meshbook.runtime.wire.messages import Address

SCHEME: Final = "memory://"
BLOCKED_POLL = 0.05  # seconds after which a blocked sender looks whether its peer has been given up


class Switchboard:
    """The inboxes of one process, by node id."""

    def __init__(self) -> None:
        self._inboxes: dict[str, Inbox] = {}

    def transport(self, node: str, high_water_mark: int = 10_000) -> MemoryTransport:
        """A transport for a new node of this name."""
        inbox = self._inboxes[node] = Inbox(high_water_mark)
        return MemoryTransport(node, self, inbox)

    def find(self, node: str) -> Inbox:
        try:
            return self._inboxes[node]
        except KeyError:
            raise PeerGone(f"no node {node} in this process") from None

    def remove(self, node: str) -> None:
        self._inboxes.pop(node, None)

    def renew(self, node: str) -> None:
        """Be ready for a node that comes again."""


class Inbox:
    """A bounded queue. A SimpleQueue, whose `put` may interrupt a `get` of the same thread: `knock` needs that."""

    def __init__(self, limit: int) -> None:
        self._frames: queue.SimpleQueue[Buffer | None] = queue.SimpleQueue()
        self._free = threading.Semaphore(limit)
        self.has_ended = False  # nobody will read what comes now

    def put(self, frame: Buffer, timeout: float) -> bool:
        """Queue a frame; False where no place for it became free in time."""
        if self.has_ended:
            return True
        if not self._free.acquire(timeout=timeout):
            return False
        self._frames.put(frame)
        return True

    def get(self, *, wait: bool) -> Buffer | None:
        """The next frame; an empty one for a knock, and where there is none and `wait` is false."""
        try:
            frame = self._frames.get(wait)
        except queue.Empty:
            return b""
        if frame:
            self._free.release()
        elif frame is None:
            self._frames.put(None)  # the end stays the end
        return frame

    def knock(self) -> None:
        self._frames.put(b"")

    def end(self) -> None:
        self.has_ended = True
        self._frames.put(None)


class MemoryTransport:
    """The `Transport` over a switchboard."""

    def __init__(self, node: str, board: Switchboard, inbox: Inbox) -> None:
        self.address = Address(node, SCHEME + node)
        self.greeting: Buffer = b""
        self._board = board
        self._inbox = inbox
        self._greeted: set[str] = set()
        self._gone: set[str] = set()
        self._closed = False
        self._holding = threading.Lock()  # guards _held
        self._held: dict[str, list[Buffer]] = {}

    def send(self, to: Address, frame: Buffer) -> None:
        if not (self._held and self._keep(to.node, frame)):
            self._send(to, frame)

    def _keep(self, node: str, frame: Buffer) -> bool:
        with self._holding:
            if (held := self._held.get(node)) is not None:
                held.append(frame)
        return held is not None

    def _send(self, to: Address, frame: Buffer) -> None:
        inbox = self._board.find(to.node)
        if to.node not in self._greeted:
            # Two threads may both greet: a second Hello does no harm, a missing one would.
            self._put(inbox, to.node, self.greeting)
            self._greeted.add(to.node)
        # A frame is private to its message, so handing it over is as good as copying it.
        self._put(inbox, to.node, frame)

    def _put(self, inbox: Inbox, node: str, frame: Buffer) -> None:
        while not (self._closed or node in self._gone):
            if inbox.put(frame, BLOCKED_POLL):
                return
            self._board.find(node)  # raises once the slow receiver has gone
        raise PeerGone(f"node {node} was given up, or this one is closed")

    def receive(self) -> Buffer | None:
        return self._inbox.get(wait=True)

    def receive_nowait(self) -> Buffer | None:
        return self._inbox.get(wait=False)

    def knock(self) -> None:
        self._inbox.knock()

    def forget(self, node: str) -> None:
        self._gone.add(node)

    def remember(self, node: str, life: int) -> None:
        self._board.renew(node)
        if node in self._gone:
            self._greeted.discard(node)  # whoever is there now has not been
            self._gone.discard(node)

    def hold(self, to: Address, last: Buffer, keep: Callable[[Buffer], Buffer]) -> None:
        with self._holding:
            self._held[to.node] = []
            self._send(to, last)

    def release(self, to: Address, *, anew: bool) -> None:
        if not anew and not self._held:
            return
        with self._holding:
            if anew:
                self._greeted.discard(to.node)
            for frame in ((self.greeting,) if anew else ()) + tuple(self._held.pop(to.node, ())):
                self._send(to, frame)

    def close(self) -> None:
        self._closed = True
        self._board.remove(self.address.node)
        self._inbox.end()

    def terminate(self) -> None:
        pass  # `close` is all
