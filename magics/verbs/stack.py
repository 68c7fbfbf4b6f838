"""`%mesh stack`: show the stacks of ranks."""

from __future__ import annotations

from dataclasses import dataclass

from meshbook.magics.meshes import lifecycle
from meshbook.magics.meshes.stacks import render_stacks, take_stacks
from meshbook.magics.notebook import Notebook
from meshbook.magics.syntax.argparsing import Parser
from meshbook.magics.verbs.base import Verb, add_selection


@dataclass(frozen=True)
class StackVerb(Verb):
    """Show the stacks of these ranks."""

    word = "stack"
    description = "Show the stacks of ranks; equal stacks are shown once."

    selection: str = "all"

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        add_selection(parser)

    def run(self, notebook: Notebook) -> None:
        mesh, ranks = notebook.ranks_of(self.selection)
        print(render_stacks(lifecycle.wait_for(take_stacks(mesh, ranks)), mesh.label))
