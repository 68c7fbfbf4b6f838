"""An event loop on a thread of its own, for cells that the main thread does not wait for, or must run beside."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from meshbook.magics.cells.cell import CellProgress, PreparedCell
from meshbook.magics.cells.execution import CellExecution
from meshbook.magics.results.result import MeshResult
from meshbook.runtime.actor.future import Future

Then: TypeAlias = Callable[[PreparedCell], Awaitable[None]]


async def _nothing(cell: PreparedCell) -> None:
    """Do nothing after the cell."""


class BackgroundCell:
    """A cell that runs in the background loop. `future` has its result, or its exception."""

    def __init__(self, run: CellExecution, then: Then) -> None:
        self.run = run
        self._then = then
        self.future: Future[MeshResult] = Future.pending()
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._finish())

    def interrupt(self) -> None:
        """Interrupt it as Ctrl-C does a foreground cell; from any thread."""
        self._loop.call_soon_threadsafe(self.run.interrupt)

    async def _finish(self) -> None:
        try:
            result = await self.run.finish()
            await self._then(self.run.cell)
        except BaseException as error:  # any exception goes to the future
            self.future.fail(error)
        else:
            self.future.resolve(lambda: result)


class BackgroundLoop:
    """The background loop. It starts with the first cell, and lasts as long as the process."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self.running: list[BackgroundCell] = []  # those that have not ended

    def start(
        self,
        cell: PreparedCell,
        source: str,
        *,
        title: str = "",
        then: Then = _nothing,
        resumes: CellProgress | None = None,
    ) -> BackgroundCell:
        """Begin a cell, and return once it is sent: later messages arrive after it.

        `then` runs after a cell without an error, before the future resolves. With `resumes`, finish a cell that
        another notebook has begun.
        """

        async def begin() -> BackgroundCell:
            run = CellExecution(cell, title=title, resumes=resumes)
            run.begin(source)
            return BackgroundCell(run, then)

        running = asyncio.run_coroutine_threadsafe(begin(), self._running_loop()).result()
        self.running.append(running)
        running.future.when_done(lambda: self.running.remove(running))
        return running

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            thread = threading.Thread(target=self._loop.run_forever, name="meshbook jobs", daemon=True)
            thread.pydev_do_not_trace = True  # type: ignore[attr-defined]  # a breakpoint in the notebook stops no cell
            thread.start()
        return self._loop
