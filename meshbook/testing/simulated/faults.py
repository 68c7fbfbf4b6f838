"""The faults of ranks of a simulated mesh, and their ends. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

Kind = Literal["killed", "failed", "silent", "paused", "starting"]
DURATIONS: Final[dict[Kind, float]] = {"killed": 6.0, "failed": 5.0, "silent": 9.0, "paused": 6.0, "starting": 2.0}
RANDOM_KINDS: Final[tuple[Kind, ...]] = ("killed", "failed", "silent", "paused")


@dataclass(frozen=True, slots=True)
class SimulatedFault:
    """A fault of a rank, with its start and end in seconds; an infinite one is ended by a heal."""

    kind: Kind
    rank: int
    since: float
    until: float


class SimulatedFaults:
    """The faults of all ranks; a rank has one at a time. A killed rank is starting before it is well again."""

    def __init__(self, size: int, rate: float, rng: np.random.Generator) -> None:
        """Initialize; `rate`: mean number of faults of the mesh per second."""
        self._size = size
        self._rate = rate
        self._rng = rng
        self.by_rank: dict[int, SimulatedFault] = {}

    def of(self, kind: Kind) -> frozenset[int]:
        """Return the ranks with such a fault."""
        return frozenset(rank for rank, fault in self.by_rank.items() if fault.kind == kind)

    def draw(self, now: float, seconds: float) -> SimulatedFault | None:
        """Draw whether a rank gets a fault in these seconds, and return the fault or None."""
        if self._rng.random() >= self._rate * seconds:
            return None
        rank, kind = int(self._rng.integers(self._size)), RANDOM_KINDS[self._rng.integers(len(RANDOM_KINDS))]
        return None if rank in self.by_rank else self.add(kind, rank, now, DURATIONS[kind])

    def add(self, kind: Kind, rank: int, now: float, seconds: float = math.inf) -> SimulatedFault:
        """Give a rank this fault for so long."""
        fault = self.by_rank[rank] = SimulatedFault(kind, rank, now, now + seconds)
        return fault

    def end_due(self, now: float, ranks: Iterable[int] | None = None) -> list[SimulatedFault]:
        """End the faults that are due, or those of these ranks; returns the faults that have ended."""
        ended = [
            fault
            for fault in self.by_rank.values()
            if (fault.until <= now if ranks is None else fault.rank in set(ranks))
        ]
        for fault in ended:
            del self.by_rank[fault.rank]
            if fault.kind == "killed":
                self.by_rank[fault.rank] = SimulatedFault(
                    "starting", fault.rank, fault.since, now + DURATIONS["starting"]
                )
        return ended
