"""The ledger of the meshes that actors of this node, or its client, have spawned, with their owners. Does no I/O.

The owner of a mesh handles its failures; the meshes of an actor end with the actor. A failed rank stays in the ledger
until its mesh is stopped, since it may be healed. O(meshes) when a node is lost or healed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, Protocol

from meshbook.runtime import monarch_texts
from meshbook.runtime.actor.failure import MeshFailure
from meshbook.runtime.actor.future import Future
from meshbook.runtime.traces import SourceLine


class Policy(Protocol):
    """Decides how to handle a failure. The decision runs later, outside the caller."""

    def take(self, owned_mesh: OwnedMesh, failure: MeshFailure, otherwise: Callable[[MeshFailure], None]) -> None:
        """Accept a failure without waiting. Call `otherwise` with it if the policy does not handle it."""


@dataclass(eq=False)
class OwnedMesh:
    """A mesh that was spawned here. Its ranks are removed one by one as they are stopped."""

    key: str  # the name of its actors in their processes, or of the process mesh
    name: str  # the user's name for it
    owner: str  # the key of the actor that spawned it, empty for the client
    ranks: dict[str, int]  # ranks by node, without the stopped ones
    stop: Callable[[str], Future[Any]]
    handle: Callable[[], Any]  # makes a new handle; the user may drop the original one
    context: Context  # of the spawning code: failures are shown where that code ran
    restart: Callable[[Sequence[int]], Any]  # starts these ranks again
    spawned_at: SourceLine | None = None  # the line of user code
    are_processes: bool = False
    on_failure: Callable[[MeshFailure], object] | None = None  # called first; a true result means handled
    policy: Policy | None = None  # decides next
    spawned: Any = None  # of an actor mesh: a `runtime.mesh.spawned.Spawned`
    failed: list[int] = field(default_factory=list)  # ranks that failed and were not healed since
    healing: Future[Any] | None = None  # of the last heal

    def mark_failed(self, rank: int, report: str, ended_by: str = "") -> MeshFailure:
        """Mark a rank as failed and return the failure."""
        self.failed.append(rank)
        return self.last_failure(report, ended_by)

    def last_failure(self, report: str, ended_by: str = "") -> MeshFailure:
        """Return the failure of the rank that failed last, for the owner."""
        return MeshFailure(self.name, self.failed[-1:], report, self.handle, self.spawned_at, ended_by=ended_by)

    @property
    def procs(self) -> str:
        """The name of this process mesh, or of the first one that the actors run on."""
        return self.key if self.are_processes else next(iter(self.ranks), "").rpartition(".")[0]

    def has_failed_on(self, node: str) -> bool:
        """Whether the rank on this node has failed and was not healed since."""
        return self.ranks.get(node) in self.failed

    def node_of(self, rank: int) -> str:
        """Return the node of a rank, or "" if the rank was stopped."""
        return next((node for node, each in self.ranks.items() if each == rank), "")


class Ledger:
    """The owned meshes of one node."""

    def __init__(self) -> None:
        # Guards the owned meshes and their fields. A user's finalizer may stop a mesh while this thread holds the
        # lock, so loops iterate over a copy.
        self._lock = threading.RLock()
        self._meshes: dict[str, OwnedMesh] = {}

    def __len__(self) -> int:
        return len(self._meshes)

    def add(self, owned_mesh: OwnedMesh) -> None:
        with self._lock:
            self._meshes[owned_mesh.key] = owned_mesh

    def get(self, key: str) -> OwnedMesh | None:
        return self._meshes.get(key)

    def of(self, owner: str) -> list[OwnedMesh]:
        """Return the meshes of an owner, the newest first: a mesh precedes the mesh that it was spawned on."""
        with self._lock:
            return [owned_mesh for owned_mesh in reversed(list(self._meshes.values())) if owned_mesh.owner == owner]

    def processes(self) -> list[OwnedMesh]:
        """Return the process meshes, the oldest first."""
        with self._lock:
            return [owned_mesh for owned_mesh in list(self._meshes.values()) if owned_mesh.are_processes]

    def actors(self) -> list[OwnedMesh]:
        """Return the actor meshes."""
        with self._lock:
            return [owned_mesh for owned_mesh in list(self._meshes.values()) if not owned_mesh.are_processes]

    def fail(self, key: str, node: str, report: str) -> tuple[OwnedMesh, MeshFailure] | None:
        """Mark the actor on this node as failed; return None if its mesh is unknown or the failure is already noted."""
        with self._lock:
            owned_mesh = self._meshes.get(key)
            rank = owned_mesh.ranks.get(node) if owned_mesh is not None else None
            if owned_mesh is None or rank is None or rank in owned_mesh.failed:
                return None
            return owned_mesh, owned_mesh.mark_failed(rank, report)

    def failed_nodes(self, key: str) -> Collection[str]:
        """Return the nodes on which ranks of a mesh have failed."""
        owned_mesh = self._meshes.get(key)
        if owned_mesh is None or not owned_mesh.failed:
            return ()
        with self._lock:
            return {node for node, rank in owned_mesh.ranks.items() if rank in owned_mesh.failed}

    def end(self, key: str, nodes: Collection[str]) -> None:
        """Remove the ranks of a mesh on these nodes, which stop: their end is no failure from now on."""
        with self._lock:
            owned_mesh = self._meshes.get(key)
            if owned_mesh is not None:
                self._drop(owned_mesh, nodes)

    def move(self, key: str, ranks: dict[str, int]) -> None:
        """Replace the ranks of a resized mesh. A failed process stays failed under its new rank."""
        with self._lock:
            owned_mesh = self._meshes[key]
            failed = [node for node, rank in owned_mesh.ranks.items() if rank in owned_mesh.failed]
            owned_mesh.ranks = ranks
            owned_mesh.failed = [ranks[node] for node in failed]

    def lose(self, node: str, report: str, *, stopped: bool, ended_by: str = "") -> list[tuple[OwnedMesh, MeshFailure]]:
        """Note the end of a process and return the failures to report; `ended_by` names the requester of the end.

        An owner that gets failures of actors in the process gets none of the process itself.
        """
        with self._lock:
            touched = [owned_mesh for owned_mesh in list(self._meshes.values()) if node in owned_mesh.ranks]
            if stopped:
                self._drop_all(touched, {node})
                return []
            healthy = [owned_mesh for owned_mesh in touched if owned_mesh.ranks[node] not in owned_mesh.failed]
            with_actors = {owned_mesh.owner for owned_mesh in healthy if not owned_mesh.are_processes}
            failures = [
                (
                    owned_mesh,
                    owned_mesh.mark_failed(owned_mesh.ranks[node], _name_actor(owned_mesh, node, report), ended_by),
                )
                for owned_mesh in healthy
            ]
            return [each for each in failures if not (each[0].are_processes and each[0].owner in with_actors)]

    def processes_on(self, node: str) -> OwnedMesh | None:
        """Return the process mesh that contains this node, if it was spawned from here."""
        with self._lock:
            return next(
                (each for each in list(self._meshes.values()) if each.are_processes and node in each.ranks), None
            )

    def forget(self, nodes: Collection[str]) -> None:
        """Remove these processes, which have ended for good."""
        with self._lock:
            self._drop_all(list(self._meshes.values()), nodes)

    def heal(self, key: str, only: Collection[int] | None = None) -> list[int]:
        """Mark the failed ranks of a mesh, or those among `only`, as healed; return them in order."""
        with self._lock:
            owned_mesh = self._meshes.get(key)
            if owned_mesh is None:
                return []
            failed = [rank for rank in owned_mesh.failed if only is None or rank in only]
            owned_mesh.failed = [rank for rank in owned_mesh.failed if rank not in failed]
            return sorted(failed)

    def heal_actors(
        self, *, restarted: Collection[str], alive: Collection[str] = ()
    ) -> list[tuple[OwnedMesh, list[int]]]:
        """Mark actors as healed and return those to create again.

        These are all actors in `restarted` processes, and the failed ones in processes that are `alive`.
        """
        with self._lock:
            found = []
            for owned_mesh in list(self._meshes.values()):
                if owned_mesh.are_processes:
                    continue
                failed = set(owned_mesh.failed)
                ranks = sorted(
                    rank
                    for node, rank in owned_mesh.ranks.items()
                    if node in restarted or (rank in failed and node in alive)
                )
                if ranks:
                    owned_mesh.failed = [rank for rank in owned_mesh.failed if rank not in ranks]
                    found.append((owned_mesh, ranks))
            return found

    def _drop_all(self, owned_meshes: Iterable[OwnedMesh], nodes: Collection[str]) -> None:
        for owned_mesh in owned_meshes:
            self._drop(owned_mesh, nodes)

    def _drop(self, owned_mesh: OwnedMesh, nodes: Collection[str]) -> None:
        gone = {rank for node, rank in owned_mesh.ranks.items() if node in nodes}
        owned_mesh.ranks = {node: rank for node, rank in owned_mesh.ranks.items() if rank not in gone}
        owned_mesh.failed = [rank for rank in owned_mesh.failed if rank not in gone]
        if not owned_mesh.ranks:
            self._meshes.pop(owned_mesh.key, None)


def _name_actor(owned_mesh: OwnedMesh, node: str, report: str) -> str:
    if owned_mesh.spawned is None:
        return report
    return f"{report}\n{monarch_texts.actor_failed(owned_mesh.spawned.describe(owned_mesh.ranks[node]), node)}"
