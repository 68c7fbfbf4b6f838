"""Requests of views for curves: what has changed comes, in a bounded size."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from meshbook.widgets.curve_charts import MOST_RANKS_WITH_MEDIA, REPLY_BYTES, answer_curves


@dataclass
class LoggedCurves:
    """Curves by metric, run and rank that the test sets; a run of any length has the version of its length."""

    curves: dict[str, dict[str, dict[int, list[float]]]] = field(default_factory=dict)
    histograms: dict[tuple[str, str, int], Any] = field(default_factory=dict)
    images: dict[tuple[str, str, int], Any] = field(default_factory=dict)
    version: int = 0
    size: int | None = None

    def metrics(self) -> list[str]:
        return list(self.curves)

    def runs(self, metric: str) -> list[str]:
        return list(self.curves[metric])

    def version_of(self, metric: str, run: str) -> int:
        return sum(map(len, self.curves[metric][run].values()))

    def size_of(self, run: str) -> int | None:
        return self.size

    def all_series(self, metric: str, run: str) -> Mapping[int, tuple[Any, Any, Any]]:
        return {
            rank: (np.arange(len(values), dtype=float), 100.0 + np.arange(len(values)), np.array(values))
            for rank, values in self.curves[metric][run].items()
        }

    def media(self) -> list[tuple[str, str, int]]:
        return [*self.histograms, *self.images]

    def histogram(self, metric: str, run: str, rank: int) -> Any:
        return self.histograms.get((metric, run, rank))

    def image(self, metric: str, run: str, rank: int) -> Any:
        return self.images.get((metric, run, rank))


class Shown:
    """A view: what it has, and the buffers of each curve as arrays."""

    def __init__(self, source: LoggedCurves, **settings: Any) -> None:
        self.source = source
        self.settings = settings
        self.curves: dict[tuple[str, str], tuple[Any, Any]] = {}
        self.versions: dict[tuple[str, str], int] = {}
        self.media: dict[tuple[str, str, int, float], list[bytes]] = {}

    def ask(self, chosen: frozenset[int] | None = None) -> Any:
        have = [[*key, version] for key, version in self.versions.items()]
        request = {"have": have, "have_media": list(self.media), "kind": "curves", "id": 1, "sel": "", **self.settings}
        answer = answer_curves(self.source, chosen, request)
        buffers = list(answer.buffers)
        content: Any = answer.content
        for entry in content["curves"]:
            key = entry["metric"], entry["run"]
            x, values = np.frombuffer(buffers.pop(0), "<f8"), np.frombuffer(buffers.pop(0), "<f4")
            self.curves[key] = x, values.reshape(3 + len(entry["lines"]), entry["points"])
            self.versions[key] = entry["version"]
        for entry in content["media"]:
            count = 1 if entry["kind"] == "image" else 2
            key = entry["name"], entry["run"], entry["rank"], entry["time"]
            self.media[key] = [buffers.pop(0) for _ in range(count)]
        assert not buffers
        return content


def test_only_what_has_changed_comes() -> None:
    source = LoggedCurves({"loss": {"cell 1": {0: [3.0, 2.0], 1: [5.0, 2.0]}}, "lr": {"cell 1": {0: [0.1]}}})
    view = Shown(source, names=["loss"], runs=3)
    reply = view.ask()
    assert reply["metrics"] == ["loss", "lr"]
    assert reply["charts"] == [{"metric": "loss", "runs": ["cell 1"]}]
    x, values = view.curves["loss", "cell 1"]
    assert x.tolist() == [0, 1]
    assert values.tolist() == [[4, 2], [3, 2], [5, 2], [3, 2], [5, 2]]
    assert view.ask()["curves"] == []
    source.curves["loss"]["cell 2"] = {0: [9.0]}
    reply = view.ask()
    assert [entry["run"] for entry in reply["curves"]] == ["cell 2"]
    assert reply["charts"][0]["runs"] == ["cell 1", "cell 2"]
    assert reply["is_complete"]


def test_ranks_a_range_and_the_axis_can_be_chosen() -> None:
    source = LoggedCurves({"loss": {"cell 1": {rank: [float(rank)] * 100 for rank in range(4)}}})
    view = Shown(source, names=["loss"], low=10.0, high=19.0)
    view.ask(frozenset({1, 3}))
    x, values = view.curves["loss", "cell 1"]
    assert x.tolist() == list(range(10, 20))
    assert values[:3, 0].tolist() == [2, 1, 3]
    by_time = Shown(source, names=["loss"], axis="time")
    by_time.ask(frozenset())
    assert len(by_time.curves["loss", "cell 1"][0]) == 0
    with pytest.raises(ValueError, match=r"invalid request for curves: .*points"):
        Shown(source, points=10_000).ask()


def test_long_replies_are_split_and_the_present_runs_come_first() -> None:
    rng = np.random.default_rng(0)
    runs = {f"cell {cell}": {rank: rng.random(600).tolist() for rank in range(8)} for cell in (1, 2)}
    source = LoggedCurves({f"metric {number}": runs for number in range(8)})
    view = Shown(source, names=source.metrics(), runs=2)
    replies = [view.ask()]
    while not replies[-1]["is_complete"]:
        replies.append(view.ask())
    assert len(replies) > 2
    order = [entry["run"] for reply in replies for entry in reply["curves"]]
    assert order == ["cell 2"] * 8 + ["cell 1"] * 8
    one_curve = 600 * (8 + 11 * 4)
    for reply in replies:
        sizes = [entry["points"] * (8 + 4 * (3 + len(entry["lines"]))) for entry in reply["curves"]]
        assert sum(sizes) < REPLY_BYTES + one_curve


@dataclass
class ChangingCurves(LoggedCurves):
    """Curves that have changed each time they are looked at; the second run of two has ended."""

    looks: int = 0

    def version_of(self, metric: str, run: str) -> int:
        self.looks += run == "cell 2"
        return self.looks if run == "cell 2" else 1


def test_every_chart_is_renewed_while_all_of_them_change() -> None:
    runs = {f"cell {cell}": {rank: [0.5] * 600 for rank in range(8)} for cell in (1, 2)}
    source = ChangingCurves({f"metric {number}": runs for number in range(12)})
    view = Shown(source, names=source.metrics(), runs=2)
    seen: list[tuple[str, str]] = []
    for _ in range(16):
        seen += [(entry["metric"], entry["run"]) for entry in view.ask()["curves"]]
    assert set(seen[:12]) == {(metric, "cell 2") for metric in source.metrics()}
    assert all(seen.count((metric, "cell 1")) == 1 for metric in source.metrics())
    assert all(seen.count((metric, "cell 2")) >= 3 for metric in source.metrics())


def test_all_media_come_while_charts_and_media_change() -> None:
    curves = {f"metric {number}": {"cell 2": {rank: [0.5] * 600 for rank in range(8)}} for number in range(12)}
    source = ChangingCurves(curves)
    view = Shown(source, names=[*source.metrics(), "sample"])
    for at in range(4):
        for rank in range(3):
            source.images["sample", "cell 2", rank] = SimpleNamespace(step=0.0, time=float(at), png=bytes(REPLY_BYTES))
        view.ask()
    assert {rank for _, _, rank, _ in view.media} == {0, 1, 2}


def test_ranks_that_a_resize_has_removed_are_not_behind() -> None:
    source = LoggedCurves({"loss": {"cell 1": {rank: [1.0] * (100 if rank < 3 else 10) for rank in range(4)}}})
    for size, kinds in ((4, ["straggler", "rank", "rank", "rank"]), (3, ["rank"] * 4)):
        source.size = size
        reply = Shown(source, names=["loss"]).ask()
        assert [line["kind"] for line in reply["curves"][0]["lines"]] == kinds


def test_earlier_runs_have_no_lines_and_large_values_fit() -> None:
    source = LoggedCurves({"loss": {"cell 1": {0: [1.0], 1: [3.0]}, "cell 2": {0: [1e300, -1e300, 1.0]}}})
    view = Shown(source, names=["loss"], runs=2)
    with warnings.catch_warnings(action="error"):
        reply = view.ask()
    assert [len(entry["lines"]) for entry in reply["curves"]] == [0, 0]
    assert view.curves["loss", "cell 1"][1].tolist() == [[2], [1], [3]]
    assert np.isfinite(view.curves["loss", "cell 2"][1]).all()


def test_media_of_a_few_ranks_come_once() -> None:
    histogram = SimpleNamespace(step=3.0, time=8.5, counts=[1, 2], edges=[0, 1, 2])
    image = SimpleNamespace(step=1.0, time=9.5, png=b"PNG")
    source = LoggedCurves(histograms={("weights", "cell 2", rank): histogram for rank in range(9)})
    source.images["sample", "cell 1", 0] = source.images["sample", "cell 2", 0] = image
    view = Shown(source, names=["weights", "sample"])
    reply = view.ask()
    assert reply["media_names"] == ["weights", "sample"]
    shown = [(entry["name"], entry["run"], entry["rank"]) for entry in reply["media"]]
    assert shown == [("weights", "cell 2", rank) for rank in range(MOST_RANKS_WITH_MEDIA)] + [("sample", "cell 2", 0)]
    assert view.media["sample", "cell 2", 0, 9.5] == [b"PNG"]
    counts, edges = view.media["weights", "cell 2", 0, 8.5]
    assert (np.frombuffer(counts).tolist(), np.frombuffer(edges).tolist()) == ([1, 2], [0, 1, 2])
    assert view.ask()["media"] == []
    chosen = Shown(source, names=["weights"]).ask(frozenset({7}))
    assert [entry["rank"] for entry in chosen["media"]] == [7]
