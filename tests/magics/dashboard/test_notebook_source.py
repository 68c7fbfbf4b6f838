"""The data of a dashboard: progress bars merged over ranks, and which ranks are idle."""

from __future__ import annotations

import math

import numpy as np
import pytest

from meshbook.magics.dashboard.notebook_source import MOST, MeshCurves, bar_of_engine, bars_of, mark_idle
from meshbook.runtime.telemetry.curves import CurveStore
from meshbook.runtime.telemetry.points import NOTEBOOK, LoggedMedia
from meshbook.runtime.telemetry.vitals import Activity, Vitals
from tests.runtime.telemetry.test_curves import logged, points


def _row(title: str, count: int, total: int = 10) -> str:
    drawn = "█" * count
    times = f"[00:0{count}<00:0{total - count}, 1.00it/s]"
    return f"{title}: {100 * count // total:3d}%|{drawn:<10}| {count}/{total} {times}\n"


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ({}, []),
        ({0: "loss 0.5\n"}, []),
        ({0: _row("train", 6)}, [(0.6, (0,), 0.6, 0.6)]),
        ({1: _row("train", 4), 0: _row("train", 6), 2: _row("train", 9)}, [(0.6, (0, 1, 2), 0.4, 0.9)]),
        ({0: "\x1b[32m" + _row("train", 5).rstrip() + "\x1b[0m\n"}, [(0.5, (0,), 0.5, 0.5)]),
        ({0: _row("epoch 1", 2) + _row("train", 5)}, [(0.2, (0,), 0.2, 0.2), (0.5, (0,), 0.5, 0.5)]),
        ({0: _row("epoch 1", 2), 1: _row("epoch 2", 4)}, [(0.4, (0, 1), 0.2, 0.4)]),
        ({0: "read: 512rows [00:03, 170.00rows/s]\n"}, []),  # without an end there is no part that is done
    ],
)
def test_bars_with_the_same_title_are_merged(
    rows: dict[int, str], expected: list[tuple[float, tuple[int, ...], float, float]]
) -> None:
    found = [(bar.fraction, tuple(bar.ranks), bar.low, bar.high) for bar in bars_of(rows)]
    assert found == expected


def test_a_bar_has_the_slowest_rank() -> None:
    (bar,) = bars_of({0: _row("train", 9), 1: _row("train", 2), 2: _row("train", 8)})
    assert bar.text.startswith("train: ")
    assert bar.text.endswith("r1 slowest")


def test_the_number_of_bars_is_limited() -> None:
    titles = [chr(ord("a") + number) * 3 for number in range(MOST + 5)]
    assert len(bars_of({0: "".join(_row(title, 1) for title in titles)})) == MOST


@pytest.mark.parametrize(
    ("queued", "expected"),
    [
        ({}, None),
        ({0: 0, 1: 0}, None),
        ({0: 40, 1: 40}, ("tensor engine: 40 commands queued", 0.0, 0.0, 0.0)),
        ({0: 500, 2: 2000, 3: 1000, 1: 0}, ("tensor engine: 2,000 commands queued  r2 slowest", 0.5, 0.0, 1.0)),
    ],
)
def test_the_queue_of_a_tensor_engine_is_a_bar(
    queued: dict[int, int], expected: tuple[str, float, float, float] | None
) -> None:
    bar = bar_of_engine(queued)
    assert (None if bar is None else (bar.text, bar.fraction, bar.low, bar.high)) == expected


def test_a_rank_is_idle_until_its_first_heartbeat_after_a_cell() -> None:
    activity = np.full(5, Activity.IN_COLLECTIVE, np.uint8)
    vitals = Vitals({}, activity, np.array([0.9, 0.1, 0.9, math.inf, 0.1], np.float32))
    runs_a_cell = 0.0
    assert mark_idle(vitals, [0.5, 0.5, math.inf, math.inf, runs_a_cell]).activity.tolist() == [
        Activity.IDLE,
        *[Activity.IN_COLLECTIVE] * 4,
    ]


def test_a_mesh_shows_its_curves_and_those_of_the_notebook_and_not_those_of_other_meshes() -> None:
    store = CurveStore()
    for mesh in ("left", "right"):
        store.add(logged(points("loss", [1]), mesh=mesh))
    store.add(logged(points("only", [1]), mesh="right", origin="13.0.2"))
    store.add(logged(points("loss", [2]), mesh="", rank=NOTEBOOK))
    store.add(logged(points("actor", [1]), mesh="of an actor", origin="14.0.3"))
    store.add(LoggedMedia("13.0.2", "right", 0, "sample", "image", 0, 1e9, b"png"))
    store.flush()
    left, right = MeshCurves(store, lambda: {"right"}, "left", 2), MeshCurves(store, lambda: {"left"}, "right", 3)
    assert (left.metrics(), right.metrics()) == (["loss", "actor"], ["loss", "only", "actor"])
    assert (left.runs("loss"), right.runs("loss")) == (["cell 12"], ["cell 12", "cell 12, right"])
    assert list(left.all_series("loss", "cell 12")) == [NOTEBOOK, 0]
    assert list(right.all_series("loss", "cell 12")) == [NOTEBOOK]
    assert (left.media(), right.media()) == ([], [("sample", "cell 13", 0)])
    assert [left.size_of(run) for run in ("cell 12", "cell 12, right", "cell 14")] == [2, None, None]
    assert right.size_of("cell 12, right") == 3
    store.close()


def test_the_metrics_of_a_mesh_are_listed_with_one_look_at_the_other_meshes() -> None:
    def look() -> set[str]:
        looks.append("looked")
        return {"right"}

    looks: list[str] = []
    store = CurveStore()
    for name in ("loss", "norm", "rate"):
        store.add(logged(points(name, [1]), mesh="left"))
    store.flush()
    curves = MeshCurves(store, look, "left", 1)
    assert (curves.metrics(), len(looks)) == (["loss", "norm", "rate"], 1)
    store.close()
