"""Tests of the curves in the controller: down-sampling, numbering of steps, files, and their restoration."""

from __future__ import annotations

import math
import sys
import threading
import time
import tracemalloc
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest

from meshbook.runtime.telemetry import curve_files, curve_media, curves
from meshbook.runtime.telemetry.curve_exports import MetricHistory
from meshbook.runtime.telemetry.curve_files import CurveFiles
from meshbook.runtime.telemetry.curve_table import SHOWN_RUNS, CurvePiece, CurveTable
from meshbook.runtime.telemetry.curves import CurveStore
from meshbook.runtime.telemetry.points import NOTEBOOK, HistoryError, LoggedMedia, LoggedPoints, MetricPoints, name_run
from tests.support import PATIENCE


def points(metric: str, values: list[float], steps: list[float] | None = None, start: float = 1e9) -> MetricPoints:
    times = array("d", [start + place for place in range(len(values))])
    numbers = b"" if steps is None else array("d", steps).tobytes()
    return MetricPoints(metric, numbers, times.tobytes(), array("d", values).tobytes())


def logged(
    *new: MetricPoints, rank: int = 0, origin: str = "12.0.1", mesh: str = "gpus", dropped: int = 0
) -> LoggedPoints:
    return LoggedPoints(origin, mesh, rank, new, dropped)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CurveStore]:
    made = CurveStore(tmp_path / "curves")
    yield made
    made.close()


def test_curves_are_kept_by_metric_run_and_rank(store: CurveStore) -> None:
    store.add(logged(points("train/loss", [3.0, 2.0]), points("lr", [0.1]), rank=1))
    store.add(logged(points("train/loss", [4.0]), origin="local 13", rank=NOTEBOOK, mesh=""))
    store.flush()
    assert store.metrics() == ["train/loss", "lr"]
    assert store.runs("train/loss") == ["cell 12", "cell 13"]
    assert store.ranks("train/loss", "cell 13") == [NOTEBOOK]
    steps, times, values = store.series("train/loss", "cell 12", 1)
    assert (list(steps), list(times), list(values)) == ([0, 1], [1e9, 1e9 + 1], [3, 2])
    assert [len(each) for each in store.series("train/loss", "cell 12", 0)] == [0, 0, 0]


def test_a_step_that_is_not_given_follows_the_one_before(store: CurveStore) -> None:
    nan = math.nan
    store.add(logged(points("a", [0, 0]), points("b", [0, 0, 0, 0, 0], [nan, 7, nan, nan, 3])))
    store.add(logged(points("a", [0], [10]), points("b", [0])))
    store.add(logged(points("a", [0, 0])))
    store.flush()
    assert list(store.series("a", "cell 12", 0)[0]) == [0, 1, 10, 11, 12]
    assert list(store.series("b", "cell 12", 0)[0]) == [0, 7, 8, 9, 3, 4]


def test_meshes_that_log_in_one_cell_are_runs_of_their_own(store: CurveStore) -> None:
    store.add(logged(points("a", [1]), mesh="left"))
    store.add(logged(points("a", [2]), mesh="right-0a1b2c3d"))
    store.add(logged(points("a", [3]), mesh="right-4e5f6a7b"))
    store.add(logged(points("a", [4]), mesh="right-0a1b2c3d"))
    store.flush()
    assert store.runs("a") == ["cell 12", "cell 12, right", "cell 12, right-4e5f6a7b"]
    assert list(store.series("a", "cell 12, right", 0)[2]) == [2, 4]
    assert store.meshes() == {"cell 12": "left", "cell 12, right": "right", "cell 12, right-4e5f6a7b": "right"}


