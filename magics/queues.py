"""Who stands at the ranks of a mesh: each runs one cell at a time, and those that come meanwhile wait behind it.

The queues themselves are in the workers, so that they hold for whatever else is sent to a rank, too; this is what the
notebook knows of them.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from meshbook.runtime.geometry.ranges import name_ranks


class RankQueues:
    """The executions that were sent to each process of a mesh, and that it has not answered, in their order."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards the queues: answers come on the receiving thread
        self._queues: dict[str, dict[str, str]] = {}  # node -> origin -> title
        self._freed_at: dict[str, float] = {}  # node -> when its last execution was over

    def join(self, nodes: Iterable[str], origin: str, title: str) -> None:
        """This execution has been sent there."""
        with self._lock:
            for node in nodes:
                self._queues.setdefault(node, {})[origin] = title

    def leave(self, node: str, origin: str) -> None:
        """It is over there."""
        with self._lock:
            queue = self._queues.get(node, {})
            queue.pop(origin, None)
            if not queue:
                self._queues.pop(node, None)
                self._freed_at[node] = self._clock()

    def ahead_of(self, nodes: Mapping[int, str], origin: str) -> dict[int, str]:
        """What this execution waits for, by rank: a title, or the empty string where it waits for nothing.

        Only of those ranks that have been sent it and have not answered; `nodes` are their processes.
        """
        with self._lock:
            queues = {rank: self._queues.get(node, {}) for rank, node in nodes.items()}
            return {
                rank: "" if next(iter(queue)) == origin else next(iter(queue.values()))
                for rank, queue in queues.items()
                if origin in queue
            }

    def seconds_free(self, nodes: Sequence[str]) -> list[float]:
        """For how long each of these processes has had nothing to execute; infinite where it never had anything."""
        now = self._clock()
        with self._lock:
            return [0.0 if node in self._queues else now - self._freed_at.get(node, -math.inf) for node in nodes]

    def at_work(self) -> dict[str, list[str]]:
        """The processes that are at something, by its title."""
        with self._lock:
            heads = [(node, next(iter(queue.values()))) for node, queue in self._queues.items() if queue]
        found: dict[str, list[str]] = {}
        for node, title in heads:
            found.setdefault(title, []).append(node)
        return found


def tell_waiting(ahead: Mapping[int, str], count: int) -> str:
    """`waiting for job 7 of cell 12`, with the ranks where they are not all of the `count` that the cell has."""
    ranks_behind: dict[str, list[int]] = {}
    for rank, title in ahead.items():
        ranks_behind.setdefault(title, []).append(rank)
    parts = [
        title if len(ranks) == count else f"{title} ({name_ranks(ranks)})" for title, ranks in ranks_behind.items()
    ]
    return f"waiting for {', '.join(parts)}" if parts else ""
