"""Where each rank of a cell stands before it begins: its turn has not come, or it is behind another cell.

`schedule` plans the waves of a cell; `queues` knows which executions each process has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from meshbook.magics.queues import RankQueues
from meshbook.magics.schedule import StartWave


@dataclass(frozen=True, slots=True)
class StartTurn:
    """The ranks that begin now; those that never will, and why."""

    begins: tuple[int, ...] = ()
    skipped: tuple[int, ...] = ()
    reason: str = ""


class AdmissionQueue:
    """The ranks of one execution. `nodes` are their processes; `title` is what cells show that wait for it.

    `leave`, `ahead` and `to_come` are for any thread, the rest is for the loop of the cell.
    """

    def __init__(
        self, queues: RankQueues, nodes: Mapping[int, str], waves: Iterable[StartWave], *, origin: str, title: str
    ) -> None:
        self._queues = queues
        self._nodes = nodes
        self._origin = origin
        self._title = title
        self._waves = tuple(waves)  # that are still to begin
        self._begun: set[int] = set()

    def take_turn(self, silent: Collection[int], *, has_failed: bool) -> StartTurn:
        """Which ranks begin now, once those have answered that have begun; the caller sends them the cell.

        `silent` are the ranks that have not answered.
        """
        if not self._waves or not self._begun.isdisjoint(silent):
            return StartTurn()
        wave = self._waves[0]
        if has_failed and wave.unless_failed:
            return StartTurn(skipped=self._take_away(self.to_come), reason=wave.unless_failed)
        self._waves = self._waves[1:]
        self.resume(wave.ranks)
        return StartTurn(begins=wave.ranks)

    def resume(self, ranks: Iterable[int]) -> None:
        """These ranks have been sent the cell, and have not answered."""
        ranks = sorted(ranks)
        self._begun.update(ranks)
        self._queues.join((self._nodes[rank] for rank in ranks), self._origin, self._title)

    def leave(self, rank: int) -> None:
        """A rank has answered."""
        self._queues.leave(self._nodes[rank], self._origin)

    def give_away(self) -> tuple[StartWave, ...]:
        """Let no other rank begin; return the waves that were still to come."""
        waves, self._waves = self._waves, ()
        return waves

    def withdraw(self, ranks: Collection[int]) -> tuple[dict[int, str], list[int]]:
        """Give up what has not begun on these ranks: why not, by rank; and those that have the cell, begun or not."""
        sent = {rank: title for rank, title in self._sent().items() if rank in ranks}
        behind = {rank: f"{title} was still running" for rank, title in sent.items() if title}
        return behind | dict.fromkeys(self._take_away(ranks), "the turn had not come"), sorted(sent)

    def _take_away(self, ranks: Collection[int]) -> tuple[int, ...]:
        """Take the turn of these ranks away; return those that have not had it."""
        taken = tuple(sorted(self.to_come.intersection(ranks)))
        left = [StartWave(tuple(set(wave.ranks).difference(taken)), wave.unless_failed) for wave in self._waves]
        self._waves = tuple(wave for wave in left if wave.ranks)
        return taken

    def _sent(self) -> dict[int, str]:
        """The ranks that have been sent it and have not answered, with the title of what is before it there."""
        return self._queues.ahead_of(self._nodes, self._origin)

    def ahead(self) -> dict[int, str]:
        """What each rank waits for that has been sent the cell, and is at another one."""
        return {rank: title for rank, title in self._sent().items() if title}

    def at_work(self, ranks: Collection[int]) -> list[int]:
        """Those of these ranks that are at it."""
        return sorted(rank for rank, title in self._sent().items() if rank in ranks and not title)

    @property
    def to_come(self) -> frozenset[int]:
        """The ranks whose turn has not come."""
        return frozenset(rank for wave in self._waves for rank in wave.ranks)
