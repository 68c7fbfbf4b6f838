"""Tests of `meshbook.curves`: the replacement for SummaryWriter, and the history of a script."""

from __future__ import annotations

import io
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

import meshbook
from meshbook.curves import HistoryError, SummaryWriter
from meshbook.runtime.actor.context import CURRENT
from meshbook.runtime.hosts import session as sessions
from meshbook.runtime.hosts.in_process import InProcessSession
from meshbook.runtime.telemetry.points import NOTEBOOK


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcessSession]:
    session = InProcessSession()
    monkeypatch.setattr(sessions._Current, "session", session)
    token = CURRENT.set(session.context)
    yield session
    CURRENT.reset(token)
    session.close()


def points_of(run: InProcessSession, metric: str) -> list[tuple[float, float]]:
    run.curves.flush()
    steps, _, values = run.curves.series(metric, "script", NOTEBOOK)
    return list(zip(steps, values, strict=True))


def test_a_summary_writer_logs_scalars(run: InProcessSession) -> None:
    with SummaryWriter("runs/one", comment="x", flush_secs=5) as writer:
        for step in range(3):
            writer.add_scalar("Loss/train", 3.0 - step, step, new_style=True)
        writer.add_scalars("rates", {"a": 1, "b": 2}, global_step=7, walltime=5.0)
        writer.add_scalar("default", numpy.float32(1))
        writer.add_scalar("default", 2)
    assert (writer.log_dir, writer.get_logdir()) == ("runs/one", "runs/one")
    assert points_of(run, "Loss/train") == [(0, 3), (1, 2), (2, 1)]
    assert points_of(run, "rates/b") == [(7, 2)]
    assert points_of(run, "default") == [(0, 1), (1, 2)]


def test_a_summary_writer_logs_histograms_and_images(run: InProcessSession) -> None:
    image = pytest.importorskip("PIL.Image")
    writer = SummaryWriter()
    writer.add_histogram("weights", numpy.arange(8.0), 3, bins="auto", max_bins=4)
    pixels = numpy.zeros((3, 2, 4))
    pixels[0] = 1.0  # red
    writer.add_image("sample", pixels, 5)
    writer.add_image("rows", numpy.arange(8, dtype=numpy.uint8).reshape(2, 4), dataformats="HW")
    with pytest.raises(ValueError, match="HWC"):
        writer.add_image("wrong", numpy.zeros((2, 2)), dataformats="HWC")
    writer.close()
    run.curves.flush()
    histogram = run.curves.histogram("weights", "script", NOTEBOOK)
    assert histogram is not None
    assert (histogram.step, list(histogram.counts)) == (3, [2, 2, 2, 2])
    sample = run.curves.image("sample", "script", NOTEBOOK)
    assert sample is not None
    picture = image.open(io.BytesIO(sample.png))
    assert (picture.size, picture.getpixel((0, 0))) == ((4, 2), (255, 0, 0))
    assert run.curves.image("rows", "script", NOTEBOOK) is not None


def test_other_methods_of_a_summary_writer_warn_once(run: InProcessSession, caplog: pytest.LogCaptureFixture) -> None:
    writer = SummaryWriter()
    writer.add_text("a", "b")
    writer.add_text("a", "b", global_step=1)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    with pytest.raises(AttributeError):
        writer.unknown()


def test_the_history_of_a_script(run: InProcessSession, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    meshbook.log(loss=1.0, lr=0.5)
    meshbook.log(loss=2.0)
    assert meshbook.curves.history("loss").to_arrow().column("value").to_pylist() == [1, 2]
    assert meshbook.curves.export(tmp_path / "run.csv") == 3
    run.curves.write_part()
    assert [path.name for path in meshbook.curves.folder().glob("*.parquet")] == ["part-000000.parquet"]
    with pytest.raises(HistoryError, match="loss, lr"):
        meshbook.curves.history("los")


def test_a_process_without_a_run_has_no_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions._Current, "session", None)
    with pytest.raises(HistoryError, match="no run"):
        meshbook.curves.history()
    with pytest.raises(HistoryError, match="no run"):
        meshbook.curves.folder()


def test_values_of_libraries_that_are_no_numbers_are_left_out() -> None:
    found: dict[str, Any] = meshbook.curves._numbers({"a": 1, "b": "text", "c": None, "d": array("d", [1.0])})
    assert found == {"a": 1.0}


def test_images_and_histograms_that_libraries_pass(run: InProcessSession) -> None:
    values = {"weights": meshbook.Histogram([1.0]), "sample": numpy.zeros((2, 2), numpy.uint8)}
    meshbook.log(meshbook.curves._numbers(values))
    run.node.points.flush()
    run.curves.flush()
    assert run.curves.image("sample", "script", NOTEBOOK) is not None
    assert run.curves.histogram("weights", "script", NOTEBOOK) is not None
