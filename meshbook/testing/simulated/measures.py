"""The simulated measurements of ranks: their vitals, now and for the last five minutes. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from meshbook.runtime.telemetry.vitals import HISTORY_SECONDS, METRICS, Activity, Metric, Vitals
from meshbook.testing.simulated.training import SLOWEST, WORK

_GIB = 2.0**30
_PLACE = {metric: place for place, metric in enumerate(METRICS)}
_SMOOTH = 0.3  # smoothing factor per quarter of a second: a meter averages over some time


class Measures:
    """The present values of all metrics, and a value a second of each."""

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        self._rng = rng
        self._base = _GIB * np.stack([rng.normal(2.0, 0.05, size), rng.normal(31.0, 0.4, size)])
        self._leaks = int(rng.integers(size))  # this rank leaks memory
        self.now: npt.NDArray[np.float32] = np.zeros((len(METRICS), size), np.float32)
        self._history: npt.NDArray[np.float32] = np.full((HISTORY_SECONDS, len(METRICS), size), np.nan, np.float32)
        self._newest = 0

    def measure(self, activity: npt.NDArray[np.uint8], took: npt.NDArray[np.float64], now: float) -> None:
        """Update the metrics from the activity of the ranks and the length of their last step."""
        at_work, waiting = activity == Activity.RUNNING, activity == Activity.IN_COLLECTIVE
        noise = self._rng.normal(0.0, 1.0, (3, len(activity)))
        memory = self._base + _GIB * 0.002 * noise[:2]
        memory[0, self._leaks] += _GIB * 0.004 * now
        self._approach("cpu", at_work * (0.97 + 0.02 * noise[2]) + waiting * 0.35 + 0.005)
        self._approach("gpu", np.clip(at_work * (0.94 + 0.03 * noise[2]) + waiting * 0.25, 0, 1))
        self._set("memory", memory[0])
        self._set("gpu_memory", memory[1])
        self._set("step", took)
        slow = np.nan_to_num(took / WORK - 1, nan=0.0)
        self._set("queued", np.floor(np.clip(slow, 0, SLOWEST) * 4 + (noise[2] > 2)))
        self._measure_traffic(activity, noise[2])

    def _measure_traffic(self, activity: npt.NDArray[np.uint8], noise: npt.NDArray[np.float64]) -> None:
        talks = activity != Activity.IDLE
        for place, metric in enumerate(("sent", "received"), start=1):
            messages = talks * np.clip(12.0 * place + noise, 0, None)
            self._approach(metric, messages)
            self._approach(f"bytes_{metric}", messages * 4096)

    def _set(self, metric: str, values: npt.NDArray[np.float64]) -> None:
        self.now[_PLACE[metric]] = values  # type: ignore[index]

    def _approach(self, metric: str, values: npt.NDArray[np.float64]) -> None:
        row = self.now[_PLACE[metric]]  # type: ignore[index]
        row += _SMOOTH * (values - row)

    def keep(self) -> None:
        """Append the present values to the history; once a second."""
        self._newest = (self._newest + 1) % HISTORY_SECONDS
        self._history[self._newest] = self.now

    def vitals(self, activity: npt.NDArray[np.uint8], age: npt.NDArray[np.float32]) -> Vitals:
        """Return the vitals of all ranks."""
        now = self.now.copy()  # the arrays that were returned before must not change
        return Vitals({metric: now[place] for metric, place in _PLACE.items()}, activity, age)

    def series(self, ranks: Sequence[int], metrics: Sequence[Metric]) -> npt.NDArray[np.float32]:
        """Return float32 of the shape [ranks, metrics, 300]: a value a second, the newest last."""
        places = [_PLACE[metric] for metric in metrics]
        seconds: npt.NDArray[np.intp] = (np.arange(HISTORY_SECONDS) + self._newest + 1) % HISTORY_SECONDS
        picked = self._history[np.ix_(seconds, places, np.asarray(ranks, np.intp))]
        return np.ascontiguousarray(picked.transpose(2, 1, 0))
