"""Queries of ranks' names while cells run, within a time budget; late answers are replaced by the last snapshot."""

from __future__ import annotations

import builtins
import keyword
import re
import time
from collections.abc import Iterable, Sequence
from typing import Any

from meshbook.magics.errors import UserError
from meshbook.magics.meshes.registry import NotebookMesh
from meshbook.magics.notebook import Notebook
from meshbook.magics.syntax.cell_options import CellOptions, parse_cell_options
from meshbook.magics.syntax.selectors import LastCell
from meshbook.runtime.actor.context import Context
from meshbook.runtime.actor.future import Future
from meshbook.runtime.cells.completion import Match, Snapshot, kind_of
from meshbook.runtime.cells.object_info import Inspected
from meshbook.runtime.errors import MeshbookError

ANSWER_SECONDS = 0.15  # seconds: a longer wait disturbs typing


class RankNames:
    """The names on the ranks of all meshes of a notebook."""

    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook
        # By node, whose names are unique in a run. At most one request per node is pending.
        self._open: dict[str, Future[Any]] = {}
        self._snapshots: dict[str, Future[Snapshot | None]] = {}
        self._seen: dict[str, LastCell] = {}  # the last cell, by mesh
        self._names: dict[str, tuple[str, ...]] = {}  # at the time of the snapshot request

    def targets(self, options: str) -> tuple[NotebookMesh, list[int]] | None:
        """Return the ranks of an option line, dead ranks last; all if it selects none. None if no mesh is up."""
        for line in (options, ""):
            try:
                parsed = parse_cell_options(line)
                mesh, ranks = self._notebook.meshes.ranks_of(
                    parsed.selection if isinstance(parsed, CellOptions) else "all"
                )
            except UserError:
                continue
            return mesh, sorted(ranks, key=lambda rank: (rank in mesh.dead, rank))
        return None

    def ask_matches(self, mesh: NotebookMesh, rank: int, before: str) -> Future[list[Match] | None] | None:
        """Request the completions at the end of a source; None if the rank has not answered the previous request."""
        return self._ask(mesh, rank, "complete", before)

    def ask_inspections(
        self, mesh: NotebookMesh, ranks: Sequence[int], name: str, detail: int, omitted: Sequence[str]
    ) -> dict[int, Future[Inspected | None] | None]:
        """Request a name from these ranks; the first sends all details."""
        arguments = name, detail, tuple(omitted)
        return {rank: self._ask(mesh, rank, "inspect", *arguments, rank == ranks[0]) for rank in ranks}

    def cached_kind(self, mesh: NotebookMesh, rank: int, name: str) -> str | None:
        """Return the kind of a name that this rank had after its last cell; None if it had no such name."""
        found = [match for match in self.cached_matches(mesh, rank, name) if match.text == name]
        return found[0].kind if found else None

    def cached_matches(self, mesh: NotebookMesh, rank: int, before: str) -> list[Match]:
        """Return the completions from the rank's last snapshot."""
        kept = self._snapshots.get(mesh.procs.nodes[rank].node)
        is_usable = kept is not None and kept.done() and kept.exception() is None
        snapshot = kept.get() if kept is not None and is_usable else None
        return complete_cached(before, mesh.names.get(rank, ()), snapshot or Snapshot())

    def after_cell(self) -> None:
        """Request a snapshot after a cell that made names, while there is time."""
        for mesh in self._notebook.meshes:
            if mesh.last is self._seen.get(mesh.name):
                continue
            self._seen[mesh.name] = mesh.last
            ranks = (mesh.last.ok | mesh.last.failed) - mesh.dead.keys()
            if not ranks:
                continue
            rank = min(ranks)
            node, names = _node_of(mesh, rank), mesh.names.get(rank, ())  # a restarted rank has reported none
            if names is not self._names.get(node, ()) and (future := self._ask(mesh, rank, "snapshot")) is not None:
                self._names[node], self._snapshots[node] = names, future

    def _ask(self, mesh: NotebookMesh, rank: int, what: str, *arguments: Any) -> Future[Any] | None:
        node = _node_of(mesh, rank)
        before = self._open.get(node)
        if rank in mesh.dead or (before is not None and not before.done()):
            return None
        try:
            future = request(mesh, [rank], what, *arguments)[0]
        except MeshbookError:  # the mesh is stopping
            return None
        self._open[node] = future
        return future


def request(mesh: NotebookMesh, ranks: Sequence[int], what: str, *arguments: Any) -> list[Future[Any]]:
    """Send a request to these ranks beside their cells, from any thread; return one future per rank."""
    inspection: Any = mesh.inspection._with_region(mesh.procs.region.pick(ranks))
    client = Context(mesh.session.context.actor_instance)
    return list(client.run(getattr(inspection, what).call_each, *arguments))


def answer_of(future: Future[Any] | None, until: float) -> Any:
    """Return the answer if it arrives by then (on the monotonic clock), else None."""
    if future is None:
        return None
    try:
        future.wait_here(max(0.0, until - time.monotonic()))
    except (TimeoutError, MeshbookError):
        return None
    return future.get()


def _node_of(mesh: NotebookMesh, rank: int) -> str:
    return mesh.procs.nodes[rank].node


BUILT_IN_NAMES = ("device", "local_rank", "point", "rank", "world_size")  # names that each rank has from its start
_NAME = r"[^\W\d]\w*"
_ATTRIBUTE = re.compile(rf"(?<![\w.\])])({_NAME})\.(\w*)\Z")
_BARE = re.compile(rf"(?<![\w.])(?:{_NAME})?\Z")


def complete_cached(before: str, names: Iterable[str], snapshot: Snapshot) -> list[Match]:
    """Complete the name at the end of the source: to a name, or to a public attribute of a name."""
    end = len(before)
    if attribute := _ATTRIBUTE.search(before):
        start = attribute.start(2)
        return [
            Match(each, start, end) for each in snapshot.attributes.get(attribute[1], ()) if _fits(each, before, start)
        ]
    if (bare := _BARE.search(before)) is None:
        return []
    start = bare.start()
    known = dict.fromkeys(keyword.kwlist, "keyword") | {name: kind_of(value) for name, value in vars(builtins).items()}
    known |= dict.fromkeys((*BUILT_IN_NAMES, *names), "instance") | {
        name: snapshot.kinds[name] for name in names if name in snapshot.kinds
    }
    offered = (name for name in known if _fits(name, before, start) and (start < end or not name.startswith("_")))
    return [Match(name, start, end, known[name]) for name in sorted(offered)]


def _fits(name: str, before: str, start: int) -> bool:
    return name.startswith(before[start:])