@pytest.mark.parametrize(
    ("origin", "incarnation", "run"),
    [
        ("12.0.7", 0, "cell 12"),
        ("local 3", 0, "cell 3"),
        ("12.1.7", 1, "cell 12, attach 1"),
        ("12.0.7", 1, "cell 12"),
        ("local 3", 2, "cell 3, attach 2"),
        ("", 0, "script"),
    ],
)
def test_runs_have_the_names_of_cells(origin: str, incarnation: int, run: str) -> None:
    assert name_run(origin, incarnation) == run


def test_a_long_curve_keeps_its_extremes_in_bounded_memory() -> None:
    table = CurveTable(curve_points=512)
    count = 100_000
    values = numpy.sin(numpy.arange(count) / 3000.0)
    values[31_415], values[92_653] = 50.0, -50.0
    for start in range(0, count, 777):
        part = values[start : start + 777]
        steps = numpy.arange(start, start + len(part), dtype=float)
        table.add("loss", "cell 1", 0, steps, steps, part)
    curve = table.curves["loss"]["cell 1"][0]
    steps, _, kept = curve.series()
    assert curve.count == count
    assert 250 < len(kept) < 512 + 4 * curve.group
    assert (kept.max(), kept.min()) == (50.0, -50.0)
    assert steps[kept.argmax()] == 31_415
    assert (numpy.diff(steps) > 0).all()
    assert steps[-1] == count - 1
    # The resolution is the same everywhere, to the size of two groups.
    assert numpy.diff(steps).max() <= 2 * curve.group


def test_nan_and_inf_remain_visible() -> None:
    table = CurveTable(curve_points=64)
    values = numpy.ones(5000)
    values[4000:] = numpy.nan
    values[10], values[20] = numpy.inf, -numpy.inf
    steps = numpy.arange(5000.0)
    for start in range(0, 5000, 100):
        part = slice(start, start + 100)
        table.add("loss", "cell 1", 0, steps[part], steps[part], values[part])
    kept_steps, _, kept = table.curves["loss"]["cell 1"][0].series()
    assert numpy.isposinf(kept).any()
    assert numpy.isneginf(kept).any()
    assert kept_steps[numpy.isnan(kept)][0] == 4000


def test_memory_is_bounded_over_all_curves_and_the_oldest_run_leaves_first() -> None:
    table = CurveTable(all_points=2048)
    for run in range(4):
        for rank in range(16):
            for start in range(0, 1280, 128):
                steps = numpy.arange(start, start + 128.0)
                table.add("loss", f"cell {run}", rank, steps, steps, steps)
    curves = table.curves["loss"]
    assert sum(curve.size for by_rank in curves.values() for curve in by_rank.values()) <= 2048
    assert list(curves)[-1] == "cell 3"
    assert "cell 0" not in curves


def test_runs_that_no_chart_shows_leave_first() -> None:
    table = CurveTable(all_points=4096)
    for run in ("script", *(f"cell {number}" for number in range(40)), "script"):
        steps = numpy.arange(300.0)
        table.add("loss", run, 0, steps, steps, steps)
    table.add("loss", "cell 40", 0, steps, steps, steps)
    curves = table.curves["loss"]
    assert "script" in curves  # the first one, which has changed since
    assert len(curves) >= SHOWN_RUNS
    assert curves["cell 40"][0].size == 300  # the many runs before cost it no points


def test_points_that_arrive_one_by_one_take_little_memory() -> None:
    table, one = CurveTable(), numpy.ones(1)
    tracemalloc.start()
    for _ in range(400):
        for rank in range(20):
            table.add("loss", "cell 1", rank, one, one, one)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 8000 * 24 * 2 + 20_000


def test_a_series_does_not_change_when_points_arrive() -> None:
    table, one = CurveTable(curve_points=64), numpy.ones(1)
    table.add("loss", "cell 1", 0, one, one, one)
    before = table.curves["loss"]["cell 1"][0].series()
    for _ in range(500):
        table.add("loss", "cell 1", 0, 2 * one, 2 * one, 2 * one)
    assert [each.tolist() for each in before] == [[1], [1], [1]]


