"""Vitals of ranks as OpenTelemetry metrics: gauges that its own library observes at each export."""

from __future__ import annotations

import importlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from meshbook.runtime.telemetry.exporters.readings import (
    LOGGED,
    MEASUREMENTS,
    Measurement,
    MeshReading,
    MetricsError,
    Read,
    ReadLogged,
    samples_of,
)

CLOSE_SECONDS = 1.0  # time limit of the last export
SAME_READING = 0.2  # seconds: all gauges of an export show the same reading
_EXPORTERS = {
    "grpc": ("opentelemetry.exporter.otlp.proto.grpc.metric_exporter", "opentelemetry-exporter-otlp-proto-grpc"),
    "http/protobuf": (
        "opentelemetry.exporter.otlp.proto.http.metric_exporter",
        "opentelemetry-exporter-otlp-proto-http",
    ),
}


class OpenTelemetryExport:
    """Registers gauges of ranks with a meter provider, which observes them until `close`.

    `provider`: the user's; else the one that the program has set (`opentelemetry.metrics.set_meter_provider`); else a
    new one, which sends by OTLP to the endpoint of the standard variables (OTEL_EXPORTER_OTLP_ENDPOINT and so on;
    without them http://localhost:4318), and is shut down with this object. `scope` names the meter. Raises MetricsError
    if a library is missing.
    """

    def __init__(self, read: Read, provider: Any = None, scope: str = "", *, logged: ReadLogged = tuple) -> None:
        sdk = _import("opentelemetry.sdk.metrics", "opentelemetry-sdk")
        api = _import("opentelemetry.metrics", "opentelemetry-api")
        present = provider if provider is not None else api.get_meter_provider()
        is_given = provider is not None or isinstance(present, sdk.MeterProvider)
        self._own: Any = None if is_given else _make_provider(sdk)
        variables = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
        endpoint = next(filter(None, map(os.environ.get, variables)), "http://localhost:4318")
        self.target = "the program's own meter provider" if is_given else endpoint
        self._read = _Steady(read)
        self._logged = logged
        self._observation = api.Observation
        used: Any = present if is_given else self._own
        meter = used.get_meter("meshbook", attributes={"meshbook.export": scope})
        for measurement in MEASUREMENTS:
            meter.create_observable_gauge(
                measurement.dotted,
                callbacks=[self._observer(measurement)],
                unit=measurement.unit,
                description=measurement.description,
            )
        meter.create_observable_gauge(
            LOGGED.dotted, callbacks=[self._observe_logged], unit=LOGGED.unit, description=LOGGED.description
        )
        self._is_closed = False

    def close(self) -> None:
        """Stop observing; a provider that was made here sends its rest, and is shut down. Idempotent."""
        if not self._is_closed and self._own is not None:
            # On a thread of its own: without a listener it retries for eight seconds, whatever time limit it has.
            ending = threading.Thread(target=self._own.shutdown, name="meshbook metrics' end", daemon=True)
            ending.start()
            ending.join(CLOSE_SECONDS)
        self._is_closed = True  # a gauge cannot be removed: the user's provider gets no values from now on

    def _observer(self, measurement: Measurement) -> Callable[[Any], Iterable[Any]]:
        def observe(options: Any) -> Iterable[Any]:
            if self._is_closed:
                return
            for sample in samples_of(measurement, self._read()):
                attributes = {"mesh": sample.mesh, "rank": sample.rank, "host": sample.host}
                yield self._observation(
                    sample.value, {**attributes, "activity": sample.activity} if sample.activity else attributes
                )

        return observe

    def _observe_logged(self, options: Any) -> Iterable[Any]:
        for logged in () if self._is_closed else self._logged():
            if math.isfinite(logged.value):
                yield self._observation(logged.value, {"metric": logged.metric, "rank": logged.rank})


class _Steady:
    """A reader that shares one reading among calls at about the same time."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._until = 0.0
        self._readings: Sequence[MeshReading] = ()

    def __call__(self) -> Sequence[MeshReading]:
        if time.monotonic() >= self._until:
            self._readings = self._read()
            self._until = time.monotonic() + SAME_READING
        return self._readings


def _make_provider(sdk: Any) -> Any:
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    module, package = _EXPORTERS.get(protocol or "http/protobuf", _EXPORTERS["http/protobuf"])
    exporter = _import(module, package).OTLPMetricExporter()
    reader = _import("opentelemetry.sdk.metrics.export", "opentelemetry-sdk").PeriodicExportingMetricReader(exporter)
    # The resource comes from the standard variables; its name is meshbook if they give none.
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resources = _import("opentelemetry.sdk.resources", "opentelemetry-sdk")
    resource = resources.Resource.create({} if named else {"service.name": "meshbook"})
    # Without `atexit`: the session that owns this provider shuts it down.
    return sdk.MeterProvider([reader], resource=resource, shutdown_on_exit=False)


def _import(module: str, package: str) -> Any:
    """Import a library only when it is used: it is an extra, and takes a tenth of a second."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MetricsError(
            f"metrics for OpenTelemetry require the package {package}; run pip install 'meshbook[metrics]'"
        ) from error
