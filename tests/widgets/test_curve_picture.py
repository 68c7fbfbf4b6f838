"""Static pictures of curves: for terminals and saved notebooks."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from meshbook.testing import fake_mesh
from meshbook.widgets.curve_picture import MOST_CHARTS, NOTHING, curves_picture, match_metrics
from tests.widgets.test_curve_charts import LoggedCurves

SVG = "{http://www.w3.org/2000/svg}"


def charts_of(html: str) -> list[ElementTree.Element]:
    """The SVG elements of a picture, which is well-formed."""
    return [each for each in ElementTree.fromstring(html).iter(f"{SVG}svg") if each.get("role") == "img"]


def test_each_metric_has_a_chart_with_its_last_values_and_the_ranks_that_differ() -> None:
    mesh = fake_mesh(4, faults=0)
    mesh.advance(200)
    picture = curves_picture(mesh.curves, ["train"])
    charts = charts_of(picture.html)
    assert [chart.get("aria-label", "").partition(",")[0] for chart in charts] == ["train/loss", "train/accuracy"]
    polygons = [len(list(chart.iter(f"{SVG}polygon"))) for chart in charts]
    lines = [len(list(chart.iter(f"{SVG}polyline"))) for chart in charts]
    assert (polygons, lines) == ([1, 1], [6, 6])  # an earlier run, four ranks, the mean
    for text in picture:
        assert "cell 2" in text
        assert f"rank {mesh.curves.straggler} behind: step" in text
        assert "gradient" not in text
    assert "█" in picture.text
    assert len(picture.html) < 40_000  # each chart as SVG and as an image


def test_names_are_text_and_odd_curves_have_a_picture() -> None:
    markup = "<b>loss"
    curves: Any = {
        markup: {"cell 1": {-1: [1.0]}},
        "flat": {"cell 1": {0: [2.0, 2.0], 1: [2.0, 2.0]}},
        "nan": {"cell 1": {0: [float("nan")]}},
    }
    picture = curves_picture(LoggedCurves(curves))
    assert len(charts_of(picture.html)) == 3
    assert markup not in picture.html
    first, *_, last = picture.text.splitlines()
    assert first.startswith(markup)
    assert first.endswith("cell 1, notebook: 1 at step 0")
    assert last.strip() == "rank 0 NaN at step 0"


@pytest.mark.parametrize("values", [[-1.7e308, 1.7e308], [1e16, 1e16 + 2], [0.0, 5e-324]], ids=str)
@pytest.mark.parametrize("start", [0.0, 1.7e18, -1.7e308])
def test_any_finite_values_and_steps_have_a_picture(
    values: list[float], start: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = LoggedCurves({"loss": {"cell 1": {0: values}}})
    series = source.all_series("loss", "cell 1")
    moved = {rank: (steps + start, times, kept) for rank, (steps, times, kept) in series.items()}
    monkeypatch.setattr(source, "all_series", lambda metric, run: moved)
    picture = curves_picture(source)
    assert "nan" not in picture.html
    assert len(charts_of(picture.html)) == 1


def test_a_long_step_is_written_in_full() -> None:
    source = LoggedCurves({"loss": {"cell 1": {0: [1.0] * 1_234_567}}})
    assert "at step 1,234,566" in curves_picture(source).text


def test_what_is_missing_is_said() -> None:
    assert NOTHING in curves_picture(None).text
    assert curves_picture(LoggedCurves()).text == NOTHING
    curves = LoggedCurves({f"metric {number}": {"cell 1": {0: [1.0]}} for number in range(MOST_CHARTS + 2)})
    assert curves_picture(curves).text.endswith("and 2 more metrics")
    assert curves_picture(curves, ["accuracy"]).text.startswith("no metric is named accuracy; there are metric 0, ")


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        ([], ["loss", "train/loss", "lr", "val.loss"]),
        (["train", "lr"], ["train/loss", "lr"]),
        (["*loss"], ["loss", "train/loss", "val.loss"]),
        (["val?loss", "val.los"], []),
    ],
)
def test_metrics_are_selected_by_name_group_or_pattern(patterns: list[str], found: list[str]) -> None:
    assert match_metrics(["loss", "train/loss", "lr", "val.loss"], patterns) == found
