"""The node that replaces a controller while a run is detached: it records incoming messages and answers calls.

It runs in the host agent's process under the controller's name. So nothing changes for workers: they print, and their
actors fail or end. A caller of an actor of the controller receives at once the error that it is gone.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.actor.future import wait_until_settled
from meshbook.runtime.config import Settings
from meshbook.runtime.hosts.controllers import WORKER_REGISTRY, WorkerRegistry
from meshbook.runtime.hosts.journal import Journal
from meshbook.runtime.node.node import Node
from meshbook.runtime.telemetry.events import RunEvent
from meshbook.runtime.telemetry.output import TELEMETRY, Chunk, OutputChunk
from meshbook.runtime.telemetry.points import Logged
from meshbook.runtime.transport import Transport
from meshbook.runtime.wire.frames import Buffer
from meshbook.runtime.wire.messages import Address

HOLD_SECONDS = 3.0  # time for peers to confirm that they send no more; a kernel that is shut down has 5


class DetachedController(Node):
    """The node of a run between two controllers."""

    def __init__(self, transport: Transport, run: str, settings: Settings, incarnation: int, journal: Journal) -> None:
        super().__init__(transport, run, settings, incarnation, takes_over=True)
        self._journal = journal
        transport.accept = self._note_and_accept
        self.bulk.refuses = "the messages for a detached run are written to a file"
        self.actors.host_inline(TELEMETRY, JournalOnly())
        self.actors.host_inline(WORKER_REGISTRY, WorkerRegistry())

    def begin(self, peers: Sequence[Address]) -> None:
        """Start receiving, and make these peers send the messages that they have held."""
        for peer in peers:
            self.routes.trust(peer)
        self.start()
        self.peers.greet(peers)

    def _note_and_accept(self, frame: Buffer) -> None:
        self._journal.note(frame)
        self.dispatch.accept(frame)

    def leave(self) -> list[Address]:
        """Close this node for the next controller; return the peers that are present."""
        peers = self.peers.known()
        wait_for_silence(self, peers)
        self.close()
        return peers


class JournalOnly(Actor):
    """Replaces the telemetry actor: its messages are in the journal."""

    @endpoint
    def happened(self, event: RunEvent) -> None:
        """Do nothing: the journal has the event."""

    @endpoint
    def output(self, chunk: Chunk) -> None:
        """Do nothing: the journal has the output."""

    @endpoint
    def relayed(self, chunk: OutputChunk) -> None:
        """Do nothing: the journal has the output."""

    @endpoint
    def logged(self, logged: Logged) -> None:
        """Do nothing: the journal has the points."""


def wait_for_silence(node: Node, peers: Sequence[Address]) -> None:
    """Make these nodes stop sending to this one, and receive the messages that they have sent."""
    wait_until_settled(node.peers.ask_to_hold(peers), HOLD_SECONDS)
