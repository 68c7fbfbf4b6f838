"""What a `%%mesh` cell becomes: its line is read, its ranks are chosen, and it is run."""

from __future__ import annotations

import asyncio
import threading
import time

from meshbook.magics.interruptible import run_interruptible
from meshbook.magics.losses import check_able
from meshbook.magics.meshes import MeshError, describe_up
from meshbook.magics.notebook import Notebook
from meshbook.magics.options import CellOptions, parse_cell_options
from meshbook.magics.parsing import HelpRequested
from meshbook.magics.publications import Display
from meshbook.magics.publisher import publisher_for
from meshbook.magics.results import MeshResult
from meshbook.magics.run import CellRun


class Cells:
    """Runs the mesh cells of a notebook."""

    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook

    async def run(self, line: str, source: str) -> MeshResult | None:
        """Run a cell by its line and source (see `transform`). Its value is the result, where the cell has one."""
        options = parse_cell_options(line)
        if isinstance(options, HelpRequested):
            print(options.text)
            return None
        session = self._notebook.session()
        if not len(self._notebook.meshes):
            await self._bring_up_default()
        mesh, selected = self._notebook.select(options.selection)
        check_able(mesh, selected.region)
        publisher = publisher_for(self._notebook.shell)
        run = CellRun(
            *(session, mesh, selected.region, options, self._shown(options), publisher),
            number=self._notebook.cell_number,
        )
        result = await run.run(source)
        if options.out:
            self._notebook.shell.user_ns[options.out] = result
        if options.time:
            publisher.publish([Display({"text/plain": repr(result.cost), "text/html": result.cost._repr_html_()}, {})])
        return result if result.has_value else None

    def _shown(self, options: CellOptions) -> frozenset[int] | None:
        return None if options.show is None else frozenset(self._notebook.select(options.show)[1].region.ranks())

    async def _bring_up_default(self) -> None:
        started = time.monotonic()
        interrupted = threading.Event()

        def look(ready: int, total: int) -> None:
            if interrupted.is_set():
                raise MeshError(f"interrupted when {ready} of {total} ranks were up, and so no mesh is")

        mesh = await run_interruptible(asyncio.to_thread(self._notebook.meshes.up, progress=look), interrupted.set)
        self._notebook.bind(mesh)
        print(f"no mesh was up, so one was started: {describe_up(mesh, started)}")
