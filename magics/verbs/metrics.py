"""`%mesh metrics`: export vitals of ranks to Prometheus and OpenTelemetry."""

from __future__ import annotations

from dataclasses import dataclass

from meshbook.magics.errors import MeshError
from meshbook.magics.notebook import Notebook
from meshbook.magics.syntax.argparsing import Parser, port
from meshbook.magics.verbs.base import Verb
from meshbook.runtime.hosts.metrics import PORT
from meshbook.runtime.telemetry.exporters.readings import MetricsError


@dataclass(frozen=True)
class MetricsVerb(Verb):
    """Export to Prometheus (on a port) or OpenTelemetry, or stop exporting; by default show what is exported."""

    word = "metrics"
    description = (
        "Export metrics of the ranks to Prometheus or OpenTelemetry. The metrics are memory, CPU, GPUs, queues, step "
        "times, message rates and heartbeats, by mesh, rank and host. Nothing is exported unless you ask for it here, "
        "and the export ends with the session. Without options, shows the current exports. "
        "Needs pip install 'meshbook[metrics]'."
    )

    prometheus: int | None = None
    opentelemetry: bool = False
    off: bool = False

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        parser.add_argument(
            "--prometheus",
            metavar="PORT",
            nargs="?",
            type=port,
            const=PORT,
            help=f"serve Prometheus on this port of the loopback interface (default: {PORT}; 0: any free port)",
        )
        parser.add_argument(
            "--opentelemetry",
            action="store_true",
            help="export with the MeterProvider that the notebook has set, or with OTLP to OTEL_EXPORTER_OTLP_ENDPOINT",
        )
        parser.add_argument("--off", action="store_true", help="stop all exports")

    def run(self, notebook: Notebook) -> None:
        metrics = notebook.session().metrics
        if self.off:
            metrics.close()
        try:
            if self.prometheus is not None:
                metrics.serve(self.prometheus)
            if self.opentelemetry:
                metrics.send()
        except MetricsError as error:
            raise MeshError(str(error)) from error
        print("\n".join(metrics.status()) or "no metrics are exported; see %mesh metrics --help")
