"""What `%mesh status` says of a mesh."""

from __future__ import annotations

from collections.abc import Iterator

from meshbook.magics.losses import tell_lost, tell_stuck
from meshbook.magics.meshes import NotebookMesh
from meshbook.magics.vitals import tell_vitals
from meshbook.runtime.errors import MeshbookError

MOST_EVENTS = 5
SOON = 1.0  # seconds, after which a status is shown without what was asked for


def state_of(mesh: NotebookMesh) -> Iterator[str]:
    """A line for the mesh, and one for each rank that is not well, or has been started again."""
    yield mesh.describe()
    if mesh.spares:
        yield f"  {_count_spares(mesh)} of {mesh.spares} spares are warm"
    for rank, report in sorted(mesh.dead.items()):
        pid = f" (pid {report.pid})" if report.pid else ""
        yield f"  rank {rank}{pid} ended: {report.cause}"
    for working in mesh.at_work():
        yield f"  {working}"
    if mesh.stuck:
        yield f"  {tell_stuck(mesh, mesh.stuck)}"
    for rank, names in sorted(mesh.lost.items()):
        if rank not in mesh.dead:
            yield f"  rank {rank} was started again; {tell_lost(names)}"


def _count_spares(mesh: NotebookMesh) -> str:
    """How many wait; it is the host that knows."""
    try:
        return str(mesh.procs.spares().get(timeout=SOON))
    except (TimeoutError, MeshbookError):
        return "?"


def vitals_of(mesh: NotebookMesh) -> Iterator[str]:
    """What its ranks use, as it was measured last; nothing in the first second."""
    known = mesh.session.history.vitals([address.node for address in mesh.procs.nodes])
    yield from tell_vitals(known, mesh.dead)


def history_of(mesh: NotebookMesh) -> Iterator[str]:
    """The last that has happened to the mesh; nothing where nothing has."""
    if events := [event for event in mesh.session.events if event.procs == mesh.procs.name][-MOST_EVENTS:]:
        yield "  last events:"
        yield from (f"    {event}" for event in events)
