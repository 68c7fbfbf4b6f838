"""Cells that run beside others (`%%mesh -a`): a `Job` is the future of one, `Jobs` are those of a notebook.

They run beside the main thread (`background`), so a cell that blocks the main thread delays none of them, and may wait
for one. Execution and output are those of any cell (`execution`).
"""

from __future__ import annotations

import html
import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from typing import Any

from meshbook.magics.cells.background import BackgroundCell, BackgroundLoop
from meshbook.magics.cells.cell import CellProgress, PreparedCell
from meshbook.magics.cells.execution import CellExecution
from meshbook.magics.errors import CellDetached, CellError, JobError
from meshbook.magics.output.publisher import Display, Error, LiveDisplay, Publication, Publisher, publisher_for
from meshbook.magics.output.render import HEADER_STYLE
from meshbook.magics.results.result import MeshResult
from meshbook.magics.variables.operations import refuse_prompt

MOST_KEPT = 64  # ended jobs that are still listed; a reference to an older one stays valid
MOST_SHOWN = 16  # places in the notebook where the state of a job is kept up to date
HINT = "await it, or use .result() or .cancel(); %mesh jobs lists all jobs"


class Job:
    """A cell that runs on ranks while others run here: `await job`, `job.result()`, `job.done()`, `job.cancel()`.

    Its output and its errors appear in its own cell. As a future, its value is the cell's result, and waiting for it
    raises the exception of the cell.
    """

    def __init__(self, number: int, cell: PreparedCell, running: BackgroundCell) -> None:
        self.number = number
        self.cell = cell.number
        self.name = cell.options.out  # of the variable that holds it
        self.mesh = cell.mesh.name
        self._shows_time = cell.options.time
        self._publisher = cell.publisher
        self._running = running
        self._run = running.run
        self._future = running.future
        self._lock = threading.Lock()  # guards the places: it may be displayed while it ends
        self._places: list[Publisher] = []
        self._future.when_done(self._ended)

    # -- a future ------------------------------------------------------------------

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._future.done()

    def result(self, timeout: float | None = None) -> MeshResult:
        """Wait for its end (at most `timeout` seconds, else TimeoutError) and return the result of the cell.

        Raises the exception of the cell. Ctrl-C ends the wait, not the job.
        """
        try:
            return self._future.result(timeout)
        except TimeoutError:
            if self.done():
                raise
            raise TimeoutError(f"{self.title} has not ended within {timeout:g} s; it keeps running") from None

    get = result  # named as in our other futures

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for its end, with or without an error; False if it has not ended in `timeout` seconds."""
        try:
            self.exception(timeout)
        except TimeoutError:
            return self.done()
        return True

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for its end; return the exception of the cell, or None."""
        return self._future.exception(timeout)

    def cancel(self) -> bool:
        """Interrupt its ranks, as Ctrl-C does for a foreground cell; False if it has ended.

        The second call breaks their process groups; the third kills them.
        """
        if self.done():
            return False
        self._running.interrupt()
        return True

    def cancelled(self) -> bool:
        """Whether an interrupt ended it."""
        error = self.exception() if self.done() else None
        return isinstance(error, CellError) and error.is_interrupt

    def add_done_callback(self, callback: Callable[[Job], object]) -> None:
        """Call back with the job once it has ended, from its thread; at once if it has."""

        def call() -> None:
            callback(self)

        self._future.when_done(call)

    def __await__(self) -> Generator[Any, None, MeshResult]:
        # Cancelling the waiting task does not cancel the job.
        return (yield from self._future.__await__())

    @property
    def run(self) -> CellExecution:
        """The execution of the cell."""
        return self._run

    # -- display -------------------------------------------------------------------

    @property
    def title(self) -> str:
        """The title in messages: `job 7 of cell 12`."""
        return _title_of(self.number, self.cell)

    @property
    def output(self) -> list[Publication]:
        """The output in its cell, once it has ended: printed text, figures, the value or the error."""
        return [*self._run.final_output, *self.conclusion] if self.done() else []

    def __repr__(self) -> str:
        parts = [f"{self.title}: {self._run.headline}"]
        if not self.done():
            return " · ".join(filter(None, [*parts, self._run.waits_for, self._run.whereabouts]))
        if (error := self.exception()) is not None and not isinstance(error, CellDetached):
            parts.append(str(error).partition("\n")[0] or type(error).__name__)
        return " · ".join(parts)

    @property
    def bundle(self) -> dict[str, str]:
        """Its state as a MIME bundle for front ends."""
        text = repr(self) if self.done() else f"{self!r}  ({HINT})"
        return {"text/plain": text, "text/html": f'<div style="{HEADER_STYLE}">{html.escape(text)}</div>'}

    def _ipython_display_(self) -> None:
        """Show its state here, and once more in the same place when it has ended."""
        from IPython.core.getipython import get_ipython  # displaying code runs in IPython

        place = publisher_for(get_ipython())
        with self._lock:
            place.publish([LiveDisplay(self.bundle, update=False, is_final=True)])
            if not self.done():
                self._places = [*self._places, place][-MOST_SHOWN:]

    @property
    def conclusion(self) -> list[Publication]:
        """The end of a cell with `-a`: its value or its error, as for any cell."""
        if isinstance(error := self.exception(), CellDetached):
            return []  # its state shows that
        if error is not None:
            render = getattr(error, "_render_traceback_", lambda: [f"{type(error).__name__}: {error}"])
            return [Error(type(error).__name__, str(error), tuple(render()))]
        result = self.result()
        shown: list[Publication] = [table_of(result)] if self._shows_time else []
        return [*shown, Display(result._repr_mimebundle_(), {})] if result.has_value else shown

    def _ended(self) -> None:
        with self._lock:
            places, self._places = self._places, []
        for place in places:
            place.publish([LiveDisplay(self.bundle, update=True, is_final=True)])
        self._publisher.publish(self.conclusion)


