"""A trace as shown in the cell: a lane for each rank, waits for other ranks, and the time by name. Pure.

It is rendered as text, and as HTML that needs no scripts and no kernel, so an exported page looks the same. Colours are
JupyterLab's own, so they also fit its dark theme. The height of a bar conveys the same as its colour.
"""

from __future__ import annotations

import functools
import html
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from meshbook.magics.tracing.chrome_trace import name_span
from meshbook.magics.tracing.collect import Trace
from meshbook.runtime.formats import format_seconds, name_ranks
from meshbook.runtime.telemetry.spans import SpanRecording
from meshbook.runtime.telemetry.timeline_lanes import (
    STATES,
    Lane,
    LaneSegment,
    State,
    TimeWindow,
    WaitBlame,
    blames_of,
    lanes_of,
    states_of,
    thin_out,
    totals_of,
)
from meshbook.widgets.snapshot import embed_svg

MOST_LANES = 32  # that are drawn; of more, those that worked longest, and those that worked least
MOST_BARS = 240  # in a lane
MOST_MARKS = 48  # characters of a lane as text
MOST_LINES = 6  # of each list below
SHORT = 0.01  # of the window; shorter waits for others are not reported
_MARKS: dict[State, str] = {"running": "█", "collective": "▓", "transfer": "▒", "waiting": "░", "idle": "·"}
_WORDS: dict[State, str] = {
    "running": "running",
    "collective": "in a collective",
    "transfer": "transfer",
    "waiting": "waiting",
    "idle": "idle",
}
_COLOURS: dict[State, str] = {
    "running": "var(--jp-success-color1,#388e3c)",
    "collective": "var(--jp-brand-color1,#1976d2)",
    "transfer": "var(--jp-info-color1,#0097a7)",
    "waiting": "var(--jp-warn-color1,#f57c00)",
    "idle": "var(--jp-border-color2,#bdbdbd)",
}
_HEIGHTS: dict[State, int] = {"running": 14, "collective": 10, "transfer": 10, "waiting": 6, "idle": 1}
_LANE, _WIDTH = 18, 720  # pixels
_STYLE = (
    "font-family:var(--jp-code-font-family,monospace);font-size:var(--jp-code-font-size,13px);"
    "color:var(--jp-content-font-color1,inherit);padding-left:var(--jp-code-padding,0)"
)


@dataclass(frozen=True)
class NamedLane:
    """A lane with its name."""

    label: str
    lane: Lane

    @functools.cached_property
    def totals(self) -> dict[State, int]:
        return totals_of(self.lane)

    @property
    def share(self) -> str:
        """`running 0.41 s · waiting 2.70 s`: the time by state, without negligible states."""
        totals = self.totals
        least = sum(totals.values()) / 1000
        parts = [f"{_WORDS[state]} {seconds(totals[state])}" for state in STATES if totals[state] > least]
        return " · ".join(parts)


@dataclass(frozen=True, slots=True)
class NamedTime:
    """The time of ranks in spans of one name: the number of calls, and the nanoseconds of each rank."""

    name: str
    times: int
    by_rank: Mapping[int, int]


def seconds(nanoseconds: int) -> str:
    """Format nanoseconds: `12 µs`, `0.4 ms`, `12 ms`, `3.21 s`."""
    if nanoseconds < 1_000_000:
        return f"{nanoseconds / 1000:.0f} µs"
    if nanoseconds < 10_000_000:
        return f"{nanoseconds / 1e6:.1f} ms"
    return format_seconds(nanoseconds / 1e9)


