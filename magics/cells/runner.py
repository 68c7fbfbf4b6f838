"""Runs `%%mesh` cells: parses the line, selects the ranks, executes the cell and stores its result."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from meshbook.magics.cells.cell import PreparedCell
from meshbook.magics.cells.execution import CellExecution
from meshbook.magics.cells.jobs import Job, table_of
from meshbook.magics.cells.local import run_with_local
from meshbook.magics.cells.plan import CellPlanner
from meshbook.magics.cells.timing import CellTimer, parse_timer, time_often, time_once
from meshbook.magics.errors import CellError, UsageError
from meshbook.magics.meshes.lifecycle import wait_for
from meshbook.magics.notebook import Notebook
from meshbook.magics.output.publisher import Error
from meshbook.magics.results.result import MeshResult, ResultsByMesh
from meshbook.magics.shell.cell_interrupts import interruptible, run_interruptible
from meshbook.magics.syntax.argparsing import HelpText, quoted
from meshbook.magics.syntax.cell_options import CellOptions, parse_cell_options
from meshbook.magics.syntax.selectors import split_by_mesh
from meshbook.magics.tracing.profiler import ProfileRequest, ProfileTarget

T = TypeVar("T")


class CellRunner:
    """Runs the mesh cells of a notebook."""

    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook
        self._planner = CellPlanner(notebook)
        self._shown: Callable[[], MeshResult | None] = lambda: None  # the last result, if no option names it

    async def run(self, line: str, source: str, timer: str = "", *, by_mode: bool = False) -> Any:
        """Run a cell by its line and source (see `transform`).

        `timer` is a line above the cell: `%%time` or `%%timeit`. `by_mode`: the cell has no `%%mesh` line of its own.
        Returns the result if the cell has a value, or a job for a cell with `-a`; for several meshes a dict of results.
        """
        options = parse_cell_options(line, self._notebook.settings.of_cells)
        asked = parse_timer(timer) if timer else None
        if isinstance(asked, HelpText):
            print(asked.text)
            return None
        if isinstance(options, HelpText):
            print(options.text)
            return None
        if asked is not None:
            _check_timed(options, asked)
        selections = split_by_mesh(options.selection)
        await self._planner.bring_up_default(dataclasses.replace(options, selection=selections[0]))
        if len(selections) > 1:
            return await self._run_on_meshes(options, selections, source, is_timed=asked is not None)
        if asked is not None:
            return await self._run_timed(options, source, asked)
        cell = self._planner.plan(options, by_mode=by_mode)
        if not options.block:
            return self._keep(options, self._notebook.jobs.start(cell, source))
        return self._show(options, await self._complete(cell, self._run_profiled(cell, source)))

    async def _run_on_meshes(
        self, options: CellOptions, selections: Sequence[str], source: str, *, is_timed: bool
    ) -> ResultsByMesh | None:
        """Run a cell on several meshes at the same time, and wait for all; an error of one does not end the others."""
        if is_timed or not options.block or options.local or options.profile or options.pull:
            raise UsageError("%%mesh: several meshes cannot be combined with timers, -a, --local, --profile or --pull")
        each = [dataclasses.replace(options, selection=selection, out=None) for selection in selections]
        cells = [self._planner.plan(options) for options in each]
        if len({cell.mesh.name for cell in cells}) < len(cells):
            raise UsageError(f"%%mesh: a mesh is given twice in {options.selection}")
        runs = [self._notebook.background.start(cell, source) for cell in cells]

        def interrupt() -> None:
            for run in runs:
                run.interrupt()

        async def wait() -> None:
            await asyncio.wait([run.future.as_asyncio() for run in runs])

        await run_interruptible(wait(), interrupt)
        results, errors = ResultsByMesh(), list[CellError]()
        for cell, run in zip(cells, runs, strict=True):
            try:
                results[cell.mesh.name] = await self._complete(cell, run.future)
            except CellError as error:
                errors.append(error)
                if error.result is not None:
                    results[cell.mesh.name] = error.result
        self._keep(options, results)
        for other in errors[1:]:  # the cell raises the first
            cells[0].publisher.publish([Error(other.ename, other.evalue, tuple(other._render_traceback_()))])
        if errors:
            raise errors[0]
        return results if any(result.has_value for result in results.values()) else None

    async def _complete(self, cell: PreparedCell, ended: Awaitable[MeshResult]) -> MeshResult:
        """Wait for the end of a cell, then store its result under its name, set pulled variables and show its times."""
        try:
            result = self._keep(cell.options, await ended)
        except CellError as error:
            self._keep(cell.options, error.result)
            raise
        if cell.transfers is not None:
            await cell.transfers.complete(ask=input)
        if cell.options.time:
            cell.publisher.publish([table_of(result)])
        return result

    async def _run_timed(self, options: CellOptions, source: str, timer: CellTimer) -> Any:
        if not timer.repeats:
            cell = self._planner.plan(options)
            return _shown_value(await time_once(lambda: self._complete(cell, self._run_profiled(cell, source))))
        cell = self._planner.plan(dataclasses.replace(options, quiet=True, show=None))
        result = await time_often(functools.partial(_run_unseen, cell, source), timer)
        if timer.name is not None:
            self._notebook.shell.user_ns[timer.name] = result
        return result if timer.gives_result else None

    def run_line(self, line: str) -> MeshResult | None:
        """Run `SEL CODE` on ranks, in the middle of a cell, and wait. Return the result if the code has a value."""
        selection, _, code = line.strip().partition(" ")
        if not code.strip():
            raise UsageError(f"%on needs ranks and code, such as `%on 0 print(x)`, got {quoted(line)}")
        options = CellOptions(selection, **dict(self._notebook.settings.of_cells))
        return _shown_value(self._run_blocking(options, code.lstrip()))

    def run_within(self, line: str, source: str, timer: str = "") -> MeshResult | Job | None:
        """Run a mesh cell within another one, as below `%%capture` or `%%prun` and in `%run tour.ipynb`, and wait.

        No loop is free there that could await it.
        """
        options = parse_cell_options(line, self._notebook.settings.of_cells)
        if isinstance(options, HelpText):
            print(options.text)
            return None
        if timer or options.local or options.profile:
            word = timer.split()[0] if timer else "--local" if options.local else "--profile"
            raise UsageError(f"{word} cannot be used in a %%mesh cell within another cell; move it to a separate cell")
        if not options.block:
            self._bring_up(options)
            return self._keep(options, self._notebook.jobs.start(self._planner.plan(options), source))
        return self._show(options, self._run_blocking(options, source))

    def _show(self, options: CellOptions, result: MeshResult) -> MeshResult | None:
        """Return the result if it has a value. Without a name for it, it holds the large ones until the next cell."""
        if not result.has_value:
            return None
        if options.out is None:
            before, self._shown = self._shown(), weakref.ref(result)
            if before is not None:
                before.release_values()
        return result

    def _run_blocking(self, options: CellOptions, source: str) -> MeshResult:
        """Run it in the loop of the jobs, and wait on this thread."""
        self._bring_up(options)
        for stream in (sys.stdout, sys.stderr):  # earlier lines print before the ranks do
            stream.flush()
        cell = self._planner.plan(options, is_within=True)
        early = threading.Event()
        with interruptible(early.set):  # ranks may run before there is a cell to interrupt
            running = self._notebook.background.start(cell, source)
            with interruptible(running.interrupt):
                if early.is_set():
                    running.interrupt()
                running.future.exception()
        return wait_for(self._complete(cell, running.future))

    def _bring_up(self, options: CellOptions) -> None:
        if not len(self._notebook.meshes):
            wait_for(self._planner.bring_up_default(options))

    async def _run_profiled(self, cell: PreparedCell, source: str) -> MeshResult:
        """Run a cell, and profile the requested ranks."""
        profiling = self._notebook.profiling
        request = profiling.take_request(wanted=cell.options.profile)
        ranks = self._profiled(cell, request) if request is not None else []
        run = self._run(cell, source)
        if request is None or not ranks:
            return await run
        return await profiling.around(
            run, cell.mesh, request, ProfileTarget(f"cell {cell.number}", ranks, cell.publisher)
        )

    def _profiled(self, cell: PreparedCell, request: ProfileRequest) -> list[int]:
        ranks = list(cell.region.ranks())
        if request.selection is None:
            return ranks
        mesh, wanted = self._notebook.meshes.ranks_of(request.selection)
        return [rank for rank in ranks if mesh is cell.mesh and rank in wanted]

    async def _run(self, cell: PreparedCell, source: str) -> MeshResult:
        if not cell.options.local:
            return await self._wait_for(CellExecution(cell), source)
        running = self._notebook.background.start(cell, source)
        stops = cell.options.on_error == "stop"
        return await run_with_local(self._notebook.shell, running, source, number=cell.number, stops=stops)

    async def _wait_for(self, run: CellExecution, source: str) -> MeshResult:
        self._notebook.foreground_cells.append(run)
        try:
            return await run.run(source)
        finally:
            self._notebook.foreground_cells.remove(run)

    def _keep(self, options: CellOptions, value: T) -> T:
        if options.out:
            self._notebook.shell.user_ns[options.out] = value
        return value


def _check_timed(options: CellOptions, timer: CellTimer) -> None:
    """Raise UsageError for options that a timer does not support."""
    if not options.block:
        raise UsageError("%%mesh: -a and a timer cannot be combined, since a cell with -a returns at once")
    if timer.repeats and (options.push or options.pull or options.local):
        raise UsageError("%%timeit cannot be combined with --push, --pull or --local; use %%time")


def _shown_value(result: MeshResult) -> MeshResult | None:
    return result if result.has_value else None


async def _run_unseen(cell: PreparedCell, source: str) -> MeshResult:
    """Run a cell as one of many runs, and keep nothing of it."""
    run = CellExecution(cell)
    try:
        return await run.run(source)
    finally:
        cell.session.output.close(run.origin)
