"""`monarch.heal_mesh`: a mesh that has lost ranks gets them back."""

from __future__ import annotations

from meshbook.runtime.actor.future import Future
from meshbook.runtime.mesh.procs import ProcMesh


def heal_mesh(mesh: ProcMesh) -> Future[list[int]]:
    """Start again what has died of this mesh: `mesh.heal()`. What is sent from now on reaches the new processes.

    Resolves to the ranks that were healed, once they are there; raises what `ProcMesh.heal` raises.
    """
    return mesh.heal()
