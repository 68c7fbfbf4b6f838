"""Post-mortem after the cell: the debugger on ranks, at their last errors."""

from __future__ import annotations

from meshbook.magics.cells.cell import PreparedCell
from meshbook.magics.cells.rank_errors import check_able
from meshbook.magics.errors import MeshError
from meshbook.magics.meshes.registry import NotebookMesh
from meshbook.magics.notebook import Notebook
from meshbook.magics.output.publisher import publisher_for
from meshbook.magics.prompts.broker import PromptPolicy
from meshbook.magics.prompts.keyboard import keyboard_for
from meshbook.magics.shell.interrupts import interruptible
from meshbook.magics.syntax.cell_options import CellOptions

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
