"""Where each rank of a cell stands before it begins: its turn has not come, or it is behind another cell.

`schedule` says whose turn it is, `queues` which executions each process has; this is both for one execution.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from meshbook.magics.queues import RankQueues
from meshbook.magics.schedule import Schedule, Turn, Wave


class AdmissionQueue:
    """The ranks of one execution. `nodes` are their processes; `title` is what cells show that wait for it.

    `ahead` and `to_come` are for any thread, the rest for the loop of the cell.
    """

    def __init__(
        self, queues: RankQueues, nodes: Mapping[int, str], waves: Iterable[Wave], *, origin: str, title: str
    ) -> None:
        self._queues = queues
        self._nodes = nodes
        self._origin = origin
        self._title = title
        self._schedule = Schedule(waves)

    def take_turn(self, silent: Collection[int], *, has_failed: bool) -> Turn:
        """Which ranks begin now: the caller sends them the cell. `silent` are those that have not answered."""
        turn = self._schedule.take_turn(silent, has_failed=has_failed)
        self._join(turn.begins)
        return turn

    def resume(self, ranks: Collection[int]) -> None:
        """A notebook before this one has sent these ranks the cell, and they have not answered."""
        self._schedule.resume(ranks)
        self._join(sorted(ranks))

    def _join(self, ranks: Collection[int]) -> None:
        if ranks:
            self._queues.join((self._nodes[rank] for rank in ranks), self._origin, self._title)

    def leave(self, rank: int) -> None:
        """A rank has answered; from any thread."""
        self._queues.leave(self._nodes[rank], self._origin)

    def give_away(self) -> tuple[Wave, ...]:
        """Let no other rank begin; return the waves that were still to come."""
        return self._schedule.give_away()

    def withdraw(self, ranks: Collection[int]) -> tuple[dict[int, str], list[int]]:
        """Give up what has not begun on these ranks: why not, by rank; and those that have the cell, begun or not."""
        ahead = {
            rank: title for rank, title in self._queues.ahead_of(self._nodes, self._origin).items() if rank in ranks
        }
        behind = {rank: f"{title} was still running" for rank, title in ahead.items() if title}
        return behind | dict.fromkeys(self._schedule.withdraw(ranks), "the turn had not come"), sorted(ahead)

    def ahead(self) -> dict[int, str]:
        """What each rank waits for that has been sent the cell, and is at another one."""
        ahead = self._queues.ahead_of(self._nodes, self._origin)
        return {rank: title for rank, title in ahead.items() if title}

    def at_work(self, ranks: Collection[int]) -> list[int]:
        """Those of these ranks that are at it."""
        ahead = self._queues.ahead_of(self._nodes, self._origin)
        return sorted(rank for rank in ranks if ahead.get(rank) == "")

    @property
    def to_come(self) -> frozenset[int]:
        """The ranks whose turn has not come."""
        return self._schedule.to_come
