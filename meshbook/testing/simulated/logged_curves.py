"""The curves that a simulated training logs: losses that fall, a straggler and a rank that diverges.

Values are computed when they are read, from the cell, the metric and the seed; only the steps and the last values that
were read are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

METRICS = ("train/loss", "train/accuracy", "gradient/norm", "learning rate")
KEPT_CELLS = 8
KEPT_VALUES = 8  # metrics of cells whose values are not computed again
FEWEST_RANKS = 4  # of which one straggles and one diverges
DIVERGES_FROM = 0.4  # share of a cell's steps after which the loss of one rank rises
LAG = 0.6  # share of the others' steps that a straggler has done


class FakeCurves:
    """The curves of a simulated mesh (`meshbook.widgets.source.CurveSource`)."""

    def __init__(self, size: int, seed: int, steps: int) -> None:
        """Initialize for cells of so many steps."""
        self._size = size
        self._seed = seed
        self._steps = steps
        self.version = 0
        self._times: dict[str, list[float]] = {}  # by run: when each step ended
        self._read: dict[tuple[int, int], Any] = {}  # by the metric's place and cell
        has_trouble = size >= FEWEST_RANKS
        self.straggler = size // 3 if has_trouble else None
        self.diverging = 2 * size // 3 if has_trouble else None

    def log_step(self, cell: int, at: float) -> None:
        """Log the next step of a cell; `at`: seconds since 1970."""
        self._times.setdefault(f"cell {cell}", []).append(at)
        self.version += 1
        if len(self._times) > KEPT_CELLS:
            del self._times[next(iter(self._times))]

    # -- the source ------------------------------------------------------------------

    def metrics(self) -> Sequence[str]:
        """Return the metrics; none before the first step."""
        return METRICS if self._times else ()

    def runs(self, metric: str) -> Sequence[str]:
        """Return the cells with steps, the oldest first."""
        return list(self._times)

    def size_of(self, run: str) -> int:
        """Return the number of ranks."""
        return self._size

    def version_of(self, metric: str, run: str) -> int:
        """Return the number of steps of a run."""
        return len(self._times.get(run, ()))

    def all_series(self, metric: str, run: str) -> dict[int, tuple[Any, Any, Any]]:
        """Return steps, times and values of each rank."""
        times = np.asarray(self._times.get(run, ()), float)
        steps = np.arange(float(len(times)))
        key = METRICS.index(metric), int(run.split()[-1])
        if key not in self._read:
            self._read[key] = self._values(*key)
            if len(self._read) > KEPT_VALUES:
                self._read.pop(next(iter(self._read)), None)
        values = self._read[key][:, : len(times)]
        lengths = np.full(self._size, len(times))
        if self.straggler is not None:
            lengths[self.straggler] = int(LAG * len(times))
        return {
            rank: (steps[:length], times[:length], row[:length])
            for rank, (length, row) in enumerate(zip(lengths.tolist(), values, strict=True))
            if length
        }

    def media(self) -> Sequence[tuple[str, str, int]]:
        """Return nothing: a simulated mesh logs numbers only."""
        return ()

    def histogram(self, metric: str, run: str, rank: int) -> None:
        """Return None."""

    def image(self, metric: str, run: str, rank: int) -> None:
        """Return None."""

    def _values(self, place: int, cell: int) -> Any:
        """Return the values of a metric in a cell, of the shape [ranks, steps]."""
        rng = np.random.default_rng((self._seed, cell, place))
        noise = rng.normal(0.0, 1.0, (self._size, self._steps))
        rise = np.zeros_like(noise)
        if self.diverging is not None:
            done = np.linspace(0.0, 1.0, self._steps)
            rise[self.diverging] = np.clip(done - DIVERGES_FROM, 0.0, None)
        # Each cell learns with another speed, so that its curve differs from those of earlier ones.
        decay = np.exp(-np.arange(self._steps) * rng.uniform(0.04, 0.08))
        match METRICS[place]:
            case "train/loss":
                return (0.3 + 2.0 * decay + 6.0 * rise) * np.exp(0.05 * noise)
            case "train/accuracy":
                return np.clip(0.95 - 0.85 * decay - 0.8 * rise + 0.01 * noise, 0.0, 1.0)
            case "gradient/norm":
                return (0.5 + 3.0 * decay + 40.0 * rise) * np.exp(0.15 * noise)
            case _:
                return np.broadcast_to(3e-3 * (0.1 + 0.9 * np.cos(np.linspace(0, np.pi / 2, self._steps))), noise.shape)
