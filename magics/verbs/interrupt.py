"""`%mesh interrupt`: interrupt ranks, break process groups, or kill busy ranks."""

from __future__ import annotations

from dataclasses import dataclass

from meshbook.magics.meshes import lifecycle
from meshbook.magics.notebook import Notebook
from meshbook.magics.syntax.argparsing import Parser
from meshbook.magics.verbs.base import Verb, add_selection


@dataclass(frozen=True)
class InterruptVerb(Verb):
    """Interrupt what these ranks run.

    `breaks`: break the process groups of their mesh, for ranks that wait in a collective. `kill`: kill busy ranks, and
    restart them.
    """

    word = "interrupt"
    description = "Interrupt the code that ranks run, also while a cell waits for them."

    selection: str = "all"
    kill: bool = False
    breaks: bool = False

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        add_selection(parser)
        force = parser.add_mutually_exclusive_group()
        force.add_argument(
            "--break",
            dest="breaks",
            action="store_true",
            help="break the process groups of the mesh: frees ranks that are stuck in a collective; they keep their "
            "variables",
        )
        force.add_argument("--kill", action="store_true", help="kill the ranks that are busy, and restart them")

    def run(self, notebook: Notebook) -> None:
        act = lifecycle.kill_busy if self.kill else lifecycle.break_groups if self.breaks else lifecycle.interrupt
        print(act(*notebook.ranks_of(self.selection)))
