"""`monarch.heal_mesh`: restart the dead ranks of a mesh."""

from __future__ import annotations

from meshbook.runtime.actor.future import Future
from meshbook.runtime.mesh.procs import ProcMesh


def heal_mesh(mesh: ProcMesh) -> Future[list[int]]:
    """Restart the dead processes of this mesh: `mesh.heal()`. Messages sent from now on reach the new processes.

    Resolves to the ranks that were healed, once they are up; raises what `ProcMesh.heal` raises.
    """
    return mesh.heal()
