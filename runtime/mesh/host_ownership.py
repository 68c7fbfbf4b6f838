"""Ends of processes, as the handles of their hosts see them: waiting for them, and what has never begun."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import ExitReport, ProcessDied
from meshbook.runtime.mesh.actors import current_node
from meshbook.runtime.node.node import Node

if TYPE_CHECKING:
    from meshbook.runtime.mesh.procs import ProcMesh
    from meshbook.runtime.mesh.worker_specs import WorkerSpec


class HostOwnership:
    """What the handles of the same hosts share in a process: what they spawned, and whether the hosts are gone."""

    def __init__(self) -> None:
        self.shutdown: Future[None] | None = None
        self.is_over = False  # the session has ended, and its hosts with it
        self.meshes: dict[str, ProcMesh] = {}  # that live

    def add(self, mesh: ProcMesh) -> None:
        """Know a mesh, by its newest handle, until its processes have ended. They may have been started again."""
        is_watched = mesh.name in self.meshes
        self.meshes[mesh.name] = mesh
        if not is_watched:
            self._watch(mesh)

    def _watch(self, mesh: ProcMesh) -> None:
        def look() -> None:
            newest = self.meshes[mesh.name]
            if any(node.peers.report_of(address.node) is None for address in newest.nodes):  # it was resized
                self._watch(newest)
            else:
                del self.meshes[mesh.name]

        node = current_node()
        when_ended(node, [address.node for address in mesh.nodes]).when_done(look)

    def end_meshes(self, ended: Future[None]) -> None:
        """They are stopped with their hosts: nothing is spawned on them any more."""
        for mesh in list(self.meshes.values()):
            mesh.note_end(ended)


def when_ended(node: Node, names: Sequence[str]) -> Future[None]:
    """Resolves once each of these nodes has been reported as ended."""
    future: Future[None] = Future.pending()
    missing = set(names)

    def note(report: ExitReport) -> None:
        missing.discard(report.node)
        look()

    def look() -> None:
        if not missing:  # unless some were started again since
            missing.update(name for name in names if node.peers.report_of(name) is None)
        if not missing and not future.done():
            with contextlib.suppress(ValueError):  # two threads may come here
                node.peers.when_down.remove(note)
            future.resolve(lambda: None)

    # First listen, then ask: an end in between is heard of either way.
    node.peers.when_down.append(note)
    missing -= {name for name in names if node.peers.report_of(name) is not None}
    look()
    return future


def mark_unborn(asked: Future[None], specs: Sequence[WorkerSpec]) -> None:
    """Where the agent could not even be asked, its workers will never be: say so to whoever calls them, anywhere."""
    node = current_node()

    def look() -> None:
        if (error := asked.exception()) is not None:
            for spec in specs:
                node.peers.announce_down(_report_unborn(error, spec.address.node), spec.world.agents)

    asked.when_done(look)


def _report_unborn(error: BaseException, node: str) -> ExitReport:
    if isinstance(error, ProcessDied):
        return error.report.of_guest(node)
    return ExitReport(node, 0, None, hint=f"its host agent could not start it: {error}")
