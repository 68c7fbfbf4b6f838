"""Where each rank of a cell stands before it begins: its turn has not come, or it is behind another cell.

`schedule` plans the waves of a cell; `queues` knows which executions each process has.

Who stands at the ranks of a mesh: each runs one cell at a time, and those that come meanwhile wait behind it.

The queues themselves are in the workers, so that they hold for whatever else is sent to a rank, too; this is what the
notebook knows of them.

In which order the ranks of a cell are to begin: all at once, some first (`--first`), one by one (`--seq`).

Pure. Not for whose turn it is while the cell runs (`attendance`).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from meshbook.runtime.geometry.ranges import name_ranks


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


def format_waiting(ahead: Mapping[int, str], count: int) -> str:
    """`waiting for job 7 of cell 12`, with the ranks where they are not all of the `count` that the cell has."""
    ranks_behind: dict[str, list[int]] = {}
    for rank, title in ahead.items():
        ranks_behind.setdefault(title, []).append(rank)
    parts = [
        title if len(ranks) == count else f"{title} ({name_ranks(ranks)})" for title, ranks in ranks_behind.items()
    ]
    return f"waiting for {', '.join(parts)}" if parts else ""


AFTER_FIRST = "the ranks of --first did not succeed"
AFTER_ERROR = "--seq stops at the first error"


@dataclass(frozen=True, slots=True)
class StartWave:
    """Ranks that begin together. `unless_failed` says why they do not if a rank before them failed; empty: they do."""

    ranks: tuple[int, ...]
    unless_failed: str = ""


def plan_waves(
    ranks: Sequence[int], first: Collection[int] = (), *, one_by_one: bool = False, stops_on_error: bool = True
) -> tuple[StartWave, ...]:
    """The waves of a cell on these ranks: those of `first` are done before the others begin, and have to succeed."""
    reason = AFTER_ERROR if one_by_one and stops_on_error else ""
    head = _split([rank for rank in ranks if rank in first], reason, one_by_one=one_by_one)
    tail = _split([rank for rank in ranks if rank not in first], reason, one_by_one=one_by_one)
    if head and tail:
        tail[0] = StartWave(tail[0].ranks, AFTER_FIRST)
    return (*head, *tail)


def _split(ranks: Sequence[int], reason: str, *, one_by_one: bool) -> list[StartWave]:
    if not one_by_one:
        return [StartWave(tuple(ranks))] if ranks else []
    return [StartWave((rank,), reason) for rank in ranks]
