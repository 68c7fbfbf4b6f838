"""The ranks of a cell before it begins: those whose wave has not come, and those busy with an earlier cell.

Each rank runs one cell at a time; later cells wait. The queues themselves are in the workers, so that they hold for all
other messages to a rank, too. `RankQueues` is the notebook's copy of them.

`plan_waves` plans in which order the ranks of a cell begin: all at once, some first (`--first`), or one by one
(`--seq`).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from meshbook.runtime.formats import name_ranks


@dataclass(frozen=True, slots=True)
class StartTurn:
    """The ranks that begin now; those that never will, and the reason."""

    begins: tuple[int, ...] = ()
    skipped: tuple[int, ...] = ()
    reason: str = ""


class AdmissionQueue:
    """The ranks of one execution. `nodes` are their processes; waiting cells show `title`.

    `leave`, `ahead` and `not_begun` are for any thread, the rest is for the loop of the cell.
    """

    def __init__(
        self, queues: RankQueues, nodes: Mapping[int, str], waves: Iterable[StartWave], *, origin: str, title: str
    ) -> None:
        self._queues = queues
        self._nodes = nodes
        self._origin = origin
        self._title = title
        self._waves = tuple(waves)  # that have not begun
        self._begun: set[int] = set()

    def take_turn(self, silent: Collection[int], *, has_failed: bool) -> StartTurn:
        """Return the ranks that begin now, after all begun ranks have answered; the caller sends them the cell.

        `silent` are the ranks that have not answered.
        """
        if not self._waves or not self._begun.isdisjoint(silent):
            return StartTurn()
        wave = self._waves[0]
        if has_failed and wave.unless_failed:
            return StartTurn(skipped=self._drop_waves(self.not_begun), reason=wave.unless_failed)
        self._waves = self._waves[1:]
        self.resume(wave.ranks)
        return StartTurn(begins=wave.ranks)

    def resume(self, ranks: Iterable[int]) -> None:
        """Record that these ranks have received the cell and have not answered."""
        ranks = sorted(ranks)
        self._begun.update(ranks)
        self._queues.join((self._nodes[rank] for rank in ranks), self._origin, self._title)

    def leave(self, rank: int) -> None:
        """Record that a rank has answered."""
        self._queues.leave(self._nodes[rank], self._origin)

    def release_waves(self) -> tuple[StartWave, ...]:
        """Let no other rank begin; return the waves that have not begun."""
        waves, self._waves = self._waves, ()
        return waves

    def withdraw(self, ranks: Collection[int]) -> tuple[dict[int, str], list[int]]:
        """Cancel the cell on these ranks where it has not begun.

        Returns the reason by rank, and those of the ranks that have received the cell, begun or not.
        """
        sent = {rank: title for rank, title in self._sent().items() if rank in ranks}
        behind = {rank: f"{title} was still running" for rank, title in sent.items() if title}
        return behind | dict.fromkeys(self._drop_waves(ranks), "the cell ended first"), sorted(sent)

    def _drop_waves(self, ranks: Collection[int]) -> tuple[int, ...]:
        """Cancel the turn of these ranks; return those that had not begun."""
        taken = tuple(sorted(self.not_begun.intersection(ranks)))
        left = [StartWave(tuple(set(wave.ranks).difference(taken)), wave.unless_failed) for wave in self._waves]
        self._waves = tuple(wave for wave in left if wave.ranks)
        return taken

    def _sent(self) -> dict[int, str]:
        """Ranks that were sent the cell and have not answered, with the title of the cell ahead of it there."""
        return self._queues.ahead_of(self._nodes, self._origin)

    def ahead(self) -> dict[int, str]:
        """The title of the cell ahead, by rank that has received this cell and runs another one."""
        return {rank: title for rank, title in self._sent().items() if title}

    def at_work(self, ranks: Collection[int]) -> list[int]:
        """Return those of these ranks that run the cell now."""
        return sorted(rank for rank, title in self._sent().items() if rank in ranks and not title)

    @property
    def not_begun(self) -> frozenset[int]:
        """The ranks whose turn has not come."""
        return frozenset(rank for wave in self._waves for rank in wave.ranks)


class RankQueues:
    """The executions that were sent to each process of a mesh and not answered, in order."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards the queues: answers arrive on the receiving thread
        self._queues: dict[str, dict[str, str]] = {}  # node -> origin -> title
        self._freed_at: dict[str, float] = {}  # node -> when its last execution ended

    def join(self, nodes: Iterable[str], origin: str, title: str) -> None:
        """Record that this execution was sent to these nodes."""
        with self._lock:
            for node in nodes:
                self._queues.setdefault(node, {})[origin] = title

    def leave(self, node: str, origin: str) -> None:
        """Record that this execution has ended on this node."""
        with self._lock:
            queue = self._queues.get(node, {})
            queue.pop(origin, None)
            if not queue:
                self._queues.pop(node, None)
                self._freed_at[node] = self._clock()

    def ahead_of(self, nodes: Mapping[int, str], origin: str) -> dict[int, str]:
        """The title of the execution ahead of this one, by rank; empty where none is.

        Only for ranks that were sent it and have not answered; `nodes` are their processes.
        """
        with self._lock:
            queues = {rank: self._queues.get(node, {}) for rank, node in nodes.items()}
            return {
                rank: "" if next(iter(queue)) == origin else next(iter(queue.values()))
                for rank, queue in queues.items()
                if origin in queue
            }

    def seconds_free(self, nodes: Sequence[str]) -> list[float]:
        """The seconds since each of these processes has been idle; infinite if it never had an execution."""
        now = self._clock()
        with self._lock:
            return [0.0 if node in self._queues else now - self._freed_at.get(node, -math.inf) for node in nodes]

    def at_work(self) -> dict[str, list[str]]:
        """The processes that run an execution, by its title."""
        with self._lock:
            heads = [(node, next(iter(queue.values()))) for node, queue in self._queues.items() if queue]
        found: dict[str, list[str]] = {}
        for node, title in heads:
            found.setdefault(title, []).append(node)
        return found


def format_waiting(ahead: Mapping[int, str], count: int) -> str:
    """Return `waiting for job 7 of cell 12`, with ranks unless all `count` ranks of the cell wait for it."""
    ranks_behind: dict[str, list[int]] = {}
    for rank, title in ahead.items():
        ranks_behind.setdefault(title, []).append(rank)
    parts = [
        title if len(ranks) == count else f"{title} ({name_ranks(ranks)})" for title, ranks in ranks_behind.items()
    ]
    return f"waiting for {', '.join(parts)}" if parts else ""


AFTER_FIRST = "a rank of --first failed"
AFTER_ERROR = "--seq stops at the first error"


@dataclass(frozen=True, slots=True)
class StartWave:
    """Ranks that begin together. `unless_failed`: the reason to skip them after a failure; empty: run them."""

    ranks: tuple[int, ...]
    unless_failed: str = ""


def plan_waves(
    ranks: Sequence[int], first: Collection[int] = (), *, one_by_one: bool = False, stops_on_error: bool = True
) -> tuple[StartWave, ...]:
    """Return the waves of a cell on these ranks. Those of `first` must succeed before the others begin."""
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
