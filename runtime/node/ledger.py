"""Who answers for which mesh: the meshes that actors of this node, or its client, have spawned. Pure bookkeeping.

A failure of a mesh is its owner's business, and what an actor owns ends with it. A rank that has failed stays in the
ledger, since it may be healed, until its mesh is stopped. O(meshes) when a node is lost or healed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, Protocol

from meshbook.runtime.actor.failure import MeshFailure
from meshbook.runtime.actor.future import Future
from meshbook.runtime.traces import Line


class Policy(Protocol):
    """Decides what becomes of a failure, somewhere else and later: none of its own business is done meanwhile."""

    def take(self, charge: Charge, failure: MeshFailure, otherwise: Callable[[MeshFailure], None]) -> None:
        """Take it in. `otherwise` gets the failure back where nothing comes of it. Never waits."""


@dataclass(eq=False)
class Charge:
    """A mesh that was spawned here. It is forgotten rank by rank, as those are stopped."""

    key: str  # the name of its actors in their processes, or of the process mesh
    name: str  # what the user calls it
    owner: str  # the key of the actor that spawned it, empty for the client
    ranks: dict[str, int]  # by node; those that have not been stopped
    stop: Callable[[str], Future[Any]]
    handle: Callable[[], Any]  # makes a handle of it; not the one that the user has, and may drop
    context: Context  # of the code that spawned it: its faults are shown where that ran
    again: Callable[[Sequence[int]], Any]  # starts these ranks again
    spawned_at: Line | None = None  # by the user's code
    are_processes: bool = False
    on_failure: Callable[[MeshFailure], object] | None = None  # who is told first; a true answer means handled
    policy: Policy | None = None  # what then decides
    spawned: Any = None  # of actors: a `runtime.mesh.spawned.Spawned`
    failed: list[int] = field(default_factory=list)  # and not healed since
    healing: Future[Any] | None = None  # the last time that it was healed

    def failure(self, rank: int, report: str) -> MeshFailure:
        """Note that a rank has failed."""
        self.failed.append(rank)
        return self.tell(report)

    def tell(self, report: str) -> MeshFailure:
        """What its owner is told of the rank that has failed last."""
        return MeshFailure(self.name, self.failed, report, self.handle, self.spawned_at)

    @property
    def procs(self) -> str:
        """The name of the process mesh, or of the first one, that it is on."""
        return self.key if self.are_processes else next(iter(self.ranks), "").rpartition(".")[0]

    def has_failed_on(self, node: str) -> bool:
        """Whether its rank there has failed, and was not healed since."""
        return self.ranks.get(node) in self.failed

    def node_of(self, rank: int) -> str:
        """The process of a rank; none where that was stopped."""
        return next((node for node, each in self.ranks.items() if each == rank), "")


class Ledger:
    """The charges of one node."""

    def __init__(self) -> None:
        # Guards the charges and what is in them. Under it, a finalizer of the user's may stop a mesh: so whoever goes
        # through them has a copy.
        self._lock = threading.RLock()
        self._charges: dict[str, Charge] = {}

    def __len__(self) -> int:
        return len(self._charges)

    def add(self, charge: Charge) -> None:
        with self._lock:
            self._charges[charge.key] = charge

    def get(self, key: str) -> Charge | None:
        return self._charges.get(key)

    def of(self, owner: str) -> list[Charge]:
        """What an actor owns, the newest first: what was spawned on a mesh comes before that mesh."""
        with self._lock:
            return [charge for charge in reversed(list(self._charges.values())) if charge.owner == owner]

    def processes(self) -> list[Charge]:
        """The process meshes, the oldest first."""
        with self._lock:
            return [charge for charge in list(self._charges.values()) if charge.are_processes]

    def actors(self) -> list[Charge]:
        """The actor meshes."""
        with self._lock:
            return [charge for charge in list(self._charges.values()) if not charge.are_processes]

    def fail(self, key: str, node: str, report: str) -> tuple[Charge, MeshFailure] | None:
        """An actor there has failed; None where nobody answers for it any more, or it has failed before."""
        with self._lock:
            charge = self._charges.get(key)
            rank = charge.ranks.get(node) if charge is not None else None
            if charge is None or rank is None or rank in charge.failed:
                return None
            return charge, charge.failure(rank, report)

    def failed_nodes(self, key: str) -> Collection[str]:
        """The processes in which ranks of a mesh have failed."""
        charge = self._charges.get(key)
        if charge is None or not charge.failed:
            return ()
        with self._lock:
            return {node for node, rank in charge.ranks.items() if rank in charge.failed}

    def end(self, key: str, nodes: Collection[str]) -> None:
        """A mesh is stopped there, or about to be: nothing of it there is a failure any more."""
        with self._lock:
            charge = self._charges.get(key)
            if charge is not None:
                self._drop(charge, nodes)

    def move(self, key: str, ranks: dict[str, int]) -> None:
        """A mesh was resized: its ranks by node now. What has failed has, by whichever rank."""
        with self._lock:
            charge = self._charges[key]
            failed = [node for node, rank in charge.ranks.items() if rank in charge.failed]
            charge.ranks = ranks
            charge.failed = [ranks[node] for node in failed]

    def lose(self, node: str, report: str, *, stopped: bool) -> list[tuple[Charge, MeshFailure]]:
        """A process has ended: what that means to whom. Nobody hears of the process who hears of actors in it."""
        with self._lock:
            touched = [charge for charge in list(self._charges.values()) if node in charge.ranks]
            if stopped:
                self._drop_all(touched, {node})
                return []
            well = [charge for charge in touched if charge.ranks[node] not in charge.failed]
            with_actors = {charge.owner for charge in well if not charge.are_processes}
            told = [(charge, charge.failure(charge.ranks[node], report)) for charge in well]
            return [each for each in told if not (each[0].are_processes and each[0].owner in with_actors)]

    def processes_on(self, node: str) -> Charge | None:
        """The process mesh of which this node is one, where it was spawned from here."""
        with self._lock:
            return next(
                (each for each in list(self._charges.values()) if each.are_processes and node in each.ranks), None
            )

    def forget(self, nodes: Collection[str]) -> None:
        """These processes have ended, however that was, and will not come again."""
        with self._lock:
            self._drop_all(list(self._charges.values()), nodes)

    def heal(self, key: str, only: Collection[int] | None = None) -> list[int]:
        """A mesh is to be healed: which of its ranks, or of these, have failed, in order. From now on they are well."""
        with self._lock:
            charge = self._charges.get(key)
            if charge is None:
                return []
            failed = [rank for rank in charge.failed if only is None or rank in only]
            charge.failed = [rank for rank in charge.failed if rank not in failed]
            return sorted(failed)

    def heal_actors(self, *, reborn: Collection[str], alive: Collection[str] = ()) -> list[tuple[Charge, list[int]]]:
        """Which actors are to be created again: all in the processes that are, and in the others those that failed."""
        with self._lock:
            found = []
            for charge in list(self._charges.values()):
                ranks = [] if charge.are_processes else _to_renew(charge, reborn, alive)
                if ranks:
                    charge.failed = [rank for rank in charge.failed if rank not in ranks]
                    found.append((charge, ranks))
            return found

    def _drop_all(self, charges: Iterable[Charge], nodes: Collection[str]) -> None:
        for charge in charges:
            self._drop(charge, nodes)

    def _drop(self, charge: Charge, nodes: Collection[str]) -> None:
        gone = {rank for node, rank in charge.ranks.items() if node in nodes}
        charge.ranks = {node: rank for node, rank in charge.ranks.items() if rank not in gone}
        charge.failed = [rank for rank in charge.failed if rank not in gone]
        if not charge.ranks:
            self._charges.pop(charge.key, None)


def _to_renew(charge: Charge, reborn: Collection[str], alive: Collection[str]) -> list[int]:
    failed = set(charge.failed)
    return sorted(rank for node, rank in charge.ranks.items() if node in reborn or (rank in failed and node in alive))
