"""For whom the others wait: ranks that still work while most stand in a collective. Pure: time is passed in.

A training that goes in step has steps of the same length on all ranks, whoever is slow: they end together. But a slow
rank is seen at work while the others wait for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from meshbook.widgets.protocol import RankState
from meshbook.widgets.states import States
from meshbook.widgets.worst import MOST, WorstRank

LONG = 2.0  # seconds of one wait that are told
OFTEN = 0.1  # of the time
MEMORY = 30.0  # seconds over which that is reckoned; what was before fades
LONGEST_GAP = 1.0  # seconds between two looks for which what was seen counts


class StragglerDetector:
    """How long, and how often, the others have waited for each rank."""

    def __init__(self, size: int) -> None:
        self._since = np.full(size, np.nan)
        self._share = np.zeros(size)
        self._now, self._is_at_rest = 0.0, True

    def follow(self, states: States, now: float) -> None:
        """Take in how the ranks are now, by a clock in seconds."""
        waiting, working = states == RankState.IN_COLLECTIVE, states == RankState.RUNNING
        # Where fewer wait than work, the first ones have come, and nobody is late yet.
        late = working & (waiting.sum() >= max(1, working.sum()))
        fades = math.exp(-min(now - self._now, LONGEST_GAP) / MEMORY)
        self._share = fades * self._share + (1 - fades) * late
        self._since = np.where(late, np.fmin(self._since, now), np.nan)
        self._now, self._is_at_rest = now, not (waiting.any() or working.any())

    def told(self) -> Iterator[WorstRank]:
        """Those for whom others wait long or often, the worst first; `value` is for how long by now, in seconds."""
        if self._is_at_rest:  # what was in a cell that is over is no news
            return
        waits = np.nan_to_num(self._now - self._since, nan=0.0)
        for rank in np.lexsort((-self._share, -waits))[:MOST].tolist():
            if waits[rank] >= LONG:
                yield WorstRank(rank, float(waits[rank]), f"others have waited {waits[rank]:.0f} s for it")
            elif self._share[rank] >= OFTEN:
                yield WorstRank(rank, float(waits[rank]), f"others wait for it {self._share[rank]:.0%} of the time")
