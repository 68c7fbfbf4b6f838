"""The actors of one spawn, as their owner keeps them: how to create them, again and on more ranks."""

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
    """An entry of the ledger: the actors of one spawn as they are now. Users' handles keep the mesh as it was."""

    def __init__(self, node: Node, name: str, cls: type[Actor], creation: Creation) -> None:
        self._node = node
        self._name = name
        self._cls = cls
        self._creation = creation
        self._initialized: Future[None] | None = None  # of the ranks that were created last

    @property
    def cls(self) -> type[Actor]:
        return self._cls

    @property
    def creation(self) -> Creation:
        """The parameters for creating these actors, also for later ranks."""
        return self._creation

    @property
    def key(self) -> str:
        """The name of these actors in their processes."""
        return self._creation.targets[0].actor

    def handle(self) -> ActorMesh:
        """Return a handle of all current actors."""
        known = self._creation
        return ActorMesh(self._name, self._cls, known.targets, known.extent.region, self._initialized)

    def describe(self, rank: int) -> str:
        """Return the full name of the actor of this rank, below the actors that spawned it."""
        creator = instance_of(self._creation.creator)
        known = f"{self._cls.__module__}.{self._cls.__qualname__}"
        point = self._creation.extent.point(rank)
        return f"{'<root>' if creator is None else creator}.{format_actor(known, self._name, point)}"

    def recreate(self, ranks: Sequence[int]) -> Sequence[Future[Any]]:
        """Create these lost actors again."""
        return create_again(self._node, self._name, self._creation, ranks)

    def is_on(self, nodes: Sequence[Address], extent: Extent) -> bool:
        """Return whether the actors are on exactly these processes, in this shape."""
        known = self._creation
        return known.extent == extent and [target.address for target in known.targets] == list(nodes)

    def move(self, nodes: Sequence[Address], extent: Extent) -> None:
        """Set the processes of these actors. Actors on new processes are created later."""
        targets = tuple(Target(address, self.key, rank=rank) for rank, address in enumerate(nodes))
        self._creation = dataclasses.replace(self._creation, targets=targets, extent=extent)

    def extend(self, ranks: Sequence[int]) -> Sequence[Future[Any]]:
        """Create the actors of these new ranks. Return a future for each, which raises if that failed."""
        reply_handler = PerRank(len(ranks))
        if ranks:
            self._node.calls.create(self._creation, ranks, reply_handler)
        self._initialized = Future.pending()
        resolve_after(self._initialized, reply_handler.futures, None)
        return reply_handler.futures
