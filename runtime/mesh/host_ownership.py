"""The ends of processes on owned hosts: waiting for them, and reporting processes that were never started."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import ExitReport, ProcessDied
from meshbook.runtime.mesh.actors import current_node
from meshbook.runtime.node.node import Node
from meshbook.runtime.transport.home import host_of
from meshbook.runtime.wire.messages import Address

if TYPE_CHECKING:
    from meshbook.runtime.mesh.procs import ProcMesh
    from meshbook.runtime.mesh.worker_specs import WorkerSpec


class HostOwnership:
    """State that handles of the same hosts share in a process: the spawned meshes, and the end of the hosts."""

    def __init__(self, agents: Sequence[Address]) -> None:
        self.agents = list(agents)  # with those of hosts that have joined
        self.shutdown: Future[None] | None = None
        self.is_over = False  # the session and its hosts have ended
        self.meshes: dict[str, ProcMesh] = {}  # meshes with live processes
        self.drained: set[str] = set()  # nodes of agents that end because their host was drained

    def add(self, mesh: ProcMesh) -> None:
        """Track a mesh, by its newest handle, until its processes have ended. They may have been restarted."""
        is_watched = mesh.name in self.meshes
        self.meshes[mesh.name] = mesh
        if not is_watched:
            self._watch(mesh, current_node())

    def _watch(self, mesh: ProcMesh, node: Node) -> None:
        def look() -> None:
            newest = self.meshes[mesh.name]
            # True if the mesh was resized or healed meanwhile.
            if any(node.peers.report_of(address.node) is None for address in newest.nodes):
                self._watch(newest, node)  # this thread has no context: looking for one would start a session
            else:
                del self.meshes[mesh.name]

        when_ended(node, [address.node for address in mesh.nodes]).when_done(look)

    def uses(self, agent: Address) -> bool:
        """Whether a mesh has processes on the host of this agent."""
        return any(host_of(node) == host_of(agent) for mesh in self.meshes.values() for node in mesh.nodes)

    def end_meshes(self, ended: Future[None]) -> None:
        """Record that these meshes end with their hosts: nothing can be spawned on them any more."""
        for mesh in list(self.meshes.values()):
            mesh.note_end(ended)


def when_ended(node: Node, names: Sequence[str]) -> Future[None]:
    """Return a future that resolves once each of these nodes has been reported as ended."""
    future: Future[None] = Future.pending()
    missing = set(names)

    def note(report: ExitReport) -> None:
        missing.discard(report.node)
        look()

    def look() -> None:
        if not missing:  # unless some were restarted meanwhile
            missing.update(name for name in names if node.peers.report_of(name) is None)
        if not missing and not future.done():
            with contextlib.suppress(ValueError):  # two threads may run this at once
                node.peers.when_down.remove(note)
            future.resolve(lambda: None)

    # Register first, then check, so an end in between is not missed.
    node.peers.when_down.append(note)
    missing -= {name for name in names if node.peers.report_of(name) is not None}
    look()
    return future


def report_unstarted(asked: Future[None], specs: Sequence[WorkerSpec]) -> None:
    """If the request to the agent fails, announce its workers as ended, so that calls to them fail everywhere."""
    if not specs:
        return
    node = current_node()

    def look() -> None:
        if (error := asked.exception()) is not None:
            names = [spec.address.node for spec in specs]
            if isinstance(error, ProcessDied):
                reports = list(map(error.report.of_guest, names))
            else:
                why = f"its host agent could not start it: {error}"
                reports = [ExitReport(name, 0, None, hint=why) for name in names]
            node.peers.announce_all_down(reports, specs[0].world.agents)

    asked.when_done(look)
