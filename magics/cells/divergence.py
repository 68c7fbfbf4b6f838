"""When ranks are apart for long, some done or waiting and the others elsewhere: one line that says where all are.

The same where all wait in a collective, and the mesh has ranks that are not in the cell.

Pure: it says when to look, is given what was seen, and makes the line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from meshbook.magics.meshes.whereabouts import RankWhereabouts, count_ranks, format_whereabouts
from meshbook.runtime.geometry.ranges import name_ranks

PATIENCE = 5.0  # seconds: after the last answer, and between looks
SOON = 1.0  # where a line is on show that may have become untrue


class DivergenceWatch:
    """Looks at the ranks of one cell that still run. `done` are those that have answered.

    `absent` are ranks of the mesh that the cell does not run on: a collective may wait for them for ever.
    """

    def __init__(self, started: float, absent: Sequence[int] = ()) -> None:
        self._absent = absent
        self._next = started + PATIENCE - (SOON if absent else 0.0)  # who waits is looked at twice
        self._before: dict[int, str] = {}
        self._shows = False
        self._is_interrupted = False

    def answered(self, now: float) -> None:
        """A rank has answered: the others may follow."""
        is_urgent = self._shows or self._is_interrupted
        self._next = now + SOON if is_urgent else max(self._next, now + PATIENCE)

    def is_due(self, now: float) -> bool:
        """Whether to look now; then no more until `take`."""
        if now < self._next:
            return False
        self._next = math.inf
        return True

    def hurry(self, now: float) -> None:
        """The ranks have been interrupted: who does not heed that is to be seen soon."""
        self._is_interrupted = True
        self._next = now + SOON

    def take(self, roll: Mapping[int, RankWhereabouts], done: Sequence[int], now: float) -> str:
        """What the cell is to say, after a look at the ranks that run; empty where they are together."""
        waiting = {rank: str(where) for rank, where in roll.items() if where.is_waiting}
        is_apart = bool(waiting) and len(set(map(str, roll.values()))) > 1
        stays = waiting == self._before  # in any training ranks wait for each other for a moment
        self._before = waiting
        awaits_absent = bool(self._absent) and len(waiting) == len(roll) > 0
        self._next = now + (SOON if (is_apart or awaits_absent) and not stays else PATIENCE)
        self._shows = bool(done) or _has_mute(roll) or ((is_apart or awaits_absent) and stays)
        if not self._shows or not roll:
            return ""
        parts = [f"{count_ranks(sorted(done))} done"] if done else []
        missing = f"{name_ranks(self._absent)} {'is' if len(self._absent) == 1 else 'are'} not in this cell"
        return ", ".join([*parts, format_whereabouts(roll), *([missing] if awaits_absent else [])])


def _has_mute(roll: Mapping[int, RankWhereabouts]) -> bool:
    return any(where.said is None for where in roll.values())
