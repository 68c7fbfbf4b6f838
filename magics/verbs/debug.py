"""`%mesh debug`: open the debugger where ranks failed."""

from __future__ import annotations

from dataclasses import dataclass

from meshbook.magics.notebook import Notebook
from meshbook.magics.prompts.post_mortem import debug
from meshbook.magics.syntax.argparsing import Parser, selector
from meshbook.magics.verbs.base import Verb


@dataclass(frozen=True)
class DebugVerb(Verb):
    """Open the debugger where these ranks raised their last error."""

    word = "debug"
    description = "Open the debugger where ranks failed. `help` at its prompt explains how to address ranks."

    selection: str | None = None

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        parser.add_argument(
            "selection",
            metavar="SEL",
            nargs="?",
            type=selector,
            help="ranks to debug, each at its last error (default: the ranks that failed in the last cell)",
        )

    def run(self, notebook: Notebook) -> None:
        debug(notebook, self.selection)
