"""`%mesh use`: choose the current mesh."""

from __future__ import annotations

from dataclasses import dataclass

from meshbook.magics.notebook import Notebook
from meshbook.magics.syntax.argparsing import Parser, mesh_name
from meshbook.magics.verbs.base import Verb


@dataclass(frozen=True)
class UseVerb(Verb):
    """Make this mesh the default of cells and verbs that name none."""

    word = "use"
    description = "Choose the current mesh, the default of cells and verbs."

    name: str

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        parser.add_argument("name", metavar="NAME", type=mesh_name, help="mesh to choose")

    def run(self, notebook: Notebook) -> None:
        print(f"{notebook.meshes.use(self.name).describe()}; the current mesh")
