"""Who answers for which mesh: the meshes that actors of this node, or its client, have spawned. Pure bookkeeping.

A failure of a mesh is its owner's business, and what an actor owns ends with it. O(meshes) when a node is lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

from meshbook.runtime.actor.failure import MeshFailure
from meshbook.runtime.actor.future import Future
from meshbook.runtime.traces import Line


@dataclass(eq=False)
class Charge:
    """A mesh that was spawned here. It is forgotten rank by rank, as those end."""

    key: str  # the name of its actors in their processes, or of the process mesh
    name: str  # what the user calls it
    owner: str  # the key of the actor that spawned it, empty for the client
    ranks: dict[str, int]  # by node; those that have not ended
    stop: Callable[[str], Future[Any]]
    handle: Callable[[], Any]  # makes a handle of it; not the one that the user has, and may drop
    context: Context  # of the code that spawned it: its faults are shown where that ran
    spawned_at: Line | None = None  # by the user's code
    are_processes: bool = False
    on_failure: Callable[[MeshFailure], object] | None = None  # who is told first; a true answer means handled
    failed: list[int] = field(default_factory=list)

    def failure(self, rank: int, report: str) -> MeshFailure:
        """Note that a rank has failed."""
        self.failed.append(rank)
        return MeshFailure(self.name, self.failed, report, self.handle, self.spawned_at)


class Ledger:
    """The charges of one node."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the charges and what is in them
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
            return [charge for charge in reversed(self._charges.values()) if charge.owner == owner]

    def fail(self, key: str, rank: int, report: str) -> tuple[Charge, MeshFailure] | None:
        """An actor has failed; None where nobody answers for it any more, or the rank has failed before."""
        with self._lock:
            charge = self._charges.get(key)
            if charge is None or rank in charge.failed:
                return None
            return charge, charge.failure(rank, report)

    def end(self, key: str, ranks: Iterable[int]) -> None:
        """These ranks of a mesh are stopped, or about to be: nothing of them is a failure any more."""
        with self._lock:
            charge = self._charges.get(key)
            if charge is not None:
                ended = set(ranks)
                charge.ranks = {node: rank for node, rank in charge.ranks.items() if rank not in ended}
                self._drop_empty(charge)

    def lose(self, node: str, report: str, *, stopped: bool) -> list[tuple[Charge, MeshFailure]]:
        """A process has ended: what that means to whom. Nobody hears of a process mesh who has actors in it."""
        with self._lock:
            touched = [charge for charge in self._charges.values() if node in charge.ranks]
            with_actors = {charge.owner for charge in touched if not charge.are_processes}
            found = []
            for charge in touched:
                rank = charge.ranks.pop(node)
                is_told = not (charge.are_processes and charge.owner in with_actors)
                if not stopped and rank not in charge.failed and is_told:
                    found.append((charge, charge.failure(rank, report)))
                self._drop_empty(charge)
            return found

    def _drop_empty(self, charge: Charge) -> None:
        if not charge.ranks:
            del self._charges[charge.key]
