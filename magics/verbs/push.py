"""`%mesh push`: set variables of the notebook's on ranks."""

from __future__ import annotations

from dataclasses import dataclass

from meshbook.magics import variables
from meshbook.magics.exchange import carry_out, of_a_line
from meshbook.magics.notebook import Notebook
from meshbook.magics.parsing import Parser
from meshbook.magics.verbs.verb import Verb, add_selection
from meshbook.magics.wanted import pushed


@dataclass(frozen=True)
class PushVerb(Verb):
    """Set these variables on ranks, to what they are in the notebook."""

    word = "push"
    description = "Set variables on ranks to what they are in the notebook."

    names: tuple[str, ...]
    selection: str = "all"

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        parser.add_argument("names", metavar="NAMES", type=pushed, help="variables of the notebook, a,b,c")
        add_selection(parser)

    def run(self, notebook: Notebook) -> None:
        with of_a_line():
            values = notebook.values_of(self.names)
            carry_out(variables.push(*notebook.ranks_of(self.selection), values))
