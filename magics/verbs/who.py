"""`%mesh who` and `whos`: list the variables on ranks, by name or as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshbook.magics.notebook import Notebook
from meshbook.magics.syntax.argparsing import Parser
from meshbook.magics.variables import operations
from meshbook.magics.variables.listing import format_names, format_table
from meshbook.magics.variables.requests import as_usage_errors, run_steps
from meshbook.magics.verbs.base import Verb, add_selection
from meshbook.runtime.cells.inventory import Entry


@dataclass(frozen=True)
class WhoVerb(Verb):
    """List the variables of these ranks."""

    word = "who"
    description = "List the names of the variables of ranks, grouped by rank."

    selection: str = "all"

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        add_selection(parser)

    def run(self, notebook: Notebook) -> None:
        with as_usage_errors():
            print(self._render(run_steps(operations.inventory(*notebook.ranks_of(self.selection)))))

    def _render(self, by_rank: Mapping[int, Sequence[Entry]]) -> str:
        return format_names(by_rank)


@dataclass(frozen=True)
class WhosVerb(WhoVerb):
    """List the variables of these ranks, with their types and values."""

    word = "whos"
    description = "List the variables of ranks with type, size in memory and value; equal values are shown once."

    def _render(self, by_rank: Mapping[int, Sequence[Entry]]) -> str:
        return format_table(by_rank)
