"""Who answers for a mesh, and what the handles of one that was spawned here share."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from meshbook.runtime.actor.context import context
from meshbook.runtime.actor.future import Future
from meshbook.runtime.mesh.groups import ProcessGroups
from meshbook.runtime.node.ledger import OwnedMesh, Policy
from meshbook.runtime.traces import SourceLine, calling_place

if TYPE_CHECKING:
    from meshbook.runtime.mesh.procs import ProcMesh
    from meshbook.runtime.mesh.spawned import Spawned
    from meshbook.runtime.mesh.worker_specs import WorkerSpecs

# Told the mesh and the ranks that were healed; what it begins is waited for. It must not wait itself.
Afterwards = Callable[["ProcMesh", list[int]], Future[Any] | None]


class Ownership:
    """What the handles of a mesh share where it was spawned: what it is now, whether it has been stopped."""

    current: ProcMesh  # the handle of it as it is now

    def __init__(self, specs: WorkerSpecs | None = None) -> None:
        self.specs = specs  # None for a reference
        self.stopped: Future[None] | None = None
        self.afterwards: list[Afterwards] = []  # what follows each heal
        self.groups = ProcessGroups()
        # Held by whoever heals, resizes or stops the mesh, until he has asked for that: a process that is asked for
        # after the others were told to end would stay. Before `Node.noting`, where both are needed.
        self.changing = threading.RLock()

    def handle(self) -> ProcMesh:
        return self.current


class Stoppable(Protocol):
    """A mesh that somebody owns."""

    def stop(self, reason: str = ...) -> Future[None]: ...


def own(
    key: str,
    name: str,
    ranks: dict[str, int],
    handle: Callable[[], Stoppable],
    again: Callable[[Sequence[int]], Any],
    *,
    are_processes: bool = False,
    policy: Policy | None = None,
    spawned: Spawned | None = None,
) -> OwnedMesh:
    """Note that whoever runs here answers for a mesh.

    `ranks` by node; `handle` makes a handle of it, and not the one that the user has; `again` starts ranks again.
    """
    instance = context().actor_instance
    owner = instance.key if instance.control is not None else ""

    def stop(reason: str) -> Future[None]:
        return handle().stop(reason)

    here = SourceLine.of(calling_place(2))
    owned_mesh = OwnedMesh(
        *(key, name, owner, ranks, stop, handle, contextvars.copy_context(), again),
        spawned_at=here if here.is_of_user else None,
        are_processes=are_processes,
        policy=policy,
        spawned=spawned,
    )
    instance.node.ledger.add(owned_mesh)
    return owned_mesh
