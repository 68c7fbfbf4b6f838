"""Meshes that run nothing: `%mesh up --idle` ends them after a time, and returns their hosts to the launcher."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence

from meshbook.magics.meshes.registry import NotebookMesh
from meshbook.runtime.clock import monotonic
from meshbook.runtime.errors import MeshbookError
from meshbook.runtime.telemetry.vitals import Activity

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


def watch_idleness(
    limit: Callable[[], float], meshes: Callable[[], Sequence[NotebookMesh]], end: Callable[[], None]
) -> None:
    """Call `end` on another thread once these meshes have been idle for `limit()` seconds; stop when there are none."""
    timer = IdleTimer(limit, lambda seconds: any(was_busy(mesh, seconds) for mesh in meshes()))
    ticks = threading.Event()  # never set: a wait that a debugger and `freezegun` do not change

    def run() -> None:
        while meshes():
            pause = timer.look()
            if pause is None:
                try:
                    end()
                except Exception:  # the hosts may be lost; the next cell reports that
                    logger.exception("idle hosts could not be returned")
                return
            ticks.wait(pause)

    threading.Thread(target=run, name="meshbook idle hosts", daemon=True).start()


def was_busy(mesh: NotebookMesh, seconds: float) -> bool:
    """Whether the ranks of a mesh have run anything in the last so many seconds, or a client of its run is connected.

    This includes cells and jobs, calls by any process, and threads that compute.
    """
    nodes = [address.node for address in mesh.procs.nodes]
    history = mesh.session.history
    if min(mesh.queues.seconds_free(nodes), default=math.inf) <= seconds or mesh.session.node.calls.awaits(nodes):
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
