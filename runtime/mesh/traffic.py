"""The one-sided transfers of a mesh's processes: collected from each, in one table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshbook.runtime.actor.future import Future
from meshbook.runtime.actor.settled import when_settled
from meshbook.runtime.mesh.actors import current_node
from meshbook.runtime.mesh.groups import ask_processes
from meshbook.runtime.telemetry.traffic import TransferTable, table_of

if TYPE_CHECKING:
    from meshbook.runtime.mesh.procs import ProcMesh

ANSWER_S = 5.0  # time limit for a rank's answer; a rank that is stopped, or holds the GIL in C, does not answer


def ask_transfers(mesh: ProcMesh) -> Future[TransferTable]:
    """Return the rows of all ranks that answer, in rank order, and those rows of this process that a rank owns."""
    node = current_node()
    ranks = {address.node: f"rank {rank}" for rank, address in enumerate(mesh.nodes)}
    own = node.data_plane.traffic.rows() if node.data_plane is not None else []
    if set(ranks) == {node.address.node}:  # a client's own process hosts no process actor to call
        return Future.completed(table_of(own, (), lambda name: ranks.get(name, name)))
    done: Future[TransferTable] = Future.pending()
    asked = ask_processes(node, mesh, "transfers", limit=ANSWER_S)

    def put_together() -> None:
        rows = [row for future in asked if future.exception() is None for row in future.get()]
        if node.address.node not in ranks:
            rows += [row for row in own if row.owner in ranks]
        silent = [name for name, future in zip(ranks, asked, strict=True) if future.exception() is not None]
        done.resolve(lambda: table_of(rows, silent, lambda name: ranks.get(name, name)))

    when_settled(asked, put_together)
    return done
