"""Bands over the curves of ranks: nothing extreme is lost, and the ranks that leave the others are found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from meshbook.widgets.curve_bands import MOST_LINES, Band, gather_samples, make_band

STEPS = 200


def loss(rank: int, steps: int = STEPS, noise: float = 0.02) -> Any:
    """A noisy loss that falls from 2 towards 0.2."""
    return 0.2 + 1.8 * np.exp(-np.arange(steps) / 40) + np.random.default_rng(rank).normal(0, noise, steps)


def band_of(curves: Mapping[int, Any], points: int = 400, *, by_time: bool = False, **limits: Any) -> Band:
    """The band of curves by rank; each step takes half a second."""
    series = [(np.arange(len(each), dtype=float), 1.7e9 + np.arange(len(each)) / 2, each) for each in curves.values()]
    return make_band(gather_samples(list(curves), series, by_time=by_time), points, **limits)


def named(band: Band) -> dict[int, str]:
    return {line.rank: line.kind for line in band.lines if line.kind != "rank"}


def test_a_short_curve_is_shown_as_it_is() -> None:
    curves = {0: np.array([3.0, 2.0, 1.0]), 1: np.array([5.0, 2.0, 0.0])}
    band = band_of(curves)
    assert band.x.tolist() == [0, 1, 2]
    assert (band.mean.tolist(), band.low.tolist(), band.high.tolist()) == ([4, 2, 0.5], [3, 2, 0], [5, 2, 1])
    assert band.values.tolist() == [[3, 2, 1], [5, 2, 0]]
    assert band_of(curves, by_time=True).x.tolist() == [0, 0.5, 1]


def test_a_long_curve_keeps_its_extremes_and_its_groups_stay() -> None:
    curves = {rank: loss(rank, 50_000) for rank in range(4)}
    curves[2][31_415] = 9.0
    curves[3][27_182] = -9.0
    band = band_of(curves, 400)
    assert 200 <= len(band.x) <= 400
    assert (band.high.max(), band.low.min()) == (9.0, -9.0)
    earlier = band_of({rank: each[:49_000] for rank, each in curves.items()}, 400)
    same = len(earlier.x) - 1
    assert np.array_equal(earlier.x[:same], band.x[:same])
    assert np.array_equal(earlier.high[:same], band.high[:same])


def test_a_range_of_x_has_more_points() -> None:
    curves = {0: np.arange(100_000.0)}
    band = band_of(curves, 400, low=500.0, high=600.0)
    assert band.x.tolist() == list(range(500, 601))
    assert len(band_of(curves, 400, low=1e6, high=2e6).x) == 0


def test_a_rank_that_logs_less_often_counts_between_its_points() -> None:
    often, seldom = np.full(101, 1.0), np.full(11, 3.0)
    steps = np.arange(101.0), np.arange(0, 101, 10.0)
    series = [(each, each, values) for each, values in zip(steps, (often, seldom), strict=True)]
    band = make_band(gather_samples([0, 1], series, by_time=False), 400)
    assert np.allclose(band.mean, 2.0)
    assert np.allclose(band.high, 3.0)
    assert np.isnan(band.values[1]).sum() == 90  # its own line has no invented points


def test_stragglers_and_diverging_ranks_are_named_and_leave_the_mean() -> None:
    curves = {rank: loss(rank) for rank in range(4)}
    assert named(band_of(curves)) == {}
    curves[1] = curves[1][:80]
    curves[3][60:] += np.linspace(0.0, 4.0, STEPS - 60)
    band = band_of(curves)
    assert named(band) == {3: "diverging", 1: "straggler"}
    texts = {line.rank: line.text for line in band.lines}
    assert texts[1] == "behind: step 79, median 199"
    assert texts[3].startswith("diverges: 4.")
    assert band.ranks == 3
    assert band.high[-1] < 0.4


def test_ranks_that_are_gone_are_not_behind() -> None:
    curves = {rank: loss(rank, 80 if rank in (2, 6, 7) else STEPS) for rank in range(8)}
    assert named(band_of(curves)) == dict.fromkeys((2, 6, 7), "straggler")
    assert named(band_of(curves, size=6)) == {2: "straggler"}
    curves = {rank: loss(rank, STEPS if rank in (0, 1, 3) else 80) for rank in range(8)}
    assert named(band_of(curves, size=4)) == {2: "straggler"}, "they do not count in the median, either"
    assert named(band_of({rank: loss(rank) for rank in range(4, 8)}, size=4)) == {}


@pytest.mark.parametrize("size", [3, 4, 8, 100])
def test_noise_names_no_rank(size: int) -> None:
    assert named(band_of({rank: loss(rank, noise=0.1) for rank in range(size)})) == {}


def test_a_rank_among_equal_ones_has_to_differ_visibly() -> None:
    curves = {rank: np.full(50, 1.0) for rank in range(8)}
    curves[5] = np.full(50, 1.001)
    assert named(band_of(curves)) == {}
    curves[5] = np.full(50, 1.1)
    assert named(band_of(curves)) == {5: "diverging"}


def test_nan_and_infinities_are_named_with_their_step() -> None:
    curves = {rank: loss(rank) for rank in range(5)}
    curves[4][120:] = np.nan
    curves[2][50] = np.inf
    lines = band_of(curves).lines[:2]
    assert [(line.rank, line.kind, line.text) for line in lines] == [
        (2, "invalid", "+inf at step 50"),
        (4, "invalid", "NaN at step 120"),
    ]
    only_nan = band_of({0: np.full(3, np.nan)})
    assert len(only_nan.x) == 0
    assert [line.rank for line in only_nan.lines] == [0]


def test_the_notebook_has_a_line_beside_the_ranks_and_a_band_alone() -> None:
    notebook = {-1: np.full(10, 7.0)}
    band = band_of(notebook | {rank: np.full(10, 1.0) for rank in range(20)})
    assert named(band) == {-1: "notebook"}
    assert band.high.max() == 1.0
    assert band_of(notebook).mean.tolist() == [7.0] * 10


def test_ranks_may_log_steps_in_any_order() -> None:
    backwards = np.arange(99.0, -1.0, -1.0)
    series = [(steps, steps, 2.0 * steps) for steps in (np.arange(100.0), backwards)]
    band = make_band(gather_samples([0, 1], series, by_time=False), 400)
    assert band.x.tolist() == list(range(100))
    assert band.values.tolist() == [(2.0 * band.x).tolist()] * 2
    assert np.array_equal(band.low, band.high)


@pytest.mark.parametrize(
    "steps",
    [
        [0.0, np.inf, 1.0],
        [-np.inf, 3.0],
        [-1.7e308, 1.7e308],
        [0.0, 5e-324],
        [1.7e18, 1.7e18 + 256],
        [-5.0, -4.0, 3.0],
        [2.0**53, 2.0**53 + 2],
    ],
    ids=str,
)
def test_any_steps_have_a_band(steps: list[float]) -> None:
    places = np.array(steps)
    values = np.arange(1.0, len(steps) + 1)
    band = make_band(gather_samples([0], [(places, places, values)], by_time=False), 400)
    assert len(band.x) in (1, np.isfinite(places).sum())
    assert band.x[-1] == places[np.isfinite(places)].max()
    assert band.low.min() == values[np.isfinite(places)].min()


def test_thousands_of_ranks_have_few_lines() -> None:
    curves = {rank: loss(rank, 64) for rank in range(4096)}
    for rank in range(100, 120):
        curves[rank] += rank
    band = band_of(curves)
    assert [line.rank for line in band.lines] == list(range(119, 119 - MOST_LINES, -1))
    assert band.more == 12
    assert 32 <= len(band.x) <= 64
