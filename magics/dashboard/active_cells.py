"""The cells that run on a mesh, and the one that its dashboard shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshbook.magics.cells.execution import CellExecution
from meshbook.magics.meshes.registry import NotebookMesh
from meshbook.widgets.source import CellFacts

if TYPE_CHECKING:  # circular: it has the dashboards
    from meshbook.magics.notebook import Notebook


def runs_on(notebook: Notebook, mesh: NotebookMesh) -> list[CellExecution]:
    """Return the running cells that block the notebook, then the others."""
    beside = [running.run for running in list(notebook.background.running)]
    return [run for run in (*notebook.waits_for, *beside) if run.mesh is mesh]


def jobs_on(notebook: Notebook, mesh: NotebookMesh) -> list[CellExecution]:
    """Return the running jobs, which do not block the notebook."""
    jobs = {job.run for job in notebook.jobs if not job.done()}
    return [run for run in runs_on(notebook, mesh) if run in jobs]


def blocks_notebook(notebook: Notebook, mesh: NotebookMesh) -> bool:
    """Whether a cell runs that Ctrl-C would end, and that does not belong to another mesh."""
    if any(run.mesh is not mesh for run in notebook.waits_for):
        return False
    return notebook.cell_times.seconds > 0


def cell_of(notebook: Notebook, mesh: NotebookMesh) -> CellFacts | None:
    """Return the cell that blocks the notebook, or the first of the jobs."""
    jobs = jobs_on(notebook, mesh)
    for run in (*[run for run in runs_on(notebook, mesh) if run not in jobs], *jobs):
        return CellFacts(run.cell.number, run.title, run.seconds, tuple(run.ranks), run.waits_for, len(jobs))
    if not blocks_notebook(notebook, mesh):
        return None
    number = notebook.cell_number
    return CellFacts(number, f"cell {number}, in the notebook", notebook.cell_times.seconds, ())
