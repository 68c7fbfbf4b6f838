"""Where each rank of a cell stands before it begins: its turn has not come, or it is behind another cell.

`schedule` says whose turn it is, `queues` who is before whom; this is both for one execution, from any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from meshbook.magics.queues import RankQueues
from meshbook.magics.schedule import Schedule, Turn, Wave


class Attendance:
    """The ranks of one execution. `nodes` are their processes; `title` is what those are told that wait for it."""

    def __init__(
        self, queues: RankQueues, nodes: Mapping[int, str], waves: Iterable[Wave], *, origin: str, title: str
    ) -> None:
        self._queues = queues
        self._nodes = nodes
        self._origin = origin
        self._title = title
        self._lock = threading.Lock()  # guards the next two: answers come on the receiving thread
        self._schedule = Schedule(waves)
        self._sent: set[int] = set()  # and not answered

    def take_turn(self) -> Turn:
        """Who is to begin now: whoever asks sends the cell to those."""
        with self._lock:
            turn = self._schedule.take_turn()
            self._sent.update(turn.begins)
        self._queues.join((self._nodes[rank] for rank in turn.begins), self._origin, self._title)
        return turn

    def resume(self, ranks: Iterable[int], *, has_failed: bool) -> None:
        """These have been sent the cell by a notebook before this one, and have not answered."""
        ranks = set(ranks)
        with self._lock:
            self._schedule.resume(ranks, has_failed=has_failed)
            self._sent.update(ranks)
        self._queues.join((self._nodes[rank] for rank in sorted(ranks)), self._origin, self._title)

    def give_away(self) -> tuple[Wave, ...]:
        """Let no other rank begin; the waves that were still to come."""
        with self._lock:
            return self._schedule.give_away()

    def answered(self, rank: int, *, failed: bool) -> None:
        """A rank is done with it."""
        self._queues.leave(self._nodes[rank], self._origin)
        with self._lock:
            self._sent.discard(rank)
            self._schedule.answered(rank, failed=failed)

    def withdraw(self, ranks: Iterable[int]) -> tuple[dict[int, str], list[int]]:
        """Give up what has not begun on these ranks: why not, by rank; and those that have the cell, begun or not."""
        ranks = set(ranks)
        behind = {rank: f"{title} was still running" for rank, title in self.ahead().items() if rank in ranks}
        with self._lock:
            unsent = self._schedule.withdraw(ranks)
            for rank in behind:
                self._schedule.answered(rank, failed=True)
            sent = sorted(self._sent & ranks)
        return behind | dict.fromkeys(unsent, "the turn had not come"), sent

    def ahead(self) -> dict[int, str]:
        """What each rank waits for that has been sent the cell, and is at another one."""
        with self._lock:
            sent = sorted(self._sent)
        found = {rank: self._queues.ahead_of(self._nodes[rank], self._origin) for rank in sent}
        return {rank: title for rank, title in found.items() if title}

    def at_work(self, ranks: Iterable[int]) -> list[int]:
        """Those of these ranks that are at it."""
        ahead = self.ahead()
        with self._lock:
            return sorted(rank for rank in self._sent.intersection(ranks) if rank not in ahead)

    @property
    def to_come(self) -> frozenset[int]:
        """The ranks whose turn has not come."""
        with self._lock:
            return self._schedule.to_come
