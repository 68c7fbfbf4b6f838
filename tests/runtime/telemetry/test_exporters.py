"""What monitoring systems get: scraped over the loopback and read by their own libraries."""

from __future__ import annotations

import math
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from meshbook.runtime.hosts.in_process import InProcessSession
from meshbook.runtime.hosts.metrics import MetricsExport, Readings
from meshbook.runtime.telemetry.exporters.readings import LOGGED, MEASUREMENTS, LoggedValue, MetricsError
from meshbook.runtime.telemetry.history import History
from meshbook.runtime.telemetry.vitals import COLUMNS, METRICS, Activity, ProcessReport, VitalsBatch

parser = pytest.importorskip("prometheus_client.parser")
sdk = pytest.importorskip("opentelemetry.sdk.metrics")
export = pytest.importorskip("opentelemetry.sdk.metrics.export")

Labelled = dict[tuple[tuple[str, str], ...], float]


def owned_mesh(**fields: Any) -> Any:
    return SimpleNamespace(name="trainers", ranks={"t-1.0": 0, "t-1.2": 1, "t-1.9": 2}, failed=[1], **fields)


@pytest.fixture
def metrics() -> Iterator[MetricsExport]:
    """Of a mesh of three: rank 0 runs, rank 1 has died, rank 2 is just being born."""
    history = History()
    known = {"memory": 2e9, "cpu": 1.5, "activity": Activity.RUNNING, "age": 0.0}
    row = np.array([known.get(column, math.nan) for column in COLUMNS], "<f4")
    words = {node: msgspec.msgpack.encode(ProcessReport(pid=1)) for node in ("t-1.0", "t-1.2")}
    history.add(VitalsBatch("node1", ("t-1.0", "t-1.2"), (0, 0), np.stack([row, row]).tobytes(), words))
    read = Readings(lambda: [owned_mesh()], history)
    read()  # which knows the host of the dead one from now on
    logged = [LoggedValue("train/loss", 0, 0.5), LoggedValue("train/loss", 2, math.nan)]
    with closing(MetricsExport(read, "4f2a", lambda: logged)) as metrics:
        yield metrics


def scrape(url: str) -> dict[str, Labelled]:
    with urllib.request.urlopen(url, timeout=10) as reply:
        text = reply.read().decode()
    return {
        family.name: {tuple(sorted(sample.labels.items())): sample.value for sample in family.samples}
        for family in parser.text_string_to_metric_families(text)
    }


def of_rank(rank: int, **more: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted({"mesh": "trainers", "rank": str(rank), "host": "node1", **more}.items()))


def test_prometheus_scrapes_what_is_known(metrics: MetricsExport) -> None:
    url = metrics.serve(0)
    found = scrape(url)
    assert url.startswith("http://127.0.0.1:")
    assert found["meshbook_rank_up"] == {of_rank(0): 1, of_rank(1): 0}
    assert found["meshbook_rank_memory_bytes"] == {of_rank(0): 2e9}
    assert found["meshbook_rank_cpu_cores"] == {of_rank(0): 1.5}
    assert 0 <= found["meshbook_rank_heartbeat_age_seconds"][of_rank(0)] < 60
    assert found["meshbook_rank_activity"][of_rank(0, activity="running")] == 1
    assert found["meshbook_rank_activity"][of_rank(0, activity="idle")] == 0
    assert "meshbook_rank_gpu_memory_bytes" not in found  # there is no GPU
    of_loss = found["meshbook_logged_value"]
    assert of_loss.pop((("metric", "train/loss"), ("rank", "0"))) == 0.5
    assert math.isnan(of_loss.pop((("metric", "train/loss"), ("rank", "2"))))
    assert of_loss == {}
    assert not any(name.startswith(("python_", "process_")) for name in found)


def test_an_endpoint_ends_and_begins_again(metrics: MetricsExport) -> None:
    first = metrics.serve(0)
    assert metrics.status() == [f"Prometheus: {first}"]
    with pytest.raises(MetricsError, match=r"already served at http://127\.0\.0\.1:"):
        metrics.serve(0)
    metrics.close()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(first, timeout=10)
    assert metrics.status() == []
    again = metrics.serve(int(first.rpartition(":")[2].partition("/")[0]))
    assert scrape(again)


def test_a_taken_port_is_reported(metrics: MetricsExport) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(MetricsError, match=rf"at 127\.0\.0\.1:{port}: Address already in use"):
            metrics.serve(port)
    assert metrics.status() == []


@pytest.mark.parametrize(
    ("library", "begin", "says"),
    [
        (
            "prometheus_client",
            lambda metrics: metrics.serve(0),
            r"prometheus_client; run pip install 'meshbook\[metrics\]'",
        ),
        (
            "opentelemetry.sdk.metrics",
            lambda metrics: metrics.send(),
            r"opentelemetry-sdk; run pip install 'meshbook\[metrics\]'",
        ),
    ],
)
def test_a_library_that_is_missing_is_named(
    metrics: MetricsExport, monkeypatch: pytest.MonkeyPatch, library: str, begin: Any, says: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MetricsError, match=says):
        begin(metrics)


def observed(reader: Any) -> dict[str, list[Any]]:
    data = reader.get_metrics_data()
    resources = data.resource_metrics if data is not None else ()
    return {
        metric.name: list(metric.data.data_points)
        for resource in resources
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_opentelemetry_observes_the_same(metrics: MetricsExport) -> None:
    reader = export.InMemoryMetricReader()
    with closing(SimpleNamespace(close=sdk.MeterProvider([reader]).shutdown)) as ending:
        provider = ending.close.__self__
        assert metrics.send(provider) == "the program's own meter provider"
        found = observed(reader)
        assert set(found) <= {measurement.dotted for measurement in (*MEASUREMENTS, LOGGED)}
        (loss,) = found["meshbook.logged.value"]  # NaN is no value there
        assert (loss.value, loss.attributes) == (0.5, {"metric": "train/loss", "rank": 0})
        (memory,) = found["meshbook.rank.memory"]
        assert (memory.value, memory.attributes) == (2e9, {"mesh": "trainers", "rank": 0, "host": "node1"})
        assert [(point.attributes["rank"], point.value) for point in found["meshbook.rank.up"]] == [(0, 1), (1, 0)]
        (running,) = (point for point in found["meshbook.rank.activity"] if point.value)
        assert running.attributes["activity"] == "running"
        metrics.close()
        assert observed(reader) == {}
        metrics.send(provider)
        assert observed(reader)["meshbook.rank.memory"][0].value == 2e9


def test_each_metric_has_a_name_of_its_own() -> None:
    assert len({measurement.name for measurement in MEASUREMENTS}) == len(MEASUREMENTS) == len(METRICS) + 3
    assert len({measurement.dotted for measurement in MEASUREMENTS}) == len(MEASUREMENTS)


def test_an_endpoint_ends_with_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("MESHBOOK_PROMETHEUS_PORT", str(port))
    session = InProcessSession()
    try:
        url = f"http://127.0.0.1:{port}/metrics"
        assert session.metrics.status() == [f"Prometheus: {url}"]
        assert scrape(url) == {}
    finally:
        session.close()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=10)
