"""The node that stands for a controller while a run is detached: it takes in what comes, and answers whoever asks.

It lives in the host agent's process under the controller's name. So to workers nothing changes: they print, their
actors fail or end, and who calls an actor of the controller's hears at once that it is gone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.config import Settings
from meshbook.runtime.errors import MeshbookError
from meshbook.runtime.hosts.journal import Journal
from meshbook.runtime.hosts.worker_registry import ROSTER, WorkerRegistry
from meshbook.runtime.node.node import Node
from meshbook.runtime.telemetry.events import RunEvent
from meshbook.runtime.telemetry.output import TELEMETRY, Chunk
from meshbook.runtime.transport import Transport
from meshbook.runtime.wire.frames import Buffer
from meshbook.runtime.wire.messages import Address

HOLD_SECONDS = 3.0  # that others have to say that they send no more; a kernel that is shut down has 5


class DetachedController(Node):
    """Between two controllers of a run."""

    def __init__(self, transport: Transport, run: str, settings: Settings, incarnation: int, journal: Journal) -> None:
        super().__init__(transport, run, settings, incarnation, takes_over=True)
        self._journal = journal
        transport.accept = self._note_and_accept
        self.bulk.refuses = "what comes for a detached run is kept in a file, as it is"
        self.actors.host_inline(TELEMETRY, JournalOnly())
        self.actors.host_inline(ROSTER, WorkerRegistry())

    def begin(self, peers: Sequence[Address]) -> None:
        """Receive, and have these send what they have held."""
        for peer in peers:
            self.routes.trust(peer)
        self.start()
        self.peers.greet(peers)

    def _note_and_accept(self, frame: Buffer) -> None:
        self._journal.note(frame)
        self.dispatch.accept(frame)

    def leave(self) -> list[Address]:
        """Make room for the next controller; who is there for it."""
        peers = self.peers.known()
        wait_for_silence(self, peers)
        self.close()
        return peers


class JournalOnly(Actor):
    """In the place of telemetry: what it is told is in the journal."""

    @endpoint
    def happened(self, event: RunEvent) -> None:
        """Nobody listens."""

    @endpoint
    def output(self, chunk: Chunk) -> None:
        """Nobody listens."""


def wait_for_silence(node: Node, peers: Sequence[Address]) -> None:
    """Have these nodes send nothing here any more, and take in what they have sent."""
    end = time.monotonic() + HOLD_SECONDS
    for held in node.peers.ask_to_hold(peers):
        try:
            held.exception(timeout=max(0.0, end - time.monotonic()))
        except (TimeoutError, MeshbookError):
            continue
