"""From the options of a mesh cell to the cell: its mesh, its ranks, its transfers, and how its prompts are answered."""

from __future__ import annotations

import asyncio
import threading
import time

from meshbook.magics.cells.cell import PreparedCell
from meshbook.magics.cells.detach import print_detached_runs
from meshbook.magics.cells.push_pull import CellTransfers
from meshbook.magics.cells.rank_errors import check_able
from meshbook.magics.errors import MeshError, UsageError
from meshbook.magics.meshes.registry import DEFAULT_NAME, NotebookMesh, default_extent, format_up
from meshbook.magics.notebook import Notebook
from meshbook.magics.output.model import OutputLimits
from meshbook.magics.output.publisher import publisher_for
from meshbook.magics.prompts.broker import PromptPolicy
from meshbook.magics.prompts.keyboard import Keyboard, NoKeyboard, keyboard_for
from meshbook.magics.shell.cell_interrupts import run_interruptible
from meshbook.magics.syntax.cell_options import CellOptions
from meshbook.magics.syntax.selectors import LastCell, parse, resolve
from meshbook.magics.variables.requests import as_usage_errors
from meshbook.runtime.geometry import Region
from meshbook.runtime.resources import count_gpus


class CellPlanner:
    """Plans the cells of a notebook. UserError if their options cannot be met."""

    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook

    async def bring_up_default(self, options: CellOptions) -> None:
        """Start a mesh if none is up, and print that; a cell with a mistake in its line starts none."""
        if len(self._notebook.meshes):
            return
        if self._notebook.meshes.ended_idle:
            self._notebook.meshes.get()  # raises: a cell for other hosts must not run on this machine
        self._check(options, default_extent(count_gpus()).region)
        started = time.monotonic()
        interrupted = threading.Event()

        def look(ready: int, total: int) -> None:
            if interrupted.is_set():
                raise MeshError(f"interrupted when {ready} of {total} ranks were up; the mesh was stopped")

        mesh = await run_interruptible(asyncio.to_thread(self._notebook.meshes.up, progress=look), interrupted.set)
        self._notebook.bind(mesh)
        print(f"no mesh was up, so one was started: {format_up(mesh, started)}")
        print_detached_runs()

    def _check(self, options: CellOptions, region: Region) -> None:
        """Raise the error that `plan` would raise on a new mesh of this region."""

        def ranks_of(selector: str) -> frozenset[int]:
            parsed = parse(selector)
            regions = {DEFAULT_NAME: region} if parsed.mesh in (None, DEFAULT_NAME) else {}
            return frozenset(resolve(parsed, regions, DEFAULT_NAME, LastCell()).region.ranks())

        ranks = ranks_of(options.selection)
        for selector in filter(None, (options.show, options.breaks)):
            ranks_of(selector)
        if options.first is not None:
            _check_first(options.first, ranks_of(options.first), ranks)
        with as_usage_errors():
            self._notebook.values_of(options.push)

    def plan(self, options: CellOptions, *, by_mode: bool = False, is_within: bool = False) -> PreparedCell:
        """Return the cell that the options describe, on a mesh that can run it; `is_within`: within another cell."""
        session = self._notebook.session()
        mesh, selected = self._notebook.meshes.select(options.selection)
        check_able(mesh, selected.region)
        return PreparedCell(
            *(session, mesh, selected.region, options, publisher_for(self._notebook.shell, is_within=is_within)),
            number=self._notebook.cell_number,
            shown=self._ranks_of(options.show, mesh),
            first=self._first(options, mesh, selected.region),
            transfers=self._transfers(options, mesh, selected.region),
            limits=OutputLimits(plain_time=self._notebook.settings["plain_time"]),
            label=mesh.label,
            variables=self._notebook.shell.user_ns,
            by_mode=by_mode,
            policy=PromptPolicy(
                self._keyboard(options), options.stdin, self._ranks_of(options.breaks, mesh), mesh.resolve, mesh.label
            ),
        )

    def _keyboard(self, options: CellOptions) -> Keyboard:
        if not options.block:
            return NoKeyboard("a cell with -a has no prompt")
        if options.local:
            return NoKeyboard("in a cell with --local, only the code in the notebook has a prompt")
        return keyboard_for(self._notebook.shell)

    def _transfers(self, options: CellOptions, mesh: NotebookMesh, region: Region) -> CellTransfers | None:
        if not options.push and not options.pull:
            return None
        with as_usage_errors():
            pushed = self._notebook.values_of(options.push)
            return CellTransfers(
                *(mesh, region.ranks(), self._notebook.shell.user_ns, pushed, options.pull),
                in_turns=options.seq or options.first is not None,
            )

    def _ranks_of(self, selector: str | None, mesh: NotebookMesh) -> frozenset[int] | None:
        """Return ranks of the cell's own mesh, whichever mesh is the default."""
        return None if selector is None else frozenset(mesh.resolve(selector))

    def _first(self, options: CellOptions, mesh: NotebookMesh, region: Region) -> frozenset[int]:
        """Return the ranks of `--first`. UsageError if the cell does not run on all of them."""
        if options.first is None:
            return frozenset()
        ranks = frozenset(mesh.resolve(options.first))
        _check_first(options.first, ranks, frozenset(region.ranks()))
        return ranks


def _check_first(selector: str, first: frozenset[int], ranks: frozenset[int]) -> None:
    if not first <= ranks:
        raise UsageError(f"%%mesh: --first {selector} selects ranks that the cell does not run on")
