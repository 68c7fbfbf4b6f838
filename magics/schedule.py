"""In which order the ranks of a cell are to begin: all at once, some first (`--first`), one by one (`--seq`).

Pure. Not for whose turn it is while the cell runs (`attendance`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

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
