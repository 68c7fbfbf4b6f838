"""Tests of the history of curves as tables and files."""

from __future__ import annotations

import csv
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from meshbook.runtime.telemetry.curve_exports import MetricHistory
from meshbook.runtime.telemetry.curve_table import CurvePiece
from meshbook.runtime.telemetry.curves import CurveStore
from meshbook.runtime.telemetry.points import NOTEBOOK, HistoryError
from tests.runtime.telemetry.test_curves import logged, points
from tests.support import open_files

ROWS = [
    ("loss", "cell 12", 0, 0.0, 3.0),
    ("loss", "cell 12", 0, 1.0, 2.0),
    ("lr", "cell 12", 1, 5.0, 0.5),
    ("loss", "cell 12", 1, 0.0, 1.0),
]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CurveStore]:
    """Points in two parts, and one that is in none yet."""
    made = CurveStore(tmp_path / "curves")
    made.add(logged(points("loss", [3.0, 2.0])))
    made.flush()
    made.write_part()
    made.add(logged(points("lr", [0.5], [5.0]), rank=1))
    made.flush()
    made.write_part()
    made.add(logged(points("loss", [1.0]), rank=1))
    made.flush()
    yield made
    made.close()


def test_a_history_is_a_table_of_all_points(store: CurveStore) -> None:
    pytest.importorskip("pyarrow")
    history = MetricHistory(store.saved())
    table = history.to_arrow()
    assert table.column_names == ["metric", "run", "rank", "step", "time", "value"]
    rows = [tuple(row[name] for name in ("metric", "run", "rank", "step", "value")) for row in table.to_pylist()]
    assert rows == ROWS
    assert table.column("time")[0].as_py().timestamp() is not None
    assert len(history) == 4
    assert "all metrics" in repr(history)


def test_a_history_may_be_of_some_metrics_and_ranks(store: CurveStore) -> None:
    pytest.importorskip("pyarrow")
    assert MetricHistory(store.saved(), ["loss"]).to_arrow().column("value").to_pylist() == [3, 2, 1]
    assert MetricHistory(store.saved(), ["loss"], [1]).to_arrow().column("value").to_pylist() == [1]
    assert [list(piece.values) for piece in MetricHistory(store.saved(), ["lr"]).pieces()] == [[0.5]]


def test_pandas_polars_and_duckdb_read_a_history(store: CurveStore) -> None:
    pytest.importorskip("pyarrow")
    history = MetricHistory(store.saved(), ["loss"])
    assert list(history.to_pandas()["value"]) == [3, 2, 1]
    assert pytest.importorskip("polars").DataFrame(history)["value"].to_list() == [3, 2, 1]
    assert history.to_polars()["metric"].to_list() == ["loss"] * 3
    duckdb, points_table = pytest.importorskip("duckdb"), history.to_arrow()
    assert points_table.num_rows == 3
    assert duckdb.sql("select max(value) from points_table").fetchall() == [(3,)]


def test_an_empty_history_is_a_table() -> None:
    pytest.importorskip("pyarrow")
    from meshbook.runtime.telemetry.curve_files import Saved

    assert MetricHistory(Saved((), ())).to_arrow().num_rows == 0


def test_parquet_and_csv_files(store: CurveStore, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    history = MetricHistory(store.saved())
    assert history.write(tmp_path / "run.parquet") == 4
    assert parquet.read_table(tmp_path / "run.parquet").column("value").to_pylist() == [3, 2, 0.5, 1]
    assert history.write(tmp_path / "run.csv") == 4
    with open(tmp_path / "run.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["metric", "run", "rank", "step", "time", "value"]
    assert [(*row[:2], int(row[2]), float(row[3]), float(row[5])) for row in rows[1:]] == ROWS


def test_files_that_cannot_be_written(store: CurveStore, tmp_path: Path) -> None:
    history = MetricHistory(store.saved())
    with pytest.raises(HistoryError, match=r"\.parquet or \.csv"):
        history.write(tmp_path / "run.txt")
    with pytest.raises(HistoryError, match="missing"):
        history.write(tmp_path / "missing" / "run.csv")


def test_an_export_that_fails_leaves_the_earlier_file(
    store: CurveStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.csv"
    path.write_text("earlier")

    def fail(history: MetricHistory) -> Iterator[CurvePiece]:
        yield next(history._saved.all_pieces())
        raise OSError("the disk is full")

    monkeypatch.setattr(MetricHistory, "pieces", fail)
    with pytest.raises(HistoryError, match="full"):
        MetricHistory(store.saved()).write(path)
    assert path.read_text() == "earlier"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["curves", "run.csv"]


def test_a_history_of_one_mesh_has_the_points_of_the_notebook(store: CurveStore) -> None:
    pytest.importorskip("pyarrow")
    store.add(logged(points("loss", [7.0]), mesh="other"))
    store.add(logged(points("loss", [8.0]), mesh="", rank=NOTEBOOK))
    for mesh, values in {"gpus": [3, 2, 1, 8], "other": [8, 7]}.items():
        saved = store.saved()
        others = [run for run, its_mesh in store.meshes().items() if its_mesh != mesh]
        history = MetricHistory(saved, ["loss"], None, others)
        assert sorted(history.to_arrow().column("value").to_pylist()) == sorted(values)
        assert sum(len(piece.values) for piece in history.pieces()) == len(values)


def test_event_files_of_tensorboard(store: CurveStore, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert MetricHistory(store.saved()).write_tensorboard(tmp_path / "tb") == 4
    events = accumulator.EventAccumulator(str(tmp_path / "tb" / "cell 12" / "rank 0"))
    events.Reload()
    assert [(each.step, each.value) for each in events.Scalars("loss")] == [(0, 3), (1, 2)]
    assert events.Scalars("loss")[0].wall_time == pytest.approx(next(MetricHistory(store.saved()).pieces()).times[0])


def test_an_export_to_tensorboard_has_one_file_open_at_a_time(
    store: CurveStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    found = [CurvePiece("loss", "cell 1", number % 4, *np.full((3, 1), number)) for number in range(8)]
    threads, left = set(threading.enumerate()), list[object]()

    def look_between_pieces(history: MetricHistory) -> Iterator[CurvePiece]:
        for piece in found:
            left.extend([*open_files(tmp_path / "tb"), *(set(threading.enumerate()) - threads)])
            yield piece

    monkeypatch.setattr(MetricHistory, "pieces", look_between_pieces)
    assert MetricHistory(store.saved()).write_tensorboard(tmp_path / "tb") == 8
    assert left == []
    assert len([*(tmp_path / "tb").rglob("*tfevents*")]) == 4


def test_without_tensorboard_the_error_says_what_to_install(
    store: CurveStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    with pytest.raises(HistoryError, match="pip install tensorboard"):
        MetricHistory(store.saved()).write_tensorboard(tmp_path)


def test_a_store_without_a_folder_has_no_history() -> None:
    with pytest.raises(HistoryError, match="no history"):
        CurveStore().saved()