class Timeline:
    """The lanes of a trace, ready to be shown. `lanes`: of each mesh, by rank."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.lanes = {mesh: lanes_of(own, trace.window) for mesh, own in trace.meshes().items()}
        self._names_mesh = len(self.lanes) > 1
        self.blames = [
            (mesh, blame)
            for mesh, lanes in self.lanes.items()
            for blame in blames_of(lanes)
            if blame.waited > SHORT * trace.window.length
        ][:MOST_LINES]
        self.shown, self.left_out = self._choose()

    # -- text parts ----------------------------------------------------------------

    @property
    def title(self) -> str:
        """`cell 7: 3.21 s on 4 ranks`"""
        cells = self._trace.cells
        named = f"cell {cells[0]}" if len(cells) == 1 else f"cells {cells[0]} to {cells[-1]}"
        ranks = sum(map(len, self.lanes.values()))
        where = f" on {ranks} rank{'s' if ranks > 1 else ''}" if ranks else ""
        so_far = " so far" if self._trace.is_open else ""
        return f"{named}: {seconds(self._trace.window.length)}{so_far}{where}"

    def notes(self) -> Iterator[str]:
        """Yield the waits for other ranks, then remarks on the trace and on the picture."""
        yield from self.notes_on_trace()
        if self.left_out:
            yield f"{self.left_out} more ranks are not drawn; select ranks with %mesh trace SEL"

    def notes_on_trace(self) -> Iterator[str]:
        """Yield the waits for other ranks, and what is missing from the trace."""
        for mesh, blame in self.blames:
            yield self._format_wait(mesh, blame)
        if self._trace.gone:
            have = "have" if self._trace.gone > 1 else "has"
            yield f"{self._trace.gone} of its ranks {have} ended since; their records are lost"
        if self._trace.silent:
            yield f"no answer from {', '.join(self._trace.silent[:MOST_LINES])}; not shown"
        forgotten = max((each.recording.since for each in self._trace.processes), default=0)
        if forgotten > self._trace.window.start:
            since = seconds(forgotten - self._trace.window.start)
            yield f"part of the first {since} was discarded; MESHBOOK_SPANS sets how many spans a process keeps"
        if error := self._trace.clock_error:
            yield f"the clocks of the hosts agree to within {seconds(error)}"

    def _format_wait(self, mesh: str, blame: WaitBlame) -> str:
        ranks = name_ranks(blame.ranks) + (f" of {mesh}" if self._names_mesh else "")
        calls = f", {blame.times} calls" if blame.times > 1 else ""
        up_to = "up to " if len(blame.ranks) > 1 else ""
        return f"{ranks} waited {up_to}{seconds(blame.waited)} for {name_ranks(blame.awaited)} in {blame.name}{calls}"

    @functools.cached_property
    def spent(self) -> list[tuple[str, ...]]:
        """The time by span name, the longest first.

        Each row has the name, the number of calls, the most and the least time of a rank, and the ranks that the others
        waited for, as in the notes.
        """
        window = self._trace.window
        found = [(mesh, each) for mesh, own in self._trace.meshes().items() for each in spent_in(own, window)]
        found.sort(key=lambda each: -max(each[1].by_rank.values()))
        return [self._format_spent(*each) for each in found[:MOST_LINES]]

    def _format_spent(self, mesh: str, spent: NamedTime) -> tuple[str, ...]:
        name = f"{mesh}: {spent.name}" if self._names_mesh else spent.name
        ends = [choose(spent.by_rank, key=spent.by_rank.__getitem__) for choose in (max, min)]
        slowest, fastest = (f"{seconds(spent.by_rank[rank])} (rank {rank})" for rank in ends)
        blamed = (name_ranks(blame.awaited) for of, blame in self.blames if (of, blame.name) == (mesh, spent.name))
        straggler = next(blamed, "")
        return name, f"{spent.times:,}×", slowest, fastest if len(spent.by_rank) > 1 else "", straggler

    def _rows(self) -> list[tuple[str, ...]]:
        """Return the table below the lanes, with its heading; the last column only if ranks waited for others."""
        rows = [("", "calls", "most time", "least time", "waited for"), *self.spent]
        return rows if any(row[-1] for row in self.spent) else [row[:-1] for row in rows]

    # -- choice of lanes -------------------------------------------------------------

    def _choose(self) -> tuple[list[NamedLane], int]:
        everyone = [(mesh, rank, lane) for mesh, lanes in self.lanes.items() for rank, lane in sorted(lanes.items())]
        kept = everyone
        if len(everyone) > MOST_LANES:
            busiest = sorted(range(len(everyone)), key=lambda at: -totals_of(everyone[at][2])["running"])
            chosen = busiest[: MOST_LANES // 2] + busiest[-MOST_LANES // 2 :]
            kept = [everyone[at] for at in sorted(chosen)]
        lanes = [NamedLane(f"{mesh} {rank}" if self._names_mesh else f"rank {rank}", lane) for mesh, rank, lane in kept]
        if (controller := self._trace.controller) is not None:
            own = lanes_of({0: controller.recording}, self._trace.window)[0]
            lanes.insert(0, NamedLane("notebook", own))
        return lanes, len(everyone) - len(kept)

    # -- as text ----------------------------------------------------------------------

    def text(self) -> str:
        """Render for terminals, and for front ends without HTML."""
        width = max(len(each.label) for each in self.shown)
        lines = [self.title]
        for each in self.shown:
            marks = "".join(_MARKS[state] for state in states_of(each.lane, MOST_MARKS))
            lines.append(f"{each.label:<{width}}  {marks}  {each.share}")
        used = _used_states(self.shown)
        lines.append(" " * (width + 2) + "  ".join(f"{_MARKS[state]} {_WORDS[state]}" for state in used))
        lines += self.notes()
        if self.spent:
            rows = self._rows()
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            for row in rows:
                lines.append("  " + "  ".join(f"{field:<{width}}" for field, width in zip(row, widths, strict=True)))
        return "\n".join(line.rstrip() for line in lines)

    # -- as HTML ----------------------------------------------------------------------

    def html(self) -> str:
        """Render a static picture, with the notes below it."""
        label_width = 8 * max(len(each.label) for each in self.shown) + 8
        height = _LANE * len(self.shown) + 18
        lanes = "".join(
            _draw_lane(each, at * _LANE, label_width, self._trace.window) for at, each in enumerate(self.shown)
        )
        axis = _draw_axis(self._trace.window, label_width, height - 4)
        legend = " &nbsp; ".join(
            f'<span style="color:{_COLOURS[state]}">■</span> {_WORDS[state]}' for state in _used_states(self.shown)
        )
        notes = "".join(f"<div>{_escape(note)}</div>" for note in self.notes())
        width = _WIDTH + label_width
        picture = embed_svg(
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{_escape(self.title)}" width="100%"'
            f' style="max-width:{width}px" viewBox="0 0 {width} {height}">{lanes}{axis}</svg>',
            *(self.title, width),
        )
        title = f"<div>{_escape(self.title)}</div>"
        return f'<div style="{_STYLE}">{title}{picture}<div>{legend}</div>{notes}{self._table()}</div>'

    def _table(self) -> str:
        rows = self._rows()
        cells = ["".join(f'<td style="text-align:left">{_escape(field)}</td>' for field in row) for row in rows]
        # In quirks mode, tables without this style take their colour from the page.
        return (
            f"<table style='color:inherit;font:inherit'>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"
            if len(rows) > 1
            else ""
        )


# -- time by name -------------------------------------------------------------------------


def spent_in(recordings: Mapping[int, SpanRecording], window: TimeWindow) -> list[NamedTime]:
    """Sum each rank's time by name: endpoints, user spans, collectives, transfers."""
    times: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, recording in recordings.items():
        for span in filter(window.has, recording.spans):
            if span.kind not in ("cell", "call", "wait"):
                times[name_span(span)][rank].append(span.end - span.start)
    return [
        NamedTime(name, max(map(len, by_rank.values())), {rank: sum(own) for rank, own in by_rank.items()})
        for name, by_rank in times.items()
    ]


