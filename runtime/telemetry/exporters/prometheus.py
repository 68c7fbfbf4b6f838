"""An endpoint that Prometheus scrapes: `http://127.0.0.1:9464/metrics`, by its own library, `prometheus_client`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from meshbook.runtime.telemetry.exporters.readings import (
    ACTIVITY,
    LOGGED,
    MEASUREMENTS,
    MetricsError,
    Read,
    ReadLogged,
    samples_of,
)

if TYPE_CHECKING:
    from prometheus_client.core import GaugeMetricFamily

LOOPBACK = "127.0.0.1"
_LABELS = ("mesh", "rank", "host")


class PrometheusEndpoint:
    """Answers scrapes until `close`. Each scrape reads the current vitals and the last logged values.

    It has its own registry: metrics of the user's program in `prometheus_client` are not shown here. Raises
    MetricsError if the library is missing or the port cannot be bound; port 0 is any free one.
    """

    def __init__(self, read: Read, port: int, address: str = LOOPBACK, *, logged: ReadLogged = tuple) -> None:
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError as error:
            raise MetricsError(
                "metrics for Prometheus require the package prometheus_client; run pip install 'meshbook[metrics]'"
            ) from error
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(read, logged))
        self._server: Any
        self._thread: threading.Thread
        try:
            self._server, self._thread = start_http_server(port, address, registry)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise MetricsError(
                f"cannot serve metrics at {address}:{port}: {why}; choose another port, or 0 for any free port"
            ) from error
        self._thread.pydev_do_not_trace = True  # type: ignore[attr-defined]
        self._address = address

    @property
    def url(self) -> str:
        """The address to scrape."""
        return f"http://{self._address}:{self._server.server_port}/metrics"

    def close(self) -> None:
        """Stop the server; the port is free afterwards."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Collector:
    """The collector that the library calls at each scrape."""

    def __init__(self, read: Read, logged: ReadLogged) -> None:
        self._read = read
        self._logged = logged

    def describe(self) -> list[GaugeMetricFamily]:
        """Return nothing: there are no metrics before a mesh is up."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        from prometheus_client.core import GaugeMetricFamily

        readings = self._read()
        for measurement in MEASUREMENTS:
            labels = (*_LABELS, "activity") if measurement is ACTIVITY else _LABELS
            family = GaugeMetricFamily(measurement.name, measurement.description, labels=labels)
            for sample in samples_of(measurement, readings):
                values = (sample.mesh, str(sample.rank), sample.host, sample.activity)
                family.add_metric(values[: len(labels)], sample.value)
            if family.samples:
                yield family
        family = GaugeMetricFamily(LOGGED.name, LOGGED.description, labels=("metric", "rank"))
        for value in self._logged():
            family.add_metric((value.metric, str(value.rank)), value.value)
        if family.samples:
            yield family
