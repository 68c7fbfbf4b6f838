"""`%mesh curves`: show or export the curves of metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from meshbook.magics.errors import MeshError, UsageError
from meshbook.magics.notebook import Notebook
from meshbook.magics.output.publisher import Display, publisher_for
from meshbook.magics.syntax.argparsing import Parser, mesh_name
from meshbook.magics.verbs import Verb
from meshbook.runtime.formats import format_bytes
from meshbook.runtime.hosts.session import Session
from meshbook.runtime.telemetry.points import HistoryError

TENSORBOARD = "tensorboard"  # the word before the folder of such an export


@dataclass(frozen=True)
class CurvesVerb(Verb):
    """Show the charts of these metrics (none: of all) of a mesh (None: the current one), or write them to files."""

    word = "curves"
    description = (
        "Show what ranks log by meshbook.log: a live chart of each metric, with the mean of the ranks, the band from "
        "the lowest to the highest, and the ranks that leave it by name. A saved notebook keeps a picture."
    )

    names: Sequence[str] = ()
    mesh: str | None = None
    export: Sequence[str] = ()

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        parser.add_argument(
            "names",
            metavar="METRIC",
            nargs="*",
            default=(),
            help="a metric, a group such as train, or a pattern such as *loss (default: all metrics)",
        )
        parser.add_argument(
            "--mesh",
            metavar="NAME",
            type=mesh_name,
            help="mesh to show (default: the current mesh) or to export (default: all meshes)",
        )
        parser.add_argument(
            "--export",
            metavar="FILE",
            nargs="+",
            default=(),
            help="write all points to a file (.parquet or .csv), or with `tensorboard DIR` to event files in a folder",
        )

    def run(self, notebook: Notebook) -> None:
        mesh = notebook.meshes.get(self.mesh)
        session = mesh.session
        session.node.points.flush(wait=True)
        session.curves.flush()
        if self.export:
            return self._export(session, None if self.mesh is None else mesh.procs.name)
        view = notebook.dashboards.open_curves(mesh.name, self.names)
        publisher_for(notebook.shell).publish([Display(*output) for output in view.outputs()])
        return None

    def _export(self, session: Session, mesh: str | None) -> None:
        from meshbook.widgets.curve_picture import match_metrics  # weight: numpy

        to_folder = self.export[0] == TENSORBOARD
        if len(self.export) != (2 if to_folder else 1):
            raise UsageError(
                f"%mesh curves: --export takes a file, or `{TENSORBOARD} DIR`, not {' '.join(self.export)!r}; "
                "write metrics before it"
            )
        chosen = match_metrics(session.curves.metrics(), self.names)
        path = Path(self.export[-1]).expanduser()
        try:
            # If no metric fits, the names themselves give the error.
            found = session.metric_history(chosen or self.names, mesh=mesh)
            count = found.write_tensorboard(path) if to_folder else found.write(path)
        except HistoryError as error:
            raise MeshError(str(error)) from error
        size = f" ({format_bytes(path.stat().st_size)})" if path.is_file() else ""
        print(f"wrote {count:,} points to {path}{size}")
