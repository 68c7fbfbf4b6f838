"""Vitals of ranks for monitoring systems: `meshbook.metrics.serve()` for Prometheus, `.send()` for OpenTelemetry.

Memory, CPU, GPUs, queues, step times, message rates and heartbeats of all ranks of the meshes that this process has
spawned, labelled by mesh, rank and host. Needs `pip install 'meshbook[metrics]'`. Nothing is exported unless somebody
asks for it; all of it ends with the session. In a notebook: `%mesh metrics`.
"""

from __future__ import annotations

from typing import Any

from meshbook.runtime.hosts.metrics import PORT
from meshbook.runtime.hosts.session import current_session, running_session
from meshbook.runtime.telemetry.exporters.readings import MetricsError

__all__ = ["MetricsError", "send", "serve", "stop"]


def serve(port: int = PORT) -> str:
    """Let Prometheus scrape the ranks' vitals on the loopback interface, and return the URL.

    Port 0 is any that is free. MESHBOOK_PROMETHEUS_PORT does the same from the begin of each session on. MetricsError
    where prometheus_client is not installed, the port is taken, or they are served already; RuntimeError after
    `shutdown_context()`.
    """
    return current_session().metrics.serve(port)


def send(provider: Any = None) -> str:
    """Export the ranks' vitals by OpenTelemetry, and return where they go to.

    `provider`: a MeterProvider; else the one that the program has set. Where it has set none they are sent by OTLP to
    where the standard variables say (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_METRIC_EXPORT_INTERVAL and so on), and else to
    http://localhost:4318. MetricsError where the library is not installed, or it is done already.
    """
    return current_session().metrics.send(provider)


def stop() -> None:
    """Export no more."""
    if (session := running_session()) is not None:
        session.metrics.close()