# -- drawing ---------------------------------------------------------------------------------


def _draw_lane(shown: NamedLane, top: int, left: int, window: TimeWindow) -> str:
    scale = _WIDTH / max(1, window.length)
    bars = "".join(_draw_segment(each, window, scale, top, left) for each in thin_out(shown.lane, MOST_BARS))
    label = (
        f'<text x="{left - 6}" y="{top + 13}" text-anchor="end" font-size="12"'
        f' style="fill:var(--jp-content-font-color1,currentColor)">{_escape(shown.label)}</text>'
    )
    return f"{label}{bars}"


def _draw_segment(segment: LaneSegment, window: TimeWindow, scale: float, top: int, left: int) -> str:
    height = _HEIGHTS[segment.state]
    x, width = left + (segment.start - window.start) * scale, max(0.3, segment.length * scale)
    label = _WORDS[segment.state] + (f": {segment.name}" if segment.name else "")
    awaited = f", for {name_ranks(segment.awaited)}" if segment.awaited else ""
    title = "" if segment.state == "idle" else f"<title>{_escape(label + awaited)}, {seconds(segment.length)}</title>"
    return (
        f'<rect x="{x:.1f}" y="{top + (_LANE - height) / 2:g}" width="{width:.1f}" height="{height}"'
        f' style="fill:{_COLOURS[segment.state]}">{title}</rect>'
    )


def _draw_axis(window: TimeWindow, left: int, y: int) -> str:
    ticks = ((0, "start", "0 s"), (0.5, "middle", seconds(window.length // 2)), (1, "end", seconds(window.length)))
    return "".join(
        f'<text x="{left + at * _WIDTH:g}" y="{y}" text-anchor="{anchor}" font-size="11"'
        f' style="fill:var(--jp-content-font-color2,currentColor)">{text}</text>'
        for at, anchor, text in ticks
    )


def _used_states(shown: Sequence[NamedLane]) -> list[State]:
    return [state for state in STATES if any(each.totals[state] for each in shown)]


def _escape(text: str) -> str:
    return html.escape(text)
