"""The actions of a dashboard's buttons: those of `%mesh`, on a separate thread, also while cells run."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from meshbook.magics.dashboard.notebook_source import NotebookSource, blocks_notebook, cell_of, jobs_on
from meshbook.magics.errors import MeshError
from meshbook.magics.meshes import lifecycle
from meshbook.magics.meshes.registry import NotebookMesh
from meshbook.magics.meshes.stacks import group_stacks, place_of, take_stacks, title_of
from meshbook.magics.meshes.whereabouts import count_ranks
from meshbook.magics.output.publisher import Publication
from meshbook.magics.tracing.profiler import ProfileTarget, make_profile_run, profile_for, slice_of
from meshbook.runtime.cells.interrupts import interrupt_group
from meshbook.runtime.formats import name_ranks
from meshbook.runtime.mesh.actors import current_node
from meshbook.runtime.mesh.host_ownership import when_ended
from meshbook.widgets.protocol import ACTIONS, Action
from meshbook.widgets.source import BackendReply, StackGroup, Stacks

PROFILE_SECONDS: Final = 3.0
SENDER: Final = "the dashboard"  # the sender in the errors of cells whose ranks the dashboard ends
WHOLE_MESH: Final = ("", "all")  # selectors that mean the whole mesh and its cell, not ranks that the user selected


if TYPE_CHECKING:  # circular: it has the dashboards
    from meshbook.magics.notebook import Notebook


class DashboardActions:
    """The actions of one dashboard. Raises `UserError` or a runtime error if an action fails."""

    def __init__(self, notebook: Notebook, source: NotebookSource) -> None:
        self._notebook = notebook
        self._source = source

    def do(self, action: str, mesh: NotebookMesh, selector: str, cell: int | None = None) -> BackendReply:
        """Run the action on the ranks of the selector; the reply reports what was done.

        `cell` is the cell that ran when the user clicked, None if unknown. No other cell is interrupted.
        """
        known = next((each for each in ACTIONS if each == action), None)
        if known is None:
            raise ValueError(f"unknown dashboard action {action!r}; the actions are {', '.join(ACTIONS)}")
        ranks = list(mesh.resolve(selector or "all"))
        present = cell_of(self._notebook, mesh)
        if known == "interrupt" and cell is not None and (present is None or cell != present.number):
            return BackendReply({"text": f"cell {cell} had already ended; nothing was interrupted"})
        if known == "interrupt" and selector in WHOLE_MESH:
            return BackendReply({"text": self._interrupt_cell(mesh, ranks)})
        if known == "profile":
            return self._profile(mesh, ranks)
        return BackendReply({"text": self._change(known, mesh, ranks)})

    def _change(self, action: Action, mesh: NotebookMesh, ranks: Sequence[int]) -> str:
        match action:
            case "interrupt":
                return _interrupt(mesh, ranks)
            case "kill":
                return kill(mesh, ranks)
            case "restart":
                return lifecycle.restart(mesh, ranks, SENDER)
            case "heal":
                return lifecycle.heal(mesh)
            case _:
                return self._take_stacks(mesh, ranks)

    # -- the actions ---------------------------------------------------------------

    def _interrupt_cell(self, mesh: NotebookMesh, ranks: Sequence[int]) -> str:
        """Interrupt like Ctrl-C, which escalates each time; if no cell blocks the notebook, interrupt the jobs."""
        if blocks_notebook(self._notebook, mesh):
            interrupt_group()
            return f"interrupted cell {self._notebook.cell_number}"
        runs = jobs_on(self._notebook, mesh)
        if jobs := [job for job in self._notebook.jobs if job.run in runs]:
            return f"interrupted {', '.join(job.title for job in jobs if job.cancel())}"
        return _interrupt(mesh, ranks)

    def _take_stacks(self, mesh: NotebookMesh, ranks: Sequence[int]) -> str:
        living = _living(mesh, ranks)
        found = lifecycle.wait_for(take_stacks(mesh, living))
        groups = [
            StackGroup(tuple(ranks), title_of(stack), tuple((place_of(frame), frame.source) for frame in stack.frames))
            for stack, ranks in group_stacks(found).items()
        ]
        self._source.stacks = Stacks(time.strftime("%H:%M:%S"), tuple(groups))
        return f"took the stacks of {count_ranks(living)}"

    def _profile(self, mesh: NotebookMesh, ranks: Sequence[int]) -> BackendReply:
        living = _living(mesh, ranks)
        target = ProfileTarget(mesh.name, living, _DiscardingPublisher())
        run = make_profile_run(mesh, living, torch=False)
        profile = lifecycle.wait_for(profile_for(run, PROFILE_SECONDS, threading.Event(), target))
        self._notebook.profiling.last = profile
        text = f"profiled {count_ranks(living)} for {PROFILE_SECONDS:g} s; %mesh profile --save FILE saves the profile"
        return BackendReply({"text": text, "html": profile.summary.html()})


def _interrupt(mesh: NotebookMesh, ranks: Sequence[int]) -> str:
    """Interrupt the cells of these ranks.

    If ranks that a cell ended without stay stuck, also break the process groups: they may ignore interrupts.
    """
    stuck = mesh.stuck.intersection(ranks)
    said = lifecycle.interrupt(mesh, ranks)
    return lifecycle.break_groups(mesh, sorted(stuck)) if mesh.stuck & stuck else said


def kill(mesh: NotebookMesh, ranks: Sequence[int]) -> str:
    """Kill these ranks without restarting them."""
    living = _living(mesh, ranks)
    procs = slice_of(mesh, living)
    ended = when_ended(current_node(), [address.node for address in procs.nodes])
    procs.kill(sender=SENDER)
    try:
        ended.get(timeout=lifecycle.DEATH_WITHIN)
    except TimeoutError:
        raise MeshError(
            f"{name_ranks(living)} of {mesh.name} did not exit within {lifecycle.DEATH_WITHIN:g} s of a kill"
        )
    return f"killed {count_ranks(living)}; restart them with Heal"


def _living(mesh: NotebookMesh, ranks: Sequence[int]) -> list[int]:
    """Return the ranks that are not dead. Raises MeshError if none is left."""
    if living := [rank for rank in ranks if rank not in mesh.dead]:
        return living
    raise MeshError(f"{name_ranks(ranks)} of {mesh.name}: already dead; restart dead ranks with Heal")


class _DiscardingPublisher:
    """A publisher that discards: the dashboard shows the profile, and no cell does."""

    updates = False

    def publish(self, publications: Sequence[Publication]) -> None:
        """Discard the publications."""
