"""Detect ranks that still work while most others wait in a collective. Pure: time is passed in.

In synchronous training all ranks have steps of the same length, whichever rank is slow, because all steps end together.
But the slow rank is busy while the others wait for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from meshbook.widgets.protocol import RankState
from meshbook.widgets.states import States
from meshbook.widgets.worst import MOST, WorstRank

LONG = 2.0  # seconds of one wait that are reported
OFTEN = 0.1  # share of the time
MEMORY = 30.0  # seconds: time constant of the share; older observations fade
LONGEST_GAP = 1.0  # seconds between two snapshots; a longer gap counts as this long


class StragglerDetector:
    """Measures how long, and how often, the other ranks have waited for each rank."""

    def __init__(self, size: int) -> None:
        self._since = np.full(size, np.nan)
        self._share = np.zeros(size)
        self._now, self._is_at_rest = 0.0, True

    def follow(self, states: States, now: float) -> None:
        """Record the states of the ranks, by a clock in seconds."""
        waiting, working = states == RankState.IN_COLLECTIVE, states == RankState.RUNNING
        # If fewer ranks wait than work, the first ones have arrived and no rank is late yet.
        late = working & (waiting.sum() >= max(1, working.sum()))
        fades = math.exp(-min(now - self._now, LONGEST_GAP) / MEMORY)
        self._share = fades * self._share + (1 - fades) * late
        self._since = np.where(late, np.fmin(self._since, now), np.nan)
        self._now, self._is_at_rest = now, not (waiting.any() or working.any())

    def stragglers(self) -> Iterator[WorstRank]:
        """Yield the ranks that others wait for long or often, the worst first; `value`: the present wait in seconds."""
        if self._is_at_rest:  # stragglers of a cell that has ended are not reported
            return
        waits = np.nan_to_num(self._now - self._since, nan=0.0)
        for rank in np.lexsort((-self._share, -waits))[:MOST].tolist():
            if waits[rank] >= LONG:
                yield WorstRank(rank, float(waits[rank]), f"others have waited {waits[rank]:.0f} s for it")
            elif self._share[rank] >= OFTEN:
                yield WorstRank(rank, float(waits[rank]), f"others wait for it {self._share[rank]:.0%} of the time")
