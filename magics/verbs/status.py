"""`%mesh status`, `dash`, `metrics` and `doctor`: the state of meshes, ranks and the installation."""

from __future__ import annotations

from dataclasses import dataclass

from meshbook.magics.cells.detach import print_detached_runs
from meshbook.magics.doctor import CHECKS
from meshbook.magics.doctor.finding import examine, format_report
from meshbook.magics.errors import MeshError
from meshbook.magics.meshes.status import history_of, others_of, state_of, vitals_of
from meshbook.magics.notebook import Notebook
from meshbook.magics.output.publisher import Display, publisher_for
from meshbook.magics.syntax.argparsing import Parser, port
from meshbook.magics.verbs import Verb, add_mesh_name
from meshbook.runtime.hosts.metrics import PORT
from meshbook.runtime.hosts.session import running_session
from meshbook.runtime.telemetry.exporters.readings import MetricsError

START_HINT = "%mesh up --gpus 4 starts one, as does the first %%mesh cell"


@dataclass(frozen=True)
class StatusVerb(Verb):
    """Show the state of a mesh (`name` None: of all), and unless `brief` its vitals and its history."""

    word = "status"
    description = "Show the state, resources and recent events of the meshes."

    name: str | None = None
    brief: bool = False

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        add_mesh_name(parser, "show only this mesh")

    def run(self, notebook: Notebook) -> None:
        meshes, session = notebook.meshes, running_session()
        others = list(others_of(session, meshes, notebook.shell.user_ns)) if session is not None else []
        if not len(meshes):
            missing = "no mesh for cells" if others else "no mesh"
            print("\n".join([f"{missing} is up; {meshes.ended_idle or START_HINT}", *([] if self.name else others)]))
            print_detached_runs()
            return
        for mesh in [meshes.get(self.name)] if self.name else list(meshes):
            first, *lines = state_of(mesh, {run.title: run.seconds for run in notebook.runs_on(mesh)})
            mark = "; the current mesh" if mesh.label and mesh is meshes.get() else ""
            more = [] if self.brief else [*vitals_of(mesh), *history_of(mesh)]
            print("\n".join([f"{first}{mark}", *lines, *more]))
        if others and not self.name:
            print("\n".join(others))


@dataclass(frozen=True)
class DashVerb(Verb):
    """Show the dashboard of a mesh (None: the current mesh)."""

    word = "dash"
    description = (
        "Show the live dashboard of a mesh: its ranks by state or by a metric, their output and stacks, a timeline, "
        "and buttons that work while a cell runs. NAME.dashboard() returns it as an object."
    )

    name: str | None = None

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        add_mesh_name(parser, "mesh to show (default: the current mesh)")

    def run(self, notebook: Notebook) -> None:
        dashboard = notebook.dashboards.open(notebook.meshes.get(self.name).name)
        publisher_for(notebook.shell).publish([Display(*output) for output in dashboard.outputs()])


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


@dataclass(frozen=True)
class DoctorVerb(Verb):
    """Examine the installation and the machine, and name remedies."""

    word = "doctor"
    description = "Check the installation and the machine, and suggest fixes."

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        """Add no arguments."""

    def run(self, notebook: Notebook) -> None:
        notebook.session()
        print(format_report(examine(CHECKS)))
