"""What ranks say of their names, asked beside their cells: within a budget of time, or else as they told it last."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from meshbook.magics.errors import UserError
from meshbook.magics.introspection.cached import complete_told
from meshbook.magics.meshes.registry import NotebookMesh
from meshbook.magics.notebook import Notebook
from meshbook.magics.syntax.cell_options import CellOptions, parse_cell_options
from meshbook.magics.syntax.selectors import LastCell
from meshbook.runtime.actor.context import Context
from meshbook.runtime.actor.future import Future
from meshbook.runtime.cells.completing import Match
from meshbook.runtime.cells.inspecting import Inspected
from meshbook.runtime.cells.snapshot import Snapshot
from meshbook.runtime.errors import MeshbookError

BUDGET = 0.15  # seconds: a person who types waits for no more


class RankNames:
    """Of all meshes of a notebook."""

    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook
        # By node, whose names are never used twice in a run. Of each only the last question may be without answer.
        self._open: dict[str, Future[Any]] = {}
        self._snapshots: dict[str, Future[Snapshot | None]] = {}
        self._seen: dict[str, LastCell] = {}  # by mesh
        self._names: dict[str, tuple[str, ...]] = {}  # as they were when the snapshot was asked for

    def targets(self, options: str) -> tuple[NotebookMesh, list[int]] | None:
        """The ranks that an option line means, the dead last; all, where it means none. None where no mesh is up."""
        for line in (options, ""):
            try:
                asked = parse_cell_options(line)
                mesh, ranks = self._notebook.ranks_of(asked.selection if isinstance(asked, CellOptions) else "all")
            except UserError:
                continue
            return mesh, sorted(ranks, key=lambda rank: (rank in mesh.dead, rank))
        return None

    def ask_matches(self, mesh: NotebookMesh, rank: int, before: str) -> Future[list[Match] | None] | None:
        """What may come at the end of a source; None where the rank has not even answered the last question."""
        return self._ask(mesh, rank, "complete", before)

    def ask_inspections(
        self, mesh: NotebookMesh, ranks: Sequence[int], name: str, detail: int, omitted: Sequence[str]
    ) -> dict[int, Future[Inspected | None] | None]:
        """What these ranks have under a name; the whole of it from the first."""
        arguments = name, detail, tuple(omitted)
        return {rank: self._ask(mesh, rank, "inspect", *arguments, rank == ranks[0]) for rank in ranks}

    def cached_kind(self, mesh: NotebookMesh, rank: int, name: str) -> str | None:
        """The kind of a name that this rank had after its last cell; None where it had none of that name."""
        told = [match for match in self.cached_matches(mesh, rank, name) if match.text == name]
        return told[0].kind if told else None

    def cached_matches(self, mesh: NotebookMesh, rank: int, before: str) -> list[Match]:
        """The same from what the rank told last."""
        kept = self._snapshots.get(mesh.procs.nodes[rank].node)
        snapshot = kept.get() if kept is not None and _is_good(kept) else None
        return complete_told(before, mesh.names.get(rank, ()), snapshot or Snapshot())

    def after_cell(self) -> None:
        """A cell has ended: where it made names, have them described while there is time."""
        for mesh in self._notebook.meshes:
            if mesh.last is self._seen.get(mesh.name):
                continue
            self._seen[mesh.name] = mesh.last
            ranks = (mesh.last.ok | mesh.last.failed) - mesh.dead.keys()
            if not ranks:
                continue
            rank = min(ranks)
            node, names = _node_of(mesh, rank), mesh.names.get(rank, ())  # one that was born anew has told of none
            if names is not self._names.get(node, ()) and (asked := self._ask(mesh, rank, "snapshot")) is not None:
                self._names[node], self._snapshots[node] = names, asked

    def _ask(self, mesh: NotebookMesh, rank: int, what: str, *arguments: Any) -> Future[Any] | None:
        node = _node_of(mesh, rank)
        before = self._open.get(node)
        if rank in mesh.dead or (before is not None and not before.done()):
            return None
        try:
            asked = ask(mesh, [rank], what, *arguments)[0]
        except MeshbookError:  # the mesh is being taken down
            return None
        self._open[node] = asked
        return asked


def ask(mesh: NotebookMesh, ranks: Sequence[int], what: str, *arguments: Any) -> list[Future[Any]]:
    """Ask these ranks beside their cells, from whatever thread; one future a rank."""
    ranks_asked: Any = mesh.inspection._with_region(mesh.procs.region.pick(ranks))
    client = Context(mesh.session.context.actor_instance)
    return list(client.run(getattr(ranks_asked, what).call_each, *arguments))


def answer_of(asked: Future[Any] | None, until: float) -> Any:
    """The answer, if it is there until then (of the monotonic clock), or None."""
    if asked is None:
        return None
    try:
        asked.wait_here(max(0.0, until - time.monotonic()))
    except (TimeoutError, MeshbookError):
        return None
    return asked.get()


def _is_good(asked: Future[Any]) -> bool:
    return asked.done() and asked.exception() is None


def _node_of(mesh: NotebookMesh, rank: int) -> str:
    return mesh.procs.nodes[rank].node
