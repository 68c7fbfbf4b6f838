"""The time line of a trace: text and picture."""

from __future__ import annotations

from meshbook.magics.tracing.collect import (
    ClockOffset,
    Trace,
)
from meshbook.magics.tracing.timeline_svg import MOST_BARS, MOST_LANES, Timeline
from meshbook.runtime.telemetry.spans import Span
from tests.magics.tracing.test_collect import MS, make_trace, recording

# --- what is shown ---


def collective(start: int, end: int) -> Span:
    return Span("collective", start * MS, end * MS, 11, "all_reduce", "3.1", ("",))


def cell(start: int, end: int) -> Span:
    return Span("cell", start * MS, end * MS, 11, "run", "3.1", ("controller", 9, "cells-1@controller"))


def test_the_text_has_waiting_and_awaited_ranks() -> None:
    early, late = recording(cell(0, 50), collective(10, 44)), recording(cell(0, 50), collective(40, 45))
    text = Timeline(make_trace(early, late)).text()
    assert text.splitlines()[0] == "cell 3: 50 ms on 2 ranks"
    assert "rank 0    ██████████░" in text
    assert "rank 0 waited 30 ms for rank 1 in all_reduce" in text
    *_, heading, row = text.splitlines()
    assert row.split() == ["all_reduce", "1×", "34", "ms", "(rank", "0)", "5.0", "ms", "(rank", "1)", "rank", "1"]
    assert heading.index("waited for") == row.rindex("rank 1"), "the table names the straggler as the sentence does"


def test_the_picture_needs_no_script_and_escapes_names() -> None:
    named = recording(cell(0, 50), Span("user", 0, 50 * MS, 11, "<script>&", "3.1"))
    page = Timeline(make_trace(named)).html()
    assert "<svg" in page
    assert "&lt;script&gt;&amp;" in page
    assert "<script" not in page
    assert "var(--jp-" in page


def test_many_ranks_and_many_spans_stay_a_small_picture() -> None:
    many = recording(*(Span("user", at * MS // 10, at * MS // 10 + MS // 20, 11, "x") for at in range(300)))
    timeline = Timeline(make_trace(*[many] * (MOST_LANES + 8)))
    assert len(timeline.shown) == MOST_LANES + 1
    assert "8 more ranks are not drawn" in timeline.text()
    assert timeline.html().count("<rect") <= MOST_BARS * (MOST_LANES + 1)


def test_notes_name_missing_data() -> None:
    trace = make_trace(recording(cell(0, 50), since=20 * MS), clock=ClockOffset(5, 120_000))
    notes = "\n".join(Timeline(Trace(trace.cells, trace.window, trace.processes, ("mesh-1.3",), 2)).notes())
    assert "2 of its ranks have ended since" in notes
    assert "no answer from mesh-1.3" in notes
    assert "part of the first 20 ms was discarded" in notes
    assert "clocks of the hosts agree to within 120 µs" in notes
