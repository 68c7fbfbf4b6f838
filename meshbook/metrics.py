"""Vitals of ranks for monitoring systems: `meshbook.metrics.serve()` for Prometheus, `.send()` for OpenTelemetry.

Memory, CPU, GPUs, queues, step times, message rates and heartbeats of all ranks of the meshes that this process has
spawned, labelled by mesh, rank and host; and the last values that ranks have logged by `meshbook.log`. Needs
`pip install 'meshbook[metrics]'`. Nothing is exported without a call of these functions; exports end with the session.
In a notebook: `%mesh metrics`.
"""

from __future__ import annotations

from typing import Any

from meshbook.runtime.hosts.metrics import PORT
from meshbook.runtime.hosts.session import current_session, running_session
from meshbook.runtime.telemetry.exporters.readings import MetricsError

__all__ = ["MetricsError", "send", "serve", "stop"]


def serve(port: int = PORT) -> str:
    """Let Prometheus scrape the ranks' vitals on the loopback interface, and return the URL.

    Port 0 is any free port. MESHBOOK_PROMETHEUS_PORT does the same from the start of each session. Raises MetricsError
    if prometheus_client is not installed, the port is taken, or the vitals are served already; RuntimeError after
    `shutdown_context()`.
    """
    return current_session().metrics.serve(port)


def send(provider: Any = None) -> str:
    """Export the ranks' vitals by OpenTelemetry, and return the destination.

    `provider`: a MeterProvider, by default the one that the program has set. If it has set none, they are sent by OTLP
    as the standard variables configure (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_METRIC_EXPORT_INTERVAL and so on), by default
    to http://localhost:4318. Raises MetricsError if the library is not installed, or the vitals are exported already.
    """
    return current_session().metrics.send(provider)


def stop() -> None:
    """Stop exporting."""
    if (session := running_session()) is not None:
        session.metrics.close()
