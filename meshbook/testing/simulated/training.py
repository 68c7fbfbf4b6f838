"""A synchronous training, as steps: each rank works for a while, then all meet in a collective. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from meshbook.runtime.telemetry.vitals import Activity

WORK = 0.8  # seconds that a rank works in a step
SPREAD = 0.03  # of that, from rank to rank
EXCHANGE = 0.1  # seconds that the collective takes once all are there
STRAGGLES = 0.06  # how likely it is that some rank becomes slow with a step
RECOVERS = 0.06  # the same for each slow rank to be as quick as before
SLOWEST = 3.0  # times as slow as others
KEPT_STEPS = 64


class TrainingStep(NamedTuple):
    """A step that is over. `arrived`: for each rank when it came to the collective. Seconds."""

    began: float
    arrived: npt.NDArray[np.float64]
    ended: float


class Training:
    """Where each rank is in the present step, and how long the last one took."""

    def __init__(self, size: int, dice: np.random.Generator) -> None:
        self._size = size
        self._dice = dice
        self._slowness = np.ones(size)
        self.steps: deque[TrainingStep] = deque(maxlen=KEPT_STEPS)
        self.begin(0.0)

    def begin(self, now: float) -> None:
        """Begin anew; nobody is held any more."""
        self.steps.clear()
        self.count = 0  # steps that are over
        self.first = now  # when the first one began
        self.took = np.full(self._size, np.nan)
        self._begin_step(now)

    def advance(self, now: float) -> None:
        """Let the time go on until `now`."""
        while (ended := float(self.arrival.max()) + EXCHANGE) <= now:
            self.steps.append(TrainingStep(self.began, self.arrival, ended))
            self.took = self.arrival - self.began + EXCHANGE
            self.count += 1
            self._begin_step(ended)

    def hold(self, rank: int) -> None:
        """A rank does not go on; the others wait for it."""
        self.arrival[rank] = np.inf

    def release(self, ranks: Collection[int], now: float) -> None:
        """Ranks that were held begin the step again."""
        for rank in ranks:
            self.arrival[rank] = now + self._draw_work(1)[0]

    def activity(self, now: float) -> npt.NDArray[np.uint8]:
        """An `Activity` for each rank."""
        return np.where(now < self.arrival, Activity.RUNNING, Activity.IN_COLLECTIVE).astype(np.uint8)

    def _begin_step(self, now: float) -> None:
        self._slowness[self._dice.random(self._size) < RECOVERS] = 1.0
        if self._dice.random() < STRAGGLES:
            self._slowness[self._dice.integers(self._size)] = self._dice.uniform(1.5, SLOWEST)
        self.began = now
        self.arrival = now + self._draw_work(self._size) * self._slowness

    def _draw_work(self, size: int) -> npt.NDArray[np.float64]:
        drawn: npt.NDArray[np.float64] = WORK * self._dice.lognormal(0.0, SPREAD, size)
        return drawn
