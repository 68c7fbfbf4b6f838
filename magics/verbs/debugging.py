"""`%mesh interrupt`, `stack` and `debug`: interrupt ranks, show their stacks, debug their errors."""

from __future__ import annotations

from dataclasses import dataclass

from meshbook.magics.meshes import lifecycle
from meshbook.magics.meshes.stacks import render_stacks, take_stacks
from meshbook.magics.notebook import Notebook
from meshbook.magics.prompts.post_mortem import debug
from meshbook.magics.syntax.argparsing import Parser, selector
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
        print(act(*notebook.meshes.ranks_of(self.selection)))


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
        mesh, ranks = notebook.meshes.ranks_of(self.selection)
        print(render_stacks(lifecycle.wait_for(take_stacks(mesh, ranks)), mesh.label))


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
