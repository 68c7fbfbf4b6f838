"""Nodes of one process, joined by queues: a whole mesh for a test, with real threads and real frames."""

from __future__ import annotations

import queue
from typing import Final

from meshbook.runtime.transport import PeerGone
from meshbook.runtime.wire.frames import Buffer
from meshbook.runtime.wire.messages import Address

SCHEME: Final = "memory://"


class Switchboard:
    """The inboxes of one process, by node id."""

    def __init__(self, high_water_mark: int = 10_000) -> None:
        self._limit = high_water_mark
        self._inboxes: dict[str, queue.Queue[Buffer | None]] = {}

    def transport(self, node: str) -> MemoryTransport:
        """A transport for a new node of this name."""
        inbox = self._inboxes[node] = queue.Queue(self._limit)
        return MemoryTransport(node, self, inbox)

    def find(self, node: str) -> queue.Queue[Buffer | None]:
        try:
            return self._inboxes[node]
        except KeyError:
            raise PeerGone(f"no node {node} in this process") from None

    def remove(self, node: str) -> None:
        self._inboxes.pop(node, None)


class MemoryTransport:
    """The `Transport` over a switchboard."""

    def __init__(self, node: str, board: Switchboard, inbox: queue.Queue[Buffer | None]) -> None:
        self.address = Address(node, SCHEME + node)
        self.greeting: Buffer = b""
        self._board = board
        self._inbox = inbox
        self._greeted: set[str] = set()
        self._gone: set[str] = set()

    def send(self, to: Address, frame: Buffer) -> None:
        inbox = self._board.find(to.node)
        if to.node not in self._greeted:
            # Two threads may both greet: a second Hello does no harm, a missing one would.
            self._put(inbox, to.node, self.greeting)
            self._greeted.add(to.node)
        # A frame is private to its message, so handing it over is as good as copying it.
        self._put(inbox, to.node, frame)

    def _put(self, inbox: queue.Queue[Buffer | None], node: str, frame: Buffer) -> None:
        while node not in self._gone:
            try:
                return inbox.put(frame, timeout=0.1)
            except queue.Full:
                self._board.find(node)  # raises once the slow receiver has gone
        raise PeerGone(f"node {node} was given up")

    def receive(self) -> Buffer | None:
        return self._inbox.get()

    def forget(self, node: str) -> None:
        self._gone.add(node)

    def close(self) -> None:
        self._board.remove(self.address.node)
        self._inbox.put(None)
