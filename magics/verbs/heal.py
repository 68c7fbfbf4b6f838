"""`%mesh heal`: restart dead ranks."""

from __future__ import annotations

from dataclasses import dataclass

from meshbook.magics.meshes import lifecycle
from meshbook.magics.notebook import Notebook
from meshbook.magics.syntax.argparsing import Parser
from meshbook.magics.verbs.base import Verb, add_mesh_name


@dataclass(frozen=True)
class HealVerb(Verb):
    """Restart the dead ranks of a mesh (None: the current mesh)."""

    word = "heal"
    description = "Restart the dead ranks of a mesh."

    name: str | None = None

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        add_mesh_name(parser, "mesh to heal (default: the current mesh)")

    def run(self, notebook: Notebook) -> None:
        print(lifecycle.heal(notebook.meshes.get(self.name)))
