"""`%mesh dash`: show the live dashboard of a mesh."""

from __future__ import annotations

from dataclasses import dataclass

from meshbook.magics.notebook import Notebook
from meshbook.magics.output.messages import Display
from meshbook.magics.output.publisher import publisher_for
from meshbook.magics.syntax.argparsing import Parser
from meshbook.magics.verbs.base import Verb, add_mesh_name


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
