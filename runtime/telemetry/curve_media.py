"""The latest histograms and images that ranks have logged, in bounded memory. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from meshbook.runtime.telemetry.points import LoggedMedia

MOST_MEDIA = 1024  # kept
MEDIA_BYTES = 64 << 20  # of all of them
MediaKey = tuple[str, str, int]  # metric, run and rank


@dataclass(frozen=True, slots=True)
class MetricHistogram:
    """A histogram that a rank logged: `counts` of bins, and their `edges` (one more), both float64 arrays."""

    step: float
    time: float
    counts: Any
    edges: Any

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return int(self.counts.nbytes + self.edges.nbytes)


@dataclass(frozen=True, slots=True)
class MetricImage:
    """An image that a rank logged."""

    step: float
    time: float
    png: bytes

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return len(self.png)


Medium = MetricHistogram | MetricImage


class MediaTable:
    """The last histogram or image of each metric, run and rank. Not thread-safe."""

    def __init__(self) -> None:
        self._media: dict[MediaKey, Medium] = {}  # in the order of their last change
        self._bytes = 0

    def keys(self) -> list[MediaKey]:
        """Return metric, run and rank of all, in the order of their last change."""
        return list(self._media)

    def get(self, key: MediaKey) -> Medium | None:
        """Return a histogram or an image; None if there is none."""
        return self._media.get(key)

    def read(self, run: str, logged: LoggedMedia) -> tuple[MediaKey, Medium]:
        """Return what a rank logged, and its key."""
        import numpy

        key = logged.metric, run, logged.rank
        last = self._media.get(key)
        step = logged.step if not math.isnan(logged.step) else last.step + 1 if last is not None else 0.0
        medium: Medium
        if logged.kind == "image":
            medium = MetricImage(step, logged.time, logged.data)
        else:
            numbers = numpy.frombuffer(logged.data)
            bins = len(numbers) // 2
            medium = MetricHistogram(step, logged.time, numbers[:bins], numbers[bins:])
        return key, medium

    def keep(self, key: MediaKey, medium: Medium) -> list[MediaKey]:
        """Keep the last one of a key; drop the oldest of others where there are too many, and return their keys."""
        if (last := self._media.pop(key, None)) is not None:
            self._bytes -= last.size
        self._media[key] = medium
        self._bytes += medium.size
        dropped = []
        while len(self._media) > MOST_MEDIA or (self._bytes > MEDIA_BYTES and len(self._media) > 1):
            dropped.append(next(iter(self._media)))
            self._bytes -= self._media.pop(dropped[-1]).size
        return dropped
