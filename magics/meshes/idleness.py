"""Meshes that run nothing: `%mesh up --idle` ends them after a time, and returns their hosts to the launcher."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from meshbook.magics.meshes.mesh_hosts import MeshHosts
from meshbook.magics.meshes.registry import NotebookMesh
from meshbook.magics.output.publisher import StreamText, publisher_for
from meshbook.runtime.clock import monotonic
from meshbook.runtime.errors import MeshbookError
from meshbook.runtime.telemetry.vitals import Activity

if TYPE_CHECKING:  # it has the meshes
    from meshbook.magics.notebook import Notebook

logger = logging.getLogger(__name__)
LONGEST_PAUSE = 60.0  # seconds between two looks: less than the history of vitals
SHORTEST_PAUSE = 1.0  # an idle process wakes at most once a second
BUSY_CORES = 0.05  # that a process uses if a thread of it works
ANSWER_SECONDS = 5.0  # for the agent to count the clients of the run


class IdleTimer:
    """Decides when hosts have been idle for `limit()` seconds.

    `was_busy` returns whether anything ran in the last so many seconds.
    """

    def __init__(
        self,
        limit: Callable[[], float],
        was_busy: Callable[[float], bool],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._limit = limit
        self._was_busy = was_busy
        self._clock = clock
        self._looked = self._busy = clock()

    def look(self) -> float | None:
        """Return the seconds until the next look; None if the time is over."""
        now, limit = self._clock(), self._limit()
        if self._was_busy(now - self._looked):
            self._busy = now
        self._looked = now
        if now >= self._busy + limit:
            return None
        return max(SHORTEST_PAUSE, min(self._busy + limit - now, limit / 4, LONGEST_PAUSE))


def watch_hosts(notebook: Notebook, hosts: MeshHosts) -> None:
    """Watch hosts that have a time limit: once they are idle, end their meshes, and show why in the present cell."""
    if not hosts.idle:
        return
    publisher = publisher_for(notebook.shell)
    meshes = notebook.meshes
    timer = IdleTimer(
        lambda: hosts.idle, lambda seconds: any(was_busy(mesh, seconds) for mesh in meshes.sharing(hosts))
    )
    ticks = threading.Event()  # never set: a wait that programs which replace `time.sleep` do not change

    def run() -> None:
        pause: float | None = 0.0
        while pause is not None:
            ticks.wait(pause)
            if not meshes.sharing(hosts):  # they have ended
                return
            pause = timer.look()
        try:
            publisher.publish([StreamText("stdout", f"{meshes.end_idle(hosts)}\n")])
        except Exception:  # the hosts may be lost; the next cell reports that
            logger.exception("idle hosts could not be returned")

    threading.Thread(target=run, name="meshbook idle hosts", daemon=True).start()


def was_busy(mesh: NotebookMesh, seconds: float) -> bool:
    """Whether the ranks of a mesh have run anything in the last so many seconds, or a client of its run is connected.

    This includes cells and jobs, calls by any process, and threads that compute.
    """
    nodes = [address.node for address in mesh.procs.nodes]
    history = mesh.session.history
    if min(mesh.queues.seconds_free(nodes), default=math.inf) <= seconds or mesh.session.node.table.awaits(nodes):
        return True
    if (history.vitals(nodes).activity != Activity.IDLE).any():
        return True
    last = history.series(nodes, ("received", "cpu"))[..., -max(1, math.ceil(seconds)) :]  # comparisons with NaN fail
    if (last[:, 0] > 0).any() or (last[:, 1] > BUSY_CORES).any():
        return True
    try:
        return mesh.session.count_clients().get(ANSWER_SECONDS) > 0
    except (TimeoutError, MeshbookError):
        return False
