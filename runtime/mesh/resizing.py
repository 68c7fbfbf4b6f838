"""Resizing a mesh: some ranks stay, with their processes and their state, some are new, some end.

plan -> worker specs and ledger -> notify remaining ranks -> start new ranks and their actors -> stop removed ranks
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshbook.runtime.actor.future import Future
from meshbook.runtime.geometry import Extent
from meshbook.runtime.mesh.healing import Afterwards, Ask, go_on_after, resolve_after
from meshbook.runtime.mesh.host_ownership import when_ended
from meshbook.runtime.mesh.spawned import Spawned
from meshbook.runtime.node.node import Node
from meshbook.runtime.wire.messages import Address

if TYPE_CHECKING:
    from meshbook.runtime.mesh.hosts import HostMesh
    from meshbook.runtime.mesh.worker_specs import WorkerSpecs


def plan(before: Extent, after: Extent) -> list[int | None]:
    """Return, for each rank of `after`, the rank of the same coordinates in `before`; None for a new rank."""
    found: list[int | None] = []
    for rank in range(after.nelements):
        coordinates = dict(after.point(rank))
        is_new = any(coordinates[label] >= size for label, size in before.items())
        found.append(None if is_new else before.point(**coordinates).rank)
    return found


def check_sizes(before: Extent, hosts: Extent, sizes: dict[str, int]) -> Extent:
    """Return the extent with these sizes. ValueError for an unknown or fixed dimension, and for an invalid size."""
    for label, size in sizes.items():
        if label in hosts.labels:
            raise ValueError(
                f"resize: {label!r} is a dimension of the hosts; drain() removes hosts from a mesh, join() adds some"
            )
        if label not in before.labels:
            raise ValueError(f"resize: unknown dimension {label!r}; there are {', '.join(before.labels) or 'none'}")
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"resize: {label!r} needs a size of at least 1, not {size!r}")
    return Extent(before.labels, [sizes.get(label, size) for label, size in before.items()])


@dataclass(frozen=True)
class NewShape:
    """The shape of a mesh after a resize, on these hosts. `stays` has each rank's rank before, None for a new one."""

    extent: Extent
    stays: list[int | None]
    hosts: HostMesh


class Resize:
    """One resize of the processes that are `mesh` in this node's ledger. `begin` starts it without waiting."""

    def __init__(self, node: Node, mesh: str, specs: WorkerSpecs, before: Extent, shape: NewShape) -> None:
        self._node = node
        self._mesh = mesh
        self._specs = specs
        self._before, self._after = before, shape.extent
        was = specs.addresses
        specs.resize(shape.stays, shape.extent, shape.hosts.agents)
        self.nodes = specs.addresses
        self.new = [rank for rank, old in enumerate(shape.stays) if old is None]
        self.staying = [rank for rank, old in enumerate(shape.stays) if old is not None]
        self.removed = [address for address in was if address not in self.nodes]
        self._followers = self._update_ledger(was)

    def _update_ledger(self, was: Sequence[Address]) -> list[Spawned]:
        """Update the ledger. Return the actors that were on the whole mesh, and move to all of it as it is now."""
        ledger = self._node.ledger
        ledger.forget({address.node for address in self.removed})
        ledger.move(self._mesh, {address.node: rank for rank, address in enumerate(self.nodes)})
        followers = []
        for owned_mesh in ledger.actors():
            spawned: Spawned = owned_mesh.spawned
            if spawned.is_on(was, self._before):
                spawned.move(self.nodes, self._after)
                ledger.move(owned_mesh.key, {address.node: rank for rank, address in enumerate(self.nodes)})
                followers.append(spawned)
        return followers

    def begin(self, hosts: HostMesh, ask_ready: Ask, afterwards: Afterwards) -> Future[list[int]]:
        """Return a future that resolves to the new ranks, once all steps and the follow-up are done.

        `hosts` are those of the mesh before.
        """
        self._notify_staying()
        if self.new:
            self._specs.start(self.new)
        waiting = [*ask_ready([self.nodes[rank] for rank in self.new])] if self.new else []
        for spawned in self._followers:
            waiting += spawned.extend(self.new)
        if self.removed:
            hosts.stop_procs(self.removed, f"its mesh was resized to {dict(self._after)}")
            waiting.append(when_ended(self._node, [address.node for address in self.removed]))
        made: Future[list[int]] = Future.pending()
        done: Future[list[int]] = Future.pending()
        go_on_after(made, done, afterwards)
        resolve_after(made, waiting, self.new)
        return done

    def _notify_staying(self) -> None:
        keys = [spawned.key for spawned in self._followers]
        for rank in self.staying:
            at = rank, *self._after.dims
            self._node.calls.notify_control(self.nodes[rank], "moved", self._specs[rank], at, keys)
