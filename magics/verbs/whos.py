"""`%mesh whos`: the variables of ranks as a table."""

from __future__ import annotations

from dataclasses import dataclass

from meshbook.magics import variables
from meshbook.magics.exchange import carry_out, of_a_line
from meshbook.magics.notebook import Notebook
from meshbook.magics.parsing import Parser
from meshbook.magics.verbs.verb import Verb, add_selection
from meshbook.magics.whos import render_table


@dataclass(frozen=True)
class Whos(Verb):
    """List the variables of these ranks, with what they are."""

    word = "whos"
    description = "List the variables of ranks with type, size in memory and value; values that are the same once."

    selection: str = "all"

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        add_selection(parser)

    def run(self, notebook: Notebook) -> None:
        with of_a_line():
            print(render_table(carry_out(variables.inventory(*notebook.ranks_of(self.selection)))))
