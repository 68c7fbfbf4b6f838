"""The metrics of a session for monitoring systems: the values to export, and the exports that are on.

Off by default. `meshbook.metrics`, `%mesh metrics` and MESHBOOK_PROMETHEUS_PORT turn exports on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from meshbook.runtime.node.ledger import OwnedMesh
from meshbook.runtime.telemetry.exporters.readings import LoggedValue, MeshReading, MetricsError, Read, ReadLogged

if TYPE_CHECKING:  # their libraries are loaded only on demand
    from meshbook.runtime.hosts.session import Session
    from meshbook.runtime.telemetry.exporters.opentelemetry import OpenTelemetryExport
    from meshbook.runtime.telemetry.exporters.prometheus import PrometheusEndpoint
    from meshbook.runtime.telemetry.history import History

logger = logging.getLogger(__name__)
_OFF = "; stop with meshbook.metrics.stop() or %mesh metrics --off"
PORT = 9464  # which OpenTelemetry's own exporters for Prometheus use


class Readings:
    """Reads the state of the ranks of all meshes that this process has spawned. For any thread."""

    def __init__(self, owned_meshes: Callable[[], Sequence[OwnedMesh]], history: History) -> None:
        self._owned_meshes = owned_meshes
        self._history = history
        self._hosts: dict[str, str] = {}  # by node, because dead processes report it no more

    def __call__(self) -> list[MeshReading]:
        owned_meshes = self._owned_meshes()
        before = self._hosts
        self._hosts = {
            node: host
            for owned_mesh in owned_meshes
            for node in owned_mesh.ranks
            if (host := before.get(node) or getattr(self._history.detail(node), "host", ""))
        }
        return [reading for owned_mesh in owned_meshes if (reading := self._read(owned_mesh)).ranks]

    def _read(self, owned_mesh: OwnedMesh) -> MeshReading:
        """Read the ranks that have been measured: one that is still starting is neither up nor down."""
        hosts = self._hosts
        ranks = sorted((rank, node) for node, rank in owned_mesh.ranks.items() if node in hosts)
        failed = set(owned_mesh.failed)
        return MeshReading(
            owned_mesh.name,
            [rank for rank, _ in ranks],
            [hosts[node] for _, node in ranks],
            [rank not in failed for rank, _ in ranks],
            self._history.vitals(tuple(node for _, node in ranks)),
        )


class MetricsExport:
    """The exports of a session; `close` ends all of them."""

    def __init__(self, read: Read, run: str, logged: ReadLogged = tuple) -> None:
        self._read = read
        self._logged = logged
        self._run = run
        self._sendings = 0
        self._lock = threading.Lock()  # guards the two exports
        self._prometheus: PrometheusEndpoint | None = None
        self._opentelemetry: OpenTelemetryExport | None = None

    def serve(self, port: int) -> str:
        """Let Prometheus scrape at this port of the loopback interface; return the URL. MetricsError on failure."""
        from meshbook.runtime.telemetry.exporters.prometheus import PrometheusEndpoint

        with self._lock:
            if self._prometheus is not None:
                raise MetricsError(f"metrics are already served at {self._prometheus.url}{_OFF}")
            self._prometheus = PrometheusEndpoint(self._read, port, logged=self._logged)
            return self._prometheus.url

    def send(self, provider: Any = None) -> str:
        """Let OpenTelemetry export; return the target. MetricsError on failure."""
        from meshbook.runtime.telemetry.exporters.opentelemetry import OpenTelemetryExport

        with self._lock:
            if self._opentelemetry is not None:
                raise MetricsError(f"metrics are already exported to {self._opentelemetry.target}{_OFF}")
            # A provider makes no gauge twice, so each time uses another meter.
            self._sendings += 1
            self._opentelemetry = OpenTelemetryExport(
                self._read, provider, f"{self._run}.{self._sendings}", logged=self._logged
            )
            return self._opentelemetry.target

    def status(self) -> list[str]:
        """Return the exports that are on, a line for each."""
        with self._lock:
            prometheus = [f"Prometheus: {self._prometheus.url}"] if self._prometheus is not None else []
            return prometheus + (
                [f"OpenTelemetry: {self._opentelemetry.target}"] if self._opentelemetry is not None else []
            )

    def close(self) -> None:
        """End all exports. Idempotent."""
        with self._lock:
            ending = (self._prometheus, self._opentelemetry)
            self._prometheus = self._opentelemetry = None
        for export in ending:
            if export is not None:
                export.close()


def export_of(session: Session) -> MetricsExport:
    """Return the exports of this session: none yet, unless its settings turn one on."""
    own = session.node.address.node

    def owned_meshes() -> list[OwnedMesh]:
        return [owned_mesh for owned_mesh in session.node.ledger.processes() if own not in owned_mesh.ranks]

    def logged() -> list[LoggedValue]:
        return [LoggedValue(*last) for last in session.curves.last_values()]

    export = MetricsExport(Readings(owned_meshes, session.history), session.run, logged)
    if session.settings.prometheus_port:
        try:
            export.serve(session.settings.prometheus_port)
        except MetricsError as error:  # not fatal for the session
            logger.warning("MESHBOOK_PROMETHEUS_PORT is set, but %s", error)
    return export
