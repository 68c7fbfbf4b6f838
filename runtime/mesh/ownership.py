"""The ownership of a mesh: its entry in the ledger, and the state that handles of a mesh spawned here share."""

from __future__ import annotations

import contextvars
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from meshbook.runtime.actor.context import context
from meshbook.runtime.actor.future import Future
from meshbook.runtime.mesh.commands import Start
from meshbook.runtime.mesh.process_groups import ProcessGroups
from meshbook.runtime.node.ledger import OwnedMesh, Policy
from meshbook.runtime.traces import SourceLine, calling_place

if TYPE_CHECKING:
    from meshbook.runtime.mesh.procs import ProcMesh
    from meshbook.runtime.mesh.spawned import Spawned
    from meshbook.runtime.mesh.worker_specs import WorkerSpecs

# Called with the mesh and the ranks that were healed. The heal waits for the returned future; the callable must not
# wait.
Afterwards = Callable[["ProcMesh", list[int]], Future[Any] | None]


@dataclass(frozen=True)
class Spares:
    """The number of spare processes to keep on each host, and how they are started."""

    count: int
    start: Start


class Ownership:
    """State that the handles of a mesh share in the process that spawned it: its current handle, its end."""

    current: ProcMesh  # the handle of the mesh as it is now

    def __init__(self, specs: WorkerSpecs | None = None) -> None:
        self.specs = specs  # None for a reference
        self.spares: Spares | None = None  # to keep on each host; None also where they are not known
        self.stopped: Future[None] | None = None
        self.heals = 0  # how many have begun
        self.afterwards: list[Afterwards] = []  # callbacks after each heal
        self.groups = ProcessGroups()
        self.tensor_engines: list[weakref.ref[Any]] = []  # on these processes, or a part of them
        # Held while the mesh is healed, resized or stopped, until the requests for that have been sent. Otherwise a
        # process whose start is requested after the others were asked to exit would stay. Acquired before the
        # ledger's lock.
        self.changing = threading.RLock()

    def handle(self) -> ProcMesh:
        return self.current


class Stoppable(Protocol):
    """A mesh that has an owner."""

    def stop(self, reason: str = ...) -> Future[None]: ...


def own(
    key: str,
    name: str,
    ranks: dict[str, int],
    handle: Callable[[], Stoppable],
    restart: Callable[[Sequence[int]], Any],
    *,
    are_processes: bool = False,
    policy: Policy | None = None,
    spawned: Spawned | None = None,
) -> OwnedMesh:
    """Record the calling actor or client as the owner of a mesh.

    `ranks` are keyed by node. `handle` makes a handle of the mesh as it is now, not the user's. `restart` restarts
    ranks.
    """
    instance = context().actor_instance
    owner = instance.key if instance.control is not None else ""

    def stop(reason: str) -> Future[None]:
        return handle().stop(reason)

    here = SourceLine.of(calling_place(2))
    owned_mesh = OwnedMesh(
        *(key, name, owner, ranks, stop, handle, contextvars.copy_context(), restart),
        spawned_at=here if here.is_of_user else None,
        are_processes=are_processes,
        policy=policy,
        spawned=spawned,
    )
    instance.node.ledger.add(owned_mesh)
    return owned_mesh
