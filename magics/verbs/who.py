"""`%mesh who`: which variables there are on ranks."""

from __future__ import annotations

from dataclasses import dataclass

from meshbook.magics import variables
from meshbook.magics.exchange import carry_out, of_a_line
from meshbook.magics.notebook import Notebook
from meshbook.magics.parsing import Parser
from meshbook.magics.verbs.verb import Verb, add_selection
from meshbook.magics.whos import render_names


@dataclass(frozen=True)
class Who(Verb):
    """List the variables of these ranks."""

    word = "who"
    description = "List the variables of ranks, those of the same ranks together."

    selection: str = "all"

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        add_selection(parser)

    def run(self, notebook: Notebook) -> None:
        with of_a_line():
            print(render_names(carry_out(variables.inventory(*notebook.ranks_of(self.selection)))))
