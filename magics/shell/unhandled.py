"""A failure that no actor handled, in a notebook: shown as an error of the cell that spawned the mesh.

A script ends at such a failure. A kernel keeps running: the user sees the cell concerned and continues.
"""

from __future__ import annotations

from meshbook.magics.output.actor_output import ActorOutputRouter
from meshbook.magics.output.messages import Error
from meshbook.runtime.actor.context import current_origin
from meshbook.runtime.actor.failure import MeshFailure
from meshbook.runtime.hosts.faults import is_default, set_unhandled_fault_hook, unhandled_fault_hook

MOST_REPORTS = 1  # of one mesh in full; the other ranks have mostly failed for the same reason
_RED = "\x1b[31m"
_RESET = "\x1b[0m"


class UnhandledFaultDisplay:
    """Shows faults in cells, through the hook at which a script would end."""

    def __init__(self, screen: ActorOutputRouter) -> None:
        self._screen = screen
        self._seen: dict[tuple[str, str], int] = {}  # by cell and mesh: how many ranks have failed

    def install(self) -> None:
        """Set the hook, unless the user has set one."""
        if is_default(unhandled_fault_hook()):
            set_unhandled_fault_hook(self.show)

    def show(self, failure: MeshFailure) -> None:
        """Publish a failure under the cell in whose context this runs: the one that spawned the mesh.

        A process that a person ended is not a failure.
        """
        if failure.ended_by:
            return
        origin = current_origin()
        key = origin, failure.mesh_name
        self._seen[key] = count = self._seen.get(key, 0) + 1
        rank = failure.crashed_ranks[-1]
        summary = f"rank {rank} of mesh {failure.mesh_name} has failed"
        report = failure.report().splitlines() if count <= MOST_REPORTS else []
        title = f"{_RED}MeshFailure{_RESET}: {summary}"
        self._screen.publish(origin, [Error("MeshFailure", summary, (title, *report))])
