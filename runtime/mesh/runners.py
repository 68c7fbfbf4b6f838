"""How the items of a map come to run on a rank: the seam of the scheduler, and actors that are spawned for a map."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from meshbook.runtime.actor.failure import MeshFailure
from meshbook.runtime.actor.future import Future
from meshbook.runtime.mesh.actors import current_node
from meshbook.runtime.mesh.tasks import BatchReply, ItemBatch, MapActor
from meshbook.runtime.wire.messages import Address

if TYPE_CHECKING:
    from meshbook.runtime.mesh.procs import ProcMesh


class Runner(Protocol):
    """Asks ranks to run items."""

    key: str  # names the map to the ranks; unique in the run

    @property
    def nodes(self) -> Mapping[int, Address]:
        """The ranks that can be asked."""

    def send(self, rank: int, work: ItemBatch) -> Future[BatchReply]:
        """Send a request to a rank, which answers its requests in their order."""

    def may_return(self, rank: int) -> bool:
        """Whether a rank that has died may come back by itself."""

    def close(self) -> None:
        """Let the ranks forget the map: all of its items are settled. Does not wait."""


class ActorRunner:
    """Runs items in actors that are spawned for the map, on threads of their own."""

    def __init__(self, procs: ProcMesh, name: str) -> None:
        self.key = uuid.uuid4().hex
        self.nodes = dict(enumerate(procs.nodes))
        self._respawns = procs._policy is not None
        self._given_up: set[int] = set()
        self._actors: Any = procs._spawn(f"map of {name}", MapActor, (self.key,), {}, on_main=False)
        # The map hands out again what a dead rank had, so its owner need not hear of that.
        for key in self._actors._keys:
            if (owned_mesh := current_node().ledger.get(key)) is not None:
                owned_mesh.on_failure = self._note_failure
        region = procs.extent.region
        self._by_rank: list[Any] = [self._actors._with_region(region.pick([rank])) for rank in region.ranks()]

    def _note_failure(self, failure: MeshFailure) -> bool:
        """Ranks have failed for good: no policy respawns them."""
        self._given_up.update(failure.crashed_ranks)
        return True

    def send(self, rank: int, work: ItemBatch) -> Future[BatchReply]:
        self._given_up.discard(rank)  # it may have been healed since
        sent: Future[BatchReply] = self._by_rank[rank].run.call_one(work)
        return sent

    def may_return(self, rank: int) -> bool:
        return self._respawns and rank not in self._given_up

    def close(self) -> None:
        self._actors.stop()