def test_more_curves_than_the_limit_are_refused_and_counted() -> None:
    table = CurveTable(most_curves=2)
    one = numpy.ones(1)
    for name in ("a", "b", "c"):
        table.add(name, "cell 1", 0, one, one, one)
    assert list(table.curves) == ["a", "b"]
    assert table.refused == 1


def test_histograms_and_images_are_the_last_ones(store: CurveStore) -> None:
    numbers = array("d", [1, 2, 0.0, 0.5, 1.0]).tobytes()
    for step in (math.nan, math.nan):
        store.add(LoggedMedia("12.0.1", "gpus", 0, "weights", "histogram", step, 1e9, numbers))
    store.add(LoggedMedia("12.0.1", "gpus", 1, "sample", "image", 5, 1e9, b"png"))
    store.flush()
    histogram, image = store.histogram("weights", "cell 12", 0), store.image("sample", "cell 12", 1)
    assert histogram is not None
    assert (histogram.step, list(histogram.counts), list(histogram.edges)) == (1, [1, 2], [0, 0.5, 1])
    assert image is not None
    assert (image.step, image.png) == (5, b"png")
    assert store.media() == [("weights", "cell 12", 0), ("sample", "cell 12", 1)]
    assert store.image("weights", "cell 12", 0) is None


def test_last_values_are_those_of_the_newest_run(store: CurveStore) -> None:
    store.add(logged(points("a", [1, 2])))
    store.add(logged(points("a", [3, 4]), origin="13.0.2", rank=1))
    store.add(logged(points("b", [5])))
    store.flush()
    assert store.last_values() == [("a", 1, 4), ("b", 0, 5)]


def test_dropped_points_are_counted(store: CurveStore) -> None:
    store.add(logged(points("a", [1]), dropped=5))
    store.add(logged(points("a", [1]), dropped=2))
    store.flush()
    assert store.dropped == {("gpus", 0): 7}


