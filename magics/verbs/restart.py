"""`%mesh restart`: end ranks, even busy ones, and restart them."""

from __future__ import annotations

from dataclasses import dataclass

from meshbook.magics.meshes import lifecycle
from meshbook.magics.notebook import Notebook
from meshbook.magics.syntax.argparsing import Parser
from meshbook.magics.verbs.base import Verb, add_selection


@dataclass(frozen=True)
class RestartVerb(Verb):
    """End these ranks, even busy ones, and restart them."""

    word = "restart"
    description = "Kill ranks, even busy ones, and restart them."

    selection: str = "all"

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        add_selection(parser)

    def run(self, notebook: Notebook) -> None:
        print(lifecycle.restart(*notebook.ranks_of(self.selection)))
