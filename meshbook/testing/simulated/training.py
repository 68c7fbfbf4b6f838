"""A synchronous training, as steps: each rank works for a while, then all meet in a collective. Pure.

`timeline_of` shows its last steps as lanes, as the protocol's reply to "timeline".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from meshbook.runtime.telemetry.vitals import Activity
from meshbook.widgets.protocol import TimelineLane, TimelineReply, TimelineSpan

WORK = 0.8  # seconds of work of a rank in a step
SPREAD = 0.03  # relative spread between ranks
EXCHANGE = 0.1  # seconds of the collective once all ranks have arrived
STRAGGLES = 0.06  # probability per step that some rank becomes slow
RECOVERS = 0.06  # probability per step that a slow rank recovers
SLOWEST = 3.0  # factor of the slowest rank
KEPT_STEPS = 64


class TrainingStep(NamedTuple):
    """A completed step. `arrived`: when each rank came to the collective. In seconds."""

    began: float
    arrived: npt.NDArray[np.float64]
    ended: float


class Training:
    """The present step of each rank, and the length of the last one."""

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        self._size = size
        self._rng = rng
        self._slowness = np.ones(size)
        self.steps: deque[TrainingStep] = deque(maxlen=KEPT_STEPS)
        self.begin(0.0)

    def begin(self, now: float) -> None:
        """Start again, with no rank held."""
        self.steps.clear()
        self.count = 0  # completed steps
        self.first = now  # start of the first step
        self.took = np.full(self._size, np.nan)
        self._begin_step(now)

    def advance(self, now: float) -> None:
        """Advance the time to `now`."""
        while (ended := float(self.arrival.max()) + EXCHANGE) <= now:
            self.steps.append(TrainingStep(self.began, self.arrival, ended))
            self.took = self.arrival - self.began + EXCHANGE
            self.count += 1
            self._begin_step(ended)

    def hold(self, rank: int) -> None:
        """Hold a rank in its step; the others wait for it."""
        self.arrival[rank] = np.inf

    def release(self, ranks: Collection[int], now: float) -> None:
        """Let ranks that were held begin the step again."""
        for rank in ranks:
            self.arrival[rank] = now + self._draw_work(1)[0]

    def activity(self, now: float) -> npt.NDArray[np.uint8]:
        """Return an `Activity` for each rank."""
        return np.where(now < self.arrival, Activity.RUNNING, Activity.IN_COLLECTIVE).astype(np.uint8)

    def _begin_step(self, now: float) -> None:
        self._slowness[self._rng.random(self._size) < RECOVERS] = 1.0
        if self._rng.random() < STRAGGLES:
            self._slowness[self._rng.integers(self._size)] = self._rng.uniform(1.5, SLOWEST)
        self.began = now
        self.arrival = now + self._draw_work(self._size) * self._slowness

    def _draw_work(self, size: int) -> npt.NDArray[np.float64]:
        drawn: npt.NDArray[np.float64] = WORK * self._rng.lognormal(0.0, SPREAD, size)
        return drawn


MOST_SPANS = 60_000  # in all lanes
_SPANS = 3  # per rank and step


def timeline_of(cell: int, steps: Collection[TrainingStep]) -> TimelineReply:
    """Return the lanes, in seconds since the first step shown; for more ranks fewer steps, but at least one."""
    size = len(next(iter(steps)).arrived) if steps else 1
    shown = list(steps)[-max(1, MOST_SPANS // (_SPANS * size)) :]
    start = shown[0].began if shown else 0.0
    lanes: list[TimelineLane] = [
        {"label": f"rank {rank}", "rank": rank, "spans": [span for step in shown for span in _spans(step, rank, start)]}
        for rank in range(size if shown else 0)
    ]
    seconds = shown[-1].ended - start if shown else 0.0
    return {"cell": cell, "seconds": seconds, "lanes": lanes, "open": True, "notes": []}


def _spans(step: TrainingStep, rank: int, start: float) -> Iterator[TimelineSpan]:
    began, arrived, ended = step.began - start, float(step.arrived[rank]) - start, step.ended - start
    met = ended - EXCHANGE
    yield round(began, 4), round(arrived, 4), "running", "step"
    if met > arrived:
        last = int(step.arrived.argmax())
        yield round(arrived, 4), round(met, 4), "waiting", f"all_reduce, for rank {last}"
    yield round(met, 4), round(ended, 4), "collective", "all_reduce"
