"""Static pictures of curves, as SVG and as text: for saved notebooks, and where no widget can be shown. Pure."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from meshbook.widgets.curve_bands import Band
from meshbook.widgets.curve_charts import CurvesRequest, band_of
from meshbook.widgets.snapshot import StaticPicture, embed_svg
from meshbook.widgets.source import CurveSource

MOST_CHARTS = 12
EARLIER_RUNS = 3  # shown beside the present one
FEW_CHARTS = 2  # that are large
LARGEST = 1e300  # values and steps beyond have no place in a picture: the range of an axis would be infinite
LEFT, RIGHT, TOP, BOTTOM = 44, 8, 20, 18  # margins of its plot
MARKS = "▁▂▃▄▅▆▇█"
MARKED = 32  # characters of a curve in text
NOTHING = "No metric has been logged yet. In a cell: meshbook.log(step=step, loss=loss)"
MEAN, EARLIER = "#1976d2", "#9aa4b1"
# The colours of lines in the dashboard's style sheet, which are distinct on light and dark ground.
COLOURS = ("#d55e00", "#009e73", "#a8578f", "#b58b00", "#0089b8", "#7a5a00", "#6a3d9a", "#667180")
_STYLE = (
    "font-family:var(--jp-ui-font-family,system-ui,sans-serif);font-size:12px;line-height:1.5;"
    "color:var(--jp-ui-font-color1,inherit);padding-left:var(--jp-code-padding,0)"
)


class _ChartSize(NamedTuple):
    """The size of a chart in pixels, and the number of points of its curves."""

    width: int
    height: int
    points: int


SMALL, LARGE = _ChartSize(320, 150, 80), _ChartSize(620, 240, 160)


@dataclass(frozen=True)
class _Chart:
    """A metric with its present run and the earlier ones, the oldest first."""

    size: _ChartSize

    metric: str
    run: str
    band: Band
    earlier: tuple[Band, ...]


def match_metrics(metrics: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Return the metrics that a pattern selects: a name, a group ("train" has "train/loss"), or a pattern with "*".

    Without patterns, return all. The dashboard has the same rule (`matching` in curvedata.js).
    """
    rules = [re.compile(f"{'.*'.join(map(re.escape, pattern.split('*')))}(/.*)?") for pattern in patterns]
    return [name for name in metrics if not rules or any(rule.fullmatch(name) for rule in rules)]


def curves_picture(source: CurveSource | None, patterns: Sequence[str] = ()) -> StaticPicture:
    """Return the curves of metrics as text and as HTML; None has no metrics."""
    if source is None:
        return StaticPicture(NOTHING, f'<div style="{_STYLE}">{html.escape(NOTHING)}</div>')
    charts = _charts_of(source, patterns)
    remarks = list(_remarks(source, patterns))
    wide = max((len(chart.metric) for chart in charts), default=0)
    lines = [line for chart in charts for line in _text_lines(chart, wide)]
    figures = "".join(
        f'<figure style="display:inline-block;vertical-align:top;margin:4px 10px 4px 0;width:{chart.size.width}px">'
        f"{_svg(chart)}{''.join(_keys(chart))}</figure>"
        for chart in charts
    )
    notes = "".join(f"<div>{html.escape(remark)}</div>" for remark in remarks)
    return StaticPicture("\n".join([*lines, *remarks]), f'<div style="{_STYLE}">{figures}{notes}</div>')


def _charts_of(source: CurveSource, patterns: Sequence[str]) -> list[_Chart]:
    metrics = match_metrics(source.metrics(), patterns)
    size = LARGE if len(metrics) <= FEW_CHARTS else SMALL
    request = CurvesRequest(points=size.points)
    charts = []
    for metric in metrics[:MOST_CHARTS]:
        runs = list(source.runs(metric))
        bands = [_within_axes(band_of(source, metric, run, None, request)) for run in runs[-1 - EARLIER_RUNS :]]
        if bands:
            charts.append(_Chart(size, metric, runs[-1], bands[-1], tuple(bands[:-1])))
    return charts


def _within_axes(band: Band) -> Band:
    names = ("x", "mean", "low", "high", "values")
    return replace(band, **{name: np.clip(getattr(band, name), -LARGEST, LARGEST) for name in names})


def _remarks(source: CurveSource, patterns: Sequence[str]) -> Iterator[str]:
    metrics = source.metrics()
    chosen = match_metrics(metrics, patterns)
    if not metrics:
        yield NOTHING
    elif not chosen:
        yield f"no metric is named {' or '.join(patterns)}; there are {', '.join(metrics)}"
    elif len(chosen) > MOST_CHARTS:
        yield f"and {len(chosen) - MOST_CHARTS} more metrics"


# -- as text -----------------------------------------------------------------------------


def _text_lines(chart: _Chart, wide: int) -> Iterator[str]:
    band = chart.band
    head = f"{chart.metric:<{wide}}  {_marks(band.mean):<{MARKED}}"
    yield f"{head}  {_summary(chart)}"
    for line in band.lines:
        if line.text:
            yield f"{'':<{wide}}  {line.name} {line.text}"
    if band.more:
        yield f"{'':<{wide}}  {band.more} more ranks differ"


def _summary(chart: _Chart) -> str:
    """Return the last known mean and the values of the ranks at that point."""
    band = chart.band
    ranks = f"{band.ranks} rank{'s' if band.ranks != 1 else ''}" if band.ranks else "notebook"
    known = np.flatnonzero(~np.isnan(band.mean))
    if not len(known):
        return f"{chart.run}, {ranks}: no value"
    last = known[-1]
    low, high = band.low[last], band.high[last]
    spread = f" ({low:.4g} to {high:.4g})" if low < high else ""
    return f"{chart.run}, {ranks}: {band.mean[last]:.4g}{spread} at step {band.x[last]:,.10g}"


