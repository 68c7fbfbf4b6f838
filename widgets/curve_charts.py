"""Answers to requests of views for curves, histograms and images. Requests are untrusted, and answers bounded."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import msgspec
import numpy as np

from meshbook.widgets.curve_bands import Band, gather_samples, make_band
from meshbook.widgets.protocol import ChartEntry, CurveAxis, CurveEntry, CurvesReply, MediumEntry
from meshbook.widgets.source import BackendReply, CurveSource

MOST_NAMES = 1000  # metrics that a view can choose from
MOST_RUNS = 8  # of one metric
MOST_POINTS = 600
REPLY_BYTES = 100_000  # after which a reply ends: the dashboard sends 200 KB a second
LARGEST = float(np.finfo(np.float32).max)  # of the values in a reply
MOST_RANKS_WITH_MEDIA = 4  # shown of one name

Count = Annotated[int, msgspec.Meta(ge=1)]


class CurvesRequest(msgspec.Struct, frozen=True):
    """A "curves" message without its kind, id and selector."""

    names: Annotated[list[str], msgspec.Meta(max_length=MOST_NAMES)] = []
    runs: Annotated[Count, msgspec.Meta(le=MOST_RUNS)] = 1
    axis: CurveAxis = "step"
    low: float | None = None
    high: float | None = None
    points: Annotated[int, msgspec.Meta(ge=16, le=MOST_POINTS)] = MOST_POINTS
    have: list[tuple[str, str, int]] = []
    have_media: list[tuple[str, str, int, float]] = []


@dataclass
class _Parts:
    """The content and the buffers of a reply so far."""

    curves: list[CurveEntry] = field(default_factory=list)
    media: list[MediumEntry] = field(default_factory=list)
    buffers: list[bytes] = field(default_factory=list)
    is_complete: bool = True

    def has_room(self, first: int = 0) -> bool:
        """Return whether an entry fits beside the buffers from the `first` on; if not, the reply is not complete."""
        if sum(map(len, self.buffers[first:])) < REPLY_BYTES:
            return True
        self.is_complete = False
        return False


def answer_curves(
    source: CurveSource,
    chosen: Collection[int] | None,
    content: Mapping[str, Any],
    clock: Callable[[], float] = time.thread_time,
) -> BackendReply:
    """Return the reply to a "curves" message, over the `chosen` ranks; None: all. ValueError for an invalid message."""
    start = clock()
    try:
        request = msgspec.convert(content, CurvesRequest)
    except msgspec.ValidationError as error:
        raise ValueError(f"invalid request for curves: {error}") from error
    metrics, keys = dict.fromkeys(source.metrics()), list(source.media())
    charts: list[ChartEntry] = [
        {"metric": name, "runs": list(source.runs(name))[-request.runs :]} for name in request.names if name in metrics
    ]
    parts = _Parts()
    _add_curves(parts, source, charts, chosen, request)
    _add_media(parts, source, _shown_media(keys, chosen, request), request)
    reply: CurvesReply = {
        "metrics": list(metrics)[:MOST_NAMES],
        "media_names": list(dict.fromkeys(name for name, _, _ in keys))[:MOST_NAMES],
        "charts": charts,
        "curves": parts.curves,
        "media": parts.media,
        "is_complete": parts.is_complete,
        "seconds": round(clock() - start, 4),
    }
    return BackendReply(reply, parts.buffers)


def band_of(
    source: CurveSource,
    metric: str,
    run: str,
    chosen: Collection[int] | None = None,
    request: CurvesRequest = CurvesRequest(),  # noqa: B008  # frozen
) -> Band:
    """Return the band of a metric in a run over the `chosen` ranks; None: all."""
    curves = source.all_series(metric, run)
    if chosen is not None:
        curves = {rank: curve for rank, curve in curves.items() if rank in chosen}
    samples = gather_samples(list(curves), list(curves.values()), by_time=request.axis == "time")
    low = -math.inf if request.low is None else request.low
    high = math.inf if request.high is None else request.high
    return make_band(samples, request.points, low, high, size=source.size_of(run))


def _add_curves(
    parts: _Parts,
    source: CurveSource,
    charts: Sequence[ChartEntry],
    chosen: Collection[int] | None,
    request: CurvesRequest,
) -> None:
    have = {(metric, run): version for metric, run, version in request.have}
    wanted: list[tuple[tuple[int, int], str, str, int, bool]] = []
    for chart in charts:
        for place, run in enumerate(reversed(chart["runs"])):
            version = source.version_of(chart["metric"], run)
            # What the view lacks comes first, and of that present runs; then what has changed most since it came. In
            # the order of charts, the first ones would change again before the last ones get their turn.
            had = have.get((chart["metric"], run), -1)
            if had != version:
                age = (place, 0) if had < 0 else (MOST_RUNS, had - version)
                wanted.append((age, chart["metric"], run, version, place == 0))
    for _, metric, run, version, is_present in sorted(wanted, key=lambda each: each[0]):
        if not parts.has_room():
            return
        band = band_of(source, metric, run, chosen, request)
        if not is_present:  # only its mean is drawn
            band = replace(band, lines=(), values=band.values[:0])
        parts.curves.append(_entry(metric, run, version, band))
        values = np.vstack([band.mean, band.low, band.high, band.values])
        values = np.clip(values, -LARGEST, LARGEST).astype("<f4")
        parts.buffers += [band.x.astype("<f8").tobytes(), values.tobytes()]


def _entry(metric: str, run: str, version: int, band: Band) -> CurveEntry:
    return {
        "metric": metric,
        "run": run,
        "version": version,
        "points": len(band.x),
        "ranks": band.ranks,
        "lines": [{"rank": line.rank, "kind": line.kind, "text": line.text} for line in band.lines],
        "more": band.more,
    }


def _shown_media(
    keys: Sequence[tuple[str, str, int]], chosen: Collection[int] | None, request: CurvesRequest
) -> Iterator[tuple[str, str, int]]:
    """Yield the media of the latest run of each name, of its first ranks."""
    for name in request.names:
        of_name = [(run, rank) for each, run, rank in keys if each == name]
        ranks = sorted(rank for run, rank in of_name if run == of_name[-1][0] and (chosen is None or rank in chosen))
        yield from ((name, of_name[-1][0], rank) for rank in ranks[:MOST_RANKS_WITH_MEDIA])


def _add_media(
    parts: _Parts, source: CurveSource, keys: Iterator[tuple[str, str, int]], request: CurvesRequest
) -> None:
    have = {(name, run, rank): at for name, run, rank, at in request.have_media}
    first = len(parts.buffers)  # charts that change all the time leave room for media
    for name, run, rank in sorted(keys, key=lambda key: have.get(key, -math.inf)):  # the oldest first, as of charts
        histogram, image = source.histogram(name, run, rank), source.image(name, run, rank)
        medium = histogram if image is None else image
        if medium is None or have.get((name, run, rank)) == medium.time:
            continue
        if not parts.has_room(first):
            return
        head: MediumEntry = {
            "name": name,
            "run": run,
            "rank": rank,
            "kind": "histogram" if image is None else "image",
            "step": medium.step,
            "time": medium.time,
        }
        parts.media.append(head)
        if image is not None:
            parts.buffers.append(image.png)
        else:
            parts.buffers += [np.asarray(array, "<f8").tobytes() for array in (medium.counts, medium.edges)]
