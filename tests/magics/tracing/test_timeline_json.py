"""The time line of a trace as data for the dashboard."""

from __future__ import annotations

import pytest

from meshbook.magics.tracing import timeline_json
from meshbook.magics.tracing.timeline_json import timeline_of
from meshbook.runtime.telemetry.spans import Span
from tests.magics.tracing.test_collect import MS, make_trace, recording

# --- as data ---


def test_timeline_json_has_lanes_in_seconds_without_idle_time() -> None:
    late = Span("collective", 30 * MS, 40 * MS, 11, "all_reduce", "3.0.1", ("",))
    early = Span("collective", 10 * MS, 40 * MS, 11, "all_reduce", "3.0.1", ("",))
    cells = [Span("cell", 5 * MS, 45 * MS, 11, "3", "3.0.1") for _ in range(2)]
    trace = make_trace(recording(cells[0], early), recording(cells[1], late))
    reply = timeline_of(trace, "mesh")
    assert (reply["cell"], reply["seconds"], reply["open"]) == (3, 0.05, False)
    assert reply["notes"] == ["rank 0 waited 20 ms for rank 1 in all_reduce"]
    assert [lane["label"] for lane in reply["lanes"]] == ["rank 0", "rank 1"]
    assert reply["lanes"][0]["spans"] == [
        (0.005, 0.01, "running", ""),
        (0.01, 0.03, "waiting", "all_reduce, for rank 1"),
        (0.03, 0.04, "collective", "all_reduce"),
        (0.04, 0.045, "running", ""),
    ]
    assert timeline_of(trace, "other") == {**reply, "lanes": [], "notes": ["no rank of other took part in this cell"]}


def test_timeline_json_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_json, "MOST_IN_ALL", 600)
    busy = recording(*(Span("user", at * 50_000, at * 50_000 + 25_000, 11, f"part {at}") for at in range(900)))
    few, many = (timeline_of(make_trace(*[busy] * ranks), "mesh")["lanes"] for ranks in (1, 10))
    assert 0 < len(few[0]["spans"]) <= timeline_json.MOST_SPANS
    assert sum(len(lane["spans"]) for lane in many) <= 600