def table_of(result: MeshResult) -> Display:
    """Return the table that `-T` shows."""
    return Display({"text/plain": repr(result.cost), "text/html": result.cost._repr_html_()}, {})


class Jobs:
    """The jobs of a notebook, by number, from 1."""

    def __init__(self, background: BackgroundLoop) -> None:
        self._background = background
        self._lock = threading.Lock()  # guards the jobs: any thread may list them
        self._jobs: OrderedDict[int, Job] = OrderedDict()
        self._numbers = itertools.count(1)

    def __iter__(self) -> Iterator[Job]:
        with self._lock:
            return iter(list(self._jobs.values()))

    def find(self, which: str | None = None) -> Job:
        """Return a job by its number or variable name; the last one for None."""
        jobs = list(self)
        if not jobs:
            raise JobError("no job has been started; start a cell as a job with %%mesh -a")
        if which is None:
            return jobs[-1]
        for job in reversed(jobs):
            if which in (str(job.number), job.name):
                return job
        known = ", ".join(f"{job.number} ({job.name})" if job.name else str(job.number) for job in jobs)
        raise JobError(f"no job {which!r}; jobs: {known}")

    def start(self, cell: PreparedCell, source: str) -> Job:
        """Begin a cell, and return once it is sent: later messages arrive after it."""
        return self._start(next(self._numbers), cell, source)

    def resume(self, number: int, cell: PreparedCell, progress: CellProgress) -> Job:
        """Finish a cell that another notebook has begun, as the job of this number."""
        known = [job.number for job in self]
        number = max(known) + 1 if number in known else number
        self._numbers = itertools.count(max([number, *known]) + 1)
        return self._start(number, cell, progress.source, progress)

    def _start(self, number: int, cell: PreparedCell, source: str, resumes: CellProgress | None = None) -> Job:
        title = _title_of(number, cell.number)
        running = self._background.start(cell, source, title=title, then=_fetch, resumes=resumes)
        with self._lock:
            job = self._jobs[number] = Job(number, cell, running)
            ended = [number for number, job in self._jobs.items() if job.done()]
            for old in ended[:-MOST_KEPT]:
                del self._jobs[old]
        return job


def _title_of(number: int, cell: int) -> str:
    return f"job {number} of cell {cell}"


async def _fetch(cell: PreparedCell) -> None:
    """Complete `--pull`. It cannot ask whether a variable may be large."""
    if cell.transfers is not None:
        await cell.transfers.complete(ask=refuse_prompt)
