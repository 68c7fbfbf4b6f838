"""`%mesh diff`: show how a variable differs between ranks."""

from __future__ import annotations

from dataclasses import dataclass

from meshbook.magics.notebook import Notebook
from meshbook.magics.syntax.argparsing import Parser, remote_variable
from meshbook.magics.variables.compare import compare
from meshbook.magics.variables.requests import as_usage_errors, run_steps
from meshbook.magics.verbs.base import Verb, add_selection


@dataclass(frozen=True)
class DiffVerb(Verb):
    """Show how a variable differs between these ranks."""

    word = "diff"
    description = (
        "Show in which parts a variable differs between ranks, which ranks agree, and how far numbers are apart. "
        "Equal parts are not transferred."
    )

    name: str
    selection: str = "all"

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        parser.add_argument(
            "name", metavar="NAME", type=remote_variable, help="variable of the ranks: a tensor, a model, …"
        )
        add_selection(parser)

    def run(self, notebook: Notebook) -> None:
        with as_usage_errors():
            print(run_steps(compare(*notebook.ranks_of(self.selection), self.name)))
