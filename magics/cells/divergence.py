"""Detects ranks that are apart for long, some done or waiting and the others elsewhere; one line shows where all are.

It also detects ranks that all wait in a collective in which ranks outside the cell are missing.

Pure: it decides when to query the ranks, takes the answers, and formats the line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from meshbook.magics.meshes.whereabouts import RankWhereabouts, count_ranks, format_whereabouts
from meshbook.runtime.formats import name_ranks

PATIENCE = 5.0  # seconds: after the last answer, and between queries
SOON = 1.0  # seconds, if the shown line may be out of date


class DivergenceWatch:
    """Watches the ranks of one cell that still run. `done` are those that have answered.

    `absent` are ranks of the mesh that the cell does not run on: a collective may wait for them without end.
    """

    def __init__(self, started: float, absent: Sequence[int] = ()) -> None:
        self._absent = absent
        self._next = started + PATIENCE - (SOON if absent else 0.0)  # waiting ranks are queried twice
        self._before: dict[int, str] = {}
        self._shows = False
        self._is_interrupted = False

    def answered(self, now: float) -> None:
        """Record that a rank has answered: the others may follow."""
        is_urgent = self._shows or self._is_interrupted
        self._next = now + SOON if is_urgent else max(self._next, now + PATIENCE)

    def is_due(self, now: float) -> bool:
        """Whether to query the ranks now. Then False until `take`."""
        if now < self._next:
            return False
        self._next = math.inf
        return True

    def hurry(self, now: float) -> None:
        """Record an interrupt: ranks that ignore it must show soon."""
        self._is_interrupted = True
        self._next = now + SOON

    def take(self, whereabouts: Mapping[int, RankWhereabouts], done: Sequence[int], now: float) -> str:
        """Return the line to show, given the whereabouts of the running ranks; empty if they are together."""
        waiting = {rank: str(where) for rank, where in whereabouts.items() if where.is_waiting}
        is_apart = bool(waiting) and len(set(map(str, whereabouts.values()))) > 1
        stays = waiting == self._before  # in any training, ranks wait for each other for a moment
        self._before = waiting
        awaits_absent = bool(self._absent) and len(waiting) == len(whereabouts) > 0
        self._next = now + (SOON if (is_apart or awaits_absent) and not stays else PATIENCE)
        has_unresponsive = any(where.said is None for where in whereabouts.values())
        self._shows = bool(done) or has_unresponsive or ((is_apart or awaits_absent) and stays)
        if not self._shows or not whereabouts:
            return ""
        parts = [f"{count_ranks(sorted(done))} done"] if done else []
        missing = f"{name_ranks(self._absent)} {'is' if len(self._absent) == 1 else 'are'} not in this cell"
        return ", ".join([*parts, format_whereabouts(whereabouts), *([missing] if awaits_absent else [])])
