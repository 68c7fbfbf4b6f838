"""Runners: the interface through which the scheduler calls ranks, and the actors that are spawned for a map."""

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
    """Sends requests for items to ranks."""

    key: str  # identifies the map on the ranks; unique in the run

    @property
    def nodes(self) -> Mapping[int, Address]:
        """The ranks that can be called."""

    def send(self, rank: int, work: ItemBatch) -> Future[BatchReply]:
        """Send a request to a rank. Each rank answers its requests in order."""

    def may_return(self, rank: int) -> bool:
        """Return whether a dead rank may come back without a heal by the user."""

    def close(self) -> None:
        """Make the ranks drop the map once all of its items are settled. Does not wait."""


class ActorRunner:
    """Runs items in actors that are spawned for the map, on their own threads."""

    def __init__(self, procs: ProcMesh, name: str) -> None:
        self.key = uuid.uuid4().hex
        self.nodes = dict(enumerate(procs.nodes))
        self._respawns = procs._policy is not None
        self._lost_for_good: set[int] = set()
        self._actors: Any = procs._spawn(f"map of {name}", MapActor, (self.key,), {}, on_main=False)
        # The map hands out the items of a dead rank again, so the failure is not passed to the owner.
        for key in self._actors._keys:
            if (owned_mesh := current_node().ledger.get(key)) is not None:
                owned_mesh.on_failure = self._note_failure
        region = procs.extent.region
        self._by_rank: list[Any] = [self._actors._with_region(region.pick([rank])) for rank in region.ranks()]

    def _note_failure(self, failure: MeshFailure) -> bool:
        """Record ranks that have failed for good: no policy respawns them."""
        self._lost_for_good.update(failure.crashed_ranks)
        return True

    def send(self, rank: int, work: ItemBatch) -> Future[BatchReply]:
        self._lost_for_good.discard(rank)  # it may have been healed since
        sent: Future[BatchReply] = self._by_rank[rank].run.call_one(work)
        return sent

    def may_return(self, rank: int) -> bool:
        return self._respawns and rank not in self._lost_for_good

    def close(self) -> None:
        self._actors.stop()