def test_points_beyond_what_the_store_can_handle_are_dropped_and_counted(
    store: CurveStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(curves, "MOST_WAITING_BYTES", 100)
    monkeypatch.setattr(store, "_unstarted", [])  # the thread does not start
    for _ in range(5):
        store.add(logged(points("a", [1, 2])))
    store.flush()
    assert store.count("a", "cell 12", 0) == 8  # 32 bytes a message
    assert store.dropped == {("gpus", 0): 2}
    assert "dropped" in caplog.text
    store.add(logged(points("a", [1])))
    store.flush()
    assert store.count("a", "cell 12", 0) == 9


def test_a_bad_message_does_not_cost_the_others(store: CurveStore, caplog: pytest.LogCaptureFixture) -> None:
    store.add(logged(points("a", [1])))
    store.add(logged(MetricPoints("b", b"", b"123", b"1234")))
    store.add(logged(points("c", [1])))
    store.flush()
    assert "rank 0" in caplog.text
    assert [piece.metric for piece in store.saved().all_pieces()] == ["a", "c"]


def test_metrics_that_have_left_memory_are_in_the_history(store: CurveStore) -> None:
    store.add(logged(points("a", [1])))
    store.flush()
    with pytest.raises(HistoryError, match="there are a"):
        store.check_logged(["b"])
    assert store._table is not None
    store._table._drop_run(besides="")
    assert store.metrics() == []
    store.check_logged(["a"])


def test_listeners_and_versions_record_changes(store: CurveStore) -> None:
    seen: list[int] = []
    store.when_changed.append(lambda: seen.append(store.version))
    store.add(logged(points("a", [1])))
    store.flush()
    store.add(logged(points("b", [1])))
    store.flush()
    assert seen
    assert seen[-1] == store.version
    assert store.version_of("a", "cell 12") == 1
    assert store.version_of("c", "cell 12") == 0


def test_the_thread_handles_points_without_a_flush(store: CurveStore) -> None:
    changed = threading.Event()
    store.when_changed.append(changed.set)
    store.add(logged(points("a", [1])))
    assert changed.wait(PATIENCE)
    assert store.metrics() == ["a"]


def test_every_point_is_in_the_parts_and_another_controller_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    import duckdb

    for limit in ("QUIET_SECONDS", "PART_SECONDS", "LONGEST_PART_SECONDS"):
        monkeypatch.setattr(curves, limit, 1000.0)  # the test writes the parts
    folder = tmp_path / "curves"
    first = CurveStore(folder)
    for start in range(3):
        first.add(logged(points("loss", [start, start + 0.5]), rank=1))
        first.flush()
        if start == 1:
            first.write_part()
    # While it runs, DuckDB reads what is in a part.
    seen = duckdb.sql(f"select metric, run, rank, step, value from '{folder}/part-*.parquet' order by step").fetchall()
    assert seen == [("loss", "cell 12", 1, step, step // 2 + step % 2 / 2) for step in range(4)]
    assert sum(table.num_rows for table in first.saved().tables()) == 6
    first.discard()  # as if it were killed: the last points are in no part

    second = CurveStore(folder)
    second.restore()
    assert list(second.series("loss", "cell 12", 1)[2]) == [0, 0.5, 1, 1.5, 2, 2.5]
    second.add(logged(points("loss", [9]), rank=1))
    second.close()
    rows = duckdb.sql(f"select step, value from '{folder}/part-*.parquet' order by step").fetchall()
    assert rows == [(0, 0), (1, 0.5), (2, 1), (3, 1.5), (4, 2), (5, 2.5), (6, 9)]


@pytest.mark.parametrize("limit", ["QUIET_SECONDS", "PART_POINTS"])
def test_parts_are_written_in_the_background(
    store: CurveStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    pytest.importorskip("pyarrow")
    # Each of the two reasons for a part, with the other one out of reach.
    monkeypatch.setattr(curves, "QUIET_SECONDS", 0.01 if limit == "QUIET_SECONDS" else 1000.0)
    monkeypatch.setattr(curves, "PART_POINTS", 1 if limit == "PART_POINTS" else 1000)
    monkeypatch.setattr(curves, "PART_SECONDS", 1000.0)
    monkeypatch.setattr(curves, "LONGEST_PART_SECONDS", 1000.0)
    store.add(logged(points("loss", [1])))
    deadline = time.monotonic() + PATIENCE
    while not list((tmp_path / "curves").glob("part-*.parquet")):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_no_part_is_written_at_the_end_of_a_script(
    store: CurveStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curves, "PART_POINTS", 1)
    ended = threading.Thread()
    monkeypatch.setattr(threading, "main_thread", lambda: ended)
    changed = threading.Semaphore(0)
    store.when_changed.append(changed.release)
    for _ in range(2):  # at the second change, the thread has decided about the first point
        store.add(logged(points("loss", [1])))
        assert changed.acquire(timeout=PATIENCE)
    assert not list((tmp_path / "curves").glob("part-*"))


def test_a_part_that_was_written_before_a_crash_is_not_read_twice(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    files = CurveFiles(tmp_path)
    one = numpy.ones(1)
    files.append([CurvePiece("loss", "cell 1", 0, one, one, one)])
    newest = (tmp_path / "newest").read_bytes()
    files.write_part()
    (tmp_path / "newest").write_bytes(newest)
    assert len(list(CurveFiles(tmp_path).restore())) == 1


def test_two_meshes_keep_their_runs_in_the_next_controller(tmp_path: Path) -> None:
    first = CurveStore(tmp_path)
    for mesh in ("left", "right"):
        first.add(logged(points("loss", [1]), origin="", mesh=mesh))
    first.flush()
    assert first.meshes() == {"script": "left", "script, right": "right"}
    first.close()
    second = CurveStore(tmp_path)
    second.restore()
    for mesh in ("right", "left"):
        second.add(logged(points("loss", [2]), origin="", mesh=mesh))
    second.flush()
    assert [list(second.series("loss", run, 0)[2]) for run in ("script", "script, right")] == [[1, 2], [1, 2]]
    second.close()


def test_points_after_a_full_disk_can_be_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, one = CurveFiles(tmp_path), numpy.ones(1)
    with monkeypatch.context() as patch:
        patch.setattr(CurveFiles, "_next_part", lambda self: (_ for _ in ()).throw(OSError("the disk is full")))
        files.append([CurvePiece("a", "cell 1", 0, one, one, one)])
    assert "full" in files.trouble
    files.append([CurvePiece("b", "cell 1", 0, one, one, one)])
    assert [piece.metric for piece in CurveFiles(tmp_path).restore()] == ["b"]


def test_points_after_an_incomplete_record_can_be_restored(tmp_path: Path) -> None:
    one = numpy.ones(1)
    CurveFiles(tmp_path).append([CurvePiece("a", "cell 1", 0, one, one, one)])
    with open(tmp_path / "newest", "ab") as file:
        file.write(b"\x80\x04half a record")  # its controller was killed
    second = CurveFiles(tmp_path)
    assert len(list(second.restore())) == 1
    second.append([CurvePiece("b", "cell 1", 0, one, one, one)])
    assert [piece.metric for piece in CurveFiles(tmp_path).restore()] == ["a", "b"]


def test_a_part_that_cannot_be_written_costs_bounded_memory(
    store: CurveStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")

    def fail(*arguments: object, **options: object) -> None:
        raise ValueError("no codec")

    monkeypatch.setattr(parquet, "write_table", fail)
    monkeypatch.setattr(curve_files, "MOST_PENDING", 3)
    for _ in range(3):
        store.add(logged(points("loss", [1])))
        store.flush()
        store.write_part()
    assert "no codec" in caplog.text
    assert sum(len(piece.values) for piece in store.saved().pieces) == 0


def test_a_damaged_part_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "part-000000.parquet").write_bytes(b"nothing")
    store = CurveStore(tmp_path)
    store.restore()
    assert "part-000000" in caplog.text


def test_without_pyarrow_points_are_kept_and_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    first = CurveStore(tmp_path)
    first.add(logged(points("loss", [1, 2])))
    first.close()
    second = CurveStore(tmp_path)
    second.restore()
    assert list(second.series("loss", "cell 12", 0)[2]) == [1, 2]
    second.add(logged(points("loss", [3])))
    second.write_part()
    assert [list(piece.values) for piece in second.saved().all_pieces()] == [[1, 2], [3]]
    with pytest.raises(HistoryError, match="pyarrow"):
        MetricHistory(second.saved()).to_arrow()
    second.close()


def test_media_are_bounded(store: CurveStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curve_media, "MEDIA_BYTES", 10)
    for rank in (0, 1, 0, 2):
        store.add(LoggedMedia("12.0.1", "gpus", rank, "sample", "image", 0, 1e9, b"1234"))
    store.flush()
    assert store.media() == [("sample", "cell 12", 0), ("sample", "cell 12", 2)]
    store.add(LoggedMedia("12.0.1", "gpus", 2, "sample", "image", 0, 1e9, b"5678"))
    store.add(LoggedMedia("12.0.1", "gpus", 3, "sample", "image", 0, 1e9, b"1234"))
    store.flush()
    assert len(list((tmp_path / "curves").glob("media-*"))) == 2


def test_restored_media_are_the_last_ones(tmp_path: Path) -> None:
    first = CurveStore(tmp_path)
    first.add(LoggedMedia("12.0.1", "gpus", 1, "sample", "image", 5, 1e9, b"png"))
    first.close()
    second = CurveStore(tmp_path)
    second.restore()
    image = second.image("sample", "cell 12", 1)
    assert image is not None
    assert image.png == b"png"
