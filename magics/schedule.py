"""In which order the ranks of a cell begin: all at once, some before the others (`--first`), one by one (`--seq`).

Pure: given the ranks that have not answered, it says which begin. Not for ranks that wait for another cell (`queues`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

AFTER_FIRST = "the ranks of --first did not succeed"
AFTER_ERROR = "--seq stops at the first error"


@dataclass(frozen=True, slots=True)
class Wave:
    """Ranks that begin together. `unless_failed` says why they do not if a rank before them failed; empty: they do."""

    ranks: tuple[int, ...]
    unless_failed: str = ""


def plan_waves(
    ranks: Sequence[int], first: Collection[int] = (), *, one_by_one: bool = False, stops_on_error: bool = True
) -> tuple[Wave, ...]:
    """The waves of a cell on these ranks: those of `first` are done before the others begin, and have to succeed."""
    reason = AFTER_ERROR if one_by_one and stops_on_error else ""
    head = _split([rank for rank in ranks if rank in first], reason, one_by_one=one_by_one)
    tail = _split([rank for rank in ranks if rank not in first], reason, one_by_one=one_by_one)
    if head and tail:
        tail[0] = Wave(tail[0].ranks, AFTER_FIRST)
    return (*head, *tail)


def _split(ranks: Sequence[int], reason: str, *, one_by_one: bool) -> list[Wave]:
    if not one_by_one:
        return [Wave(tuple(ranks))] if ranks else []
    return [Wave((rank,), reason) for rank in ranks]


@dataclass(frozen=True, slots=True)
class Turn:
    """Who begins now; who never will, and why."""

    begins: tuple[int, ...] = ()
    skipped: tuple[int, ...] = ()
    reason: str = ""


class Schedule:
    """The waves of one cell that are still to begin. Not thread-safe."""

    def __init__(self, waves: Iterable[Wave]) -> None:
        self._waves = list(waves)
        self._begun: set[int] = set()

    @property
    def to_come(self) -> frozenset[int]:
        """The ranks whose turn has not come."""
        return frozenset(rank for wave in self._waves for rank in wave.ranks)

    def resume(self, ranks: Iterable[int]) -> None:
        """These have begun, before this began to look."""
        self._begun.update(ranks)

    def give_away(self) -> tuple[Wave, ...]:
        """Let no other rank begin; return what was still to come."""
        waves, self._waves = self._waves, []
        return tuple(waves)

    def withdraw(self, ranks: Collection[int]) -> tuple[int, ...]:
        """Take the turn of these ranks away; returns those that have not had it."""
        taken = tuple(sorted(self.to_come.intersection(ranks)))
        left = [Wave(tuple(set(wave.ranks).difference(taken)), wave.unless_failed) for wave in self._waves]
        self._waves = [wave for wave in left if wave.ranks]
        return taken

    def take_turn(self, silent: Collection[int], *, has_failed: bool) -> Turn:
        """What is next, once those have answered that have begun. `silent` are the ranks that have not answered."""
        if not self._waves or not self._begun.isdisjoint(silent):
            return Turn()
        wave = self._waves[0]
        if has_failed and wave.unless_failed:
            return Turn(skipped=self.withdraw(self.to_come), reason=wave.unless_failed)
        del self._waves[0]
        self._begun.update(wave.ranks)
        return Turn(begins=wave.ranks)
