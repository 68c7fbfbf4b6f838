"""`%mesh interrupt`, `stack` and `debug`: interrupt ranks, show their stacks, debug their errors after the cell."""

from __future__ import annotations

from dataclasses import dataclass

from meshbook.magics.cells.cell import PreparedCell
from meshbook.magics.cells.rank_errors import check_able
from meshbook.magics.errors import MeshError
from meshbook.magics.meshes import lifecycle
from meshbook.magics.meshes.registry import NotebookMesh
from meshbook.magics.meshes.stacks import render_stacks, take_stacks
from meshbook.magics.notebook import Notebook
from meshbook.magics.output.publisher import publisher_for
from meshbook.magics.prompts.broker import PromptPolicy
from meshbook.magics.prompts.keyboard import keyboard_for
from meshbook.magics.shell.cell_interrupts import interruptible
from meshbook.magics.syntax.argparsing import Parser, selector
from meshbook.magics.syntax.cell_options import CellOptions
from meshbook.magics.verbs import Verb, add_selection


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


SOURCE = "%debug"  # IPython's own command to debug its last error


def debug(notebook: Notebook, selector: str | None) -> None:
    """Open the debugger on these ranks, or on those that failed in the last cell, and wait until it is left.

    It does not change which ranks failed in the last cell. MeshError if no rank has an error.
    """
    mesh, ranks = notebook.meshes.ranks_of(selector) if selector is not None else _failed(notebook)
    region = mesh.procs.region.pick(ranks)
    check_able(mesh, region)
    keyboard = keyboard_for(notebook.shell)
    if keyboard.refusal:
        raise MeshError(f"the debugger needs a prompt: {keyboard.refusal}")
    last = mesh.last
    cell = PreparedCell(
        *(notebook.session(), mesh, region, CellOptions(on_error="finish"), publisher_for(notebook.shell)),
        number=notebook.cell_number,
        policy=PromptPolicy(keyboard, select=mesh.resolve),
    )
    running = notebook.background.start(cell, SOURCE, title="%mesh debug")
    try:
        with interruptible(running.interrupt):
            running.future.get()
    finally:
        mesh.last = last


def _failed(notebook: Notebook) -> tuple[NotebookMesh, list[int]]:
    mesh = notebook.meshes.get()
    if failed := sorted(mesh.last.failed - mesh.dead.keys()):
        return mesh, failed
    raise MeshError(
        f"no living rank of {mesh.name} failed in its last cell; to debug an earlier error, use %mesh debug SEL"
    )
