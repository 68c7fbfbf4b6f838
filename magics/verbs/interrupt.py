"""`%mesh interrupt`: interrupt what ranks run, or end what hears nothing."""

from __future__ import annotations

from dataclasses import dataclass

from meshbook.magics import changes
from meshbook.magics.notebook import Notebook
from meshbook.magics.parsing import Parser
from meshbook.magics.verbs.verb import Verb, add_selection


@dataclass(frozen=True)
class Interrupt(Verb):
    """Interrupt what these ranks run; `kill` ends those that are busy, and starts them again."""

    word = "interrupt"
    description = "Interrupt what ranks run; also while a cell waits for them."

    selection: str = "all"
    kill: bool = False

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        add_selection(parser)
        parser.add_argument("--kill", action="store_true", help="end those that are busy, and start them again")

    def run(self, notebook: Notebook) -> None:
        act = changes.kill_busy if self.kill else changes.interrupt
        print(act(*notebook.ranks_of(self.selection)))
