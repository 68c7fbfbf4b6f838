"""The actors of one spawn as their owner has them: how they are created, again and on more ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.context import format_actor
from meshbook.runtime.actor.future import Future
from meshbook.runtime.geometry import Extent
from meshbook.runtime.mesh.actors import ActorMesh
from meshbook.runtime.mesh.healing import create_again, resolve_after
from meshbook.runtime.node.call_table import PerRank, Target
from meshbook.runtime.node.identity import instance_of
from meshbook.runtime.node.node import Node
from meshbook.runtime.node.outbound import Creation
from meshbook.runtime.wire.messages import Address


class Spawned:
    """Kept in the ledger. The handles that users have are of the mesh as it was when they were made."""

    def __init__(self, node: Node, name: str, cls: type[Actor], creation: Creation) -> None:
        self._node = node
        self._name = name
        self._cls = cls
        self._creation = creation
        self._initialized: Future[None] | None = None  # of the ranks that came last

    @property
    def cls(self) -> type[Actor]:
        return self._cls

    @property
    def creation(self) -> Creation:
        """How they were, and would be, created."""
        return self._creation

    @property
    def key(self) -> str:
        """The name of these actors in their processes."""
        return self._creation.targets[0].actor

    def handle(self) -> ActorMesh:
        """A handle of all that there are now."""
        known = self._creation
        return ActorMesh(self._name, self._cls, known.targets, known.extent.region, self._initialized)

    def describe(self, rank: int) -> str:
        """The actor of this rank, below the actors that spawned it."""
        creator = instance_of(self._creation.creator)
        known = f"{self._cls.__module__}.{self._cls.__qualname__}"
        point = self._creation.extent.point(rank)
        return f"{'<root>' if creator is None else creator}.{format_actor(known, self._name, point)}"

    def again(self, ranks: Sequence[int]) -> Sequence[Future[Any]]:
        """Create these once more: they are lost."""
        return create_again(self._node, self._name, self._creation, ranks)

    def is_on(self, nodes: Sequence[Address], extent: Extent) -> bool:
        """Whether these are all of the processes that they are on, in this shape."""
        known = self._creation
        return known.extent == extent and [target.address for target in known.targets] == list(nodes)

    def move(self, nodes: Sequence[Address], extent: Extent) -> None:
        """From now on they are on these processes; those of new ones are still to be created."""
        targets = tuple(Target(address, self.key) for address in nodes)
        self._creation = dataclasses.replace(self._creation, targets=targets, extent=extent)

    def extend(self, ranks: Sequence[int]) -> Sequence[Future[Any]]:
        """Create these, which have not been there before: a future each, of how that went."""
        reply_handler = PerRank(len(ranks))
        if ranks:
            self._node.calls.create(self._creation, ranks, reply_handler)
        self._initialized = Future.pending()
        resolve_after(self._initialized, reply_handler.futures, None)
        return reply_handler.futures