def _marks(values: Any) -> str:
    known = values[~np.isnan(values)]
    if not len(known):
        return ""
    pieces = np.array([piece.mean() for piece in np.array_split(known, min(MARKED, len(known)))])
    low, high = pieces.min(), pieces.max()
    shares = (pieces - low) / (high - low) if high > low else np.zeros(len(pieces))
    return "".join(MARKS[int(share * (len(MARKS) - 1) + 0.5)] for share in shares)


# -- as SVG -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Plane:
    """The range of values in the plot of a chart."""

    size: _ChartSize
    left: float
    right: float
    low: float
    high: float

    def across(self, x: Any) -> Any:
        """Return the pixels of places on x."""
        return LEFT + (x - self.left) / (self.right - self.left) * (self.size.width - LEFT - RIGHT)

    def down(self, y: Any) -> Any:
        """Return the pixels of values."""
        bottom = self.size.height - BOTTOM
        return bottom - (y - self.low) / (self.high - self.low) * (bottom - TOP)

    def path(self, x: Any, y: Any) -> str:
        """Return the known points as coordinates of an SVG."""
        known = ~np.isnan(y)
        pairs = zip(self.across(x[known]).tolist(), self.down(y[known]).tolist(), strict=True)
        return " ".join(f"{one:.1f},{other:.1f}" for one, other in pairs)


def _plane_of(chart: _Chart) -> _Plane | None:
    """Return the range of the present run, beyond which earlier ones may extend; None without a value."""
    x = chart.band.x
    y = np.concatenate([chart.band.low, chart.band.high, chart.band.values.ravel()])
    y = y[~np.isnan(y)]
    if not len(x) or not len(y):
        return None
    low, high = float(y.min()), float(y.max())
    margin = 0.05 * (high - low) or abs(high) * 0.1 or 1.0
    left, right = float(x.min()), float(x.max())
    widen = max(0.5, abs(left) * 1e-9) if left == right else 0.0  # half a step is nothing beside a time in nanoseconds
    # Values that are never negative need no room below zero.
    bottom = 0.0 if 0 <= low < margin else low - margin
    return _Plane(chart.size, left - widen, right + widen, bottom, high + margin)


def _svg(chart: _Chart) -> str:
    plane = _plane_of(chart)
    parts = [] if plane is None else [*_axes(plane), *_lines(chart, plane)]
    title = f"{chart.metric} · {chart.run}"
    label = f"{chart.metric}, {_summary(chart)}"
    width, height, _ = chart.size
    return embed_svg(
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{html.escape(label)}"'
        f' width="{width}" height="{height}" viewBox="0 0 {width} {height}" style="max-width:100%;display:block"'
        f' font-family="system-ui,sans-serif" font-size="10" fill="currentColor">'
        f'<text x="2" y="11" font-size="11" font-weight="600">{html.escape(title)}</text>{"".join(parts)}</svg>',
        *(label, width),
    )


def _axes(plane: _Plane) -> Iterator[str]:
    bottom, right = plane.size.height - BOTTOM, plane.size.width - RIGHT
    across, down = _ticks(plane.left, plane.right), _ticks(plane.low, plane.high)
    lines = [f"M{plane.across(each):.1f} {TOP}V{bottom}" for each in across]
    lines += [f"M{LEFT} {plane.down(each):.1f}H{right}" for each in down]
    yield f'<path d="{"".join(lines)}" fill="none" stroke="currentColor" stroke-opacity="0.15"/>'
    for each in across:
        yield f'<text x="{plane.across(each):.1f}" y="{bottom + 13}" text-anchor="middle">{each:,.6g}</text>'
    for each in down:
        yield f'<text x="{LEFT - 4}" y="{plane.down(each) + 3:.1f}" text-anchor="end">{each:.4g}</text>'


def _ticks(low: float, high: float) -> list[float]:
    """Return two to seven places from `low` to `high` that are 1, 2 or 5 of a unit apart."""
    power = 10.0 ** math.floor(math.log10((high - low) / 4))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= (high - low) / 6)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _lines(chart: _Chart, plane: _Plane) -> Iterator[str]:
    band = chart.band
    if chart.earlier:
        left, width, height = LEFT, chart.size.width - LEFT - RIGHT, chart.size.height - TOP - BOTTOM
        yield f'<svg x="{left}" y="{TOP}" width="{width}" height="{height}" viewBox="{left} {TOP} {width} {height}">'
        for earlier in chart.earlier:
            yield _polyline(plane.path(earlier.x, earlier.mean), EARLIER, 1)
        yield "</svg>"
    edges = f"{plane.path(band.x, band.low)} {plane.path(band.x[::-1], band.high[::-1])}"
    yield f'<polygon points="{edges}" fill="{MEAN}" fill-opacity="0.18"/>'
    for place, line in enumerate(band.lines):
        dash = ' stroke-dasharray="6 3"' if line.kind == "straggler" else ""
        yield _polyline(plane.path(band.x, band.values[place]), COLOURS[place % len(COLOURS)], 1.2, dash)
    yield _polyline(plane.path(band.x, band.mean), MEAN, 2)


def _polyline(points: str, colour: str, width: float, extra: str = "") -> str:
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"{extra}/>'


def _keys(chart: _Chart) -> Iterator[str]:
    yield f"<figcaption>{html.escape(_summary(chart))}</figcaption>"
    for place, line in enumerate(chart.band.lines):
        colour = COLOURS[place % len(COLOURS)]
        words = html.escape(f"{line.name} {line.text}".strip())
        yield f'<span style="margin-right:12px"><span style="color:{colour}">■</span> {words}</span>'
    if chart.band.more:
        yield f"<span>{chart.band.more} more ranks differ</span>"
