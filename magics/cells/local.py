"""`%%mesh --local`: the cell also runs in the notebook's own namespace, beside the ranks; labelled `[local]`.

Its code has the main thread and Ctrl-C, as in any cell. Meanwhile another thread watches the ranks (`background`).
"""

from __future__ import annotations

import asyncio
import io
import re
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from typing import Any, TextIO

from meshbook.magics.cells.background import BackgroundCell
from meshbook.magics.errors import CellError, LocalError
from meshbook.magics.results.result import MeshResult
from meshbook.magics.shell.cell_interrupts import CodeInterrupts, interruptible, run_interruptible
from meshbook.runtime.cells.shell import INCOMPLETE, ends_in_semicolon
from meshbook.runtime.errors import MeshbookError
from meshbook.runtime.telemetry.spool import Spool

LABEL = "[local] "
KEY = "local"
_OPTION_LINE = re.compile(r"^# ?mesh:.*$", re.MULTILINE)


@dataclass
class LocalResult:
    """The outcome of the cell in the notebook: its value, its error as IPython shows it, its output."""

    value: Any = None
    error: BaseException | None = None
    traceback: tuple[str, ...] = ()
    texts: dict[str, Spool] = field(default_factory=lambda: {"stdout": Spool(), "stderr": Spool()})

    @property
    def stdout(self) -> str:
        """Its standard output."""
        return self.texts["stdout"].read()

    @property
    def stderr(self) -> str:
        """Its standard error."""
        return self.texts["stderr"].read()

    @property
    def bundle(self) -> Mapping[str, Any]:
        """The value as IPython displays it."""
        from IPython.core.getipython import get_ipython  # displaying code runs in IPython

        data, _ = get_ipython().display_formatter.format(self.value)
        return data or {"text/plain": repr(self.value)}


class ResultWithLocal(MeshResult):
    """The result of a cell that ran in the notebook as well; `result["local"]` is the outcome there."""

    def __init__(self, result: MeshResult, local: LocalResult) -> None:
        super().__init__(result.region, result._outcomes, result._sources)
        self.local = local

    @property
    def has_value(self) -> bool:
        """Whether the cell ended in an expression that was not None, here or on a rank."""
        return self.local.value is not None or super().has_value

    def __getitem__(self, wanted: Any) -> Any:
        """The result of a rank, or of several; or `"local"`."""
        if isinstance(wanted, str):
            return {KEY: self.local}[wanted]
        return super().__getitem__(wanted)

    def __repr__(self) -> str:
        here = "" if self.local.value is None else f"{_labelled(str(self.local.bundle['text/plain']))}\n"
        return here + super().__repr__()

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        return super()._repr_mimebundle_() | {"text/plain": repr(self)}


async def run_with_local(
    shell: Any, running: BackgroundCell, source: str, *, number: int, stops: bool
) -> ResultWithLocal:
    """Run the source here, beside the ranks, and wait for both.

    Raises a LocalError if it failed here, else the error of the ranks. `stops`: whether an error here interrupts the
    ranks.
    """
    local = await _run_here(shell, source, number, running.interrupt)
    if local.error is not None and stops:
        running.interrupt()
    ranks = await run_interruptible(_end_of(running), running.interrupt)
    if local.error is not None:
        raise _error_here(local, local.error, ranks if isinstance(ranks, CellError) else None)
    if isinstance(ranks, BaseException):
        raise ranks
    return ResultWithLocal(ranks, local)


def _error_here(local: LocalResult, error: BaseException, ranks: CellError | None) -> LocalError:
    named: type[LocalError] = type(type(error).__name__, (LocalError,), {"__module__": __name__})
    return named(
        error,
        headline=f"{LABEL}{type(error).__name__}: {error}".removesuffix(": "),
        traceback=local.traceback,
        ranks=ranks,
        result=None if ranks is None or ranks.result is None else ResultWithLocal(ranks.result, local),
    )


async def _end_of(running: BackgroundCell) -> MeshResult | BaseException:
    try:
        return await running.future
    except MeshbookError as error:
        return error


async def _run_here(shell: Any, source: str, number: int, interrupt: Callable[[], object]) -> LocalResult:
    """Run the source as IPython runs a cell, but keep what it would show."""
    local = LocalResult()
    body = _OPTION_LINE.sub("#", source, count=1)
    with ExitStack() as stack:
        stack.enter_context(_captured_display(shell, local, number))
        stack.enter_context(_exact_syntax_errors(shell.compile))
        stack.enter_context(redirect_stdout(_Labelled(sys.stdout, local.texts["stdout"])))
        stack.enter_context(redirect_stderr(_Labelled(sys.stderr, local.texts["stderr"])))
        cell = asyncio.ensure_future(_begin(shell, body))
        with _interrupting(shell, cell, interrupt):
            await asyncio.wait([cell])
        ran = cell.result()
        shell.events.trigger("post_execute")
        shell.events.trigger("post_run_cell", ran)
    if ends_in_semicolon(source):
        local.value = None
    local.error = ran.error_before_exec or ran.error_in_exec
    return local


def _begin(shell: Any, body: str) -> Coroutine[Any, Any, Any]:
    """A body that is neither Python nor IPython syntax is an error of the cell."""
    trouble = None
    try:
        body = shell.transform_cell(body)
    except Exception:
        trouble = sys.exc_info()
    coroutine: Coroutine[Any, Any, Any] = shell.run_cell_async(
        body, transformed_cell=body, preprocessing_exc_tuple=trouble
    )
    return coroutine


@contextmanager
def _captured_display(shell: Any, local: LocalResult, number: int) -> Iterator[None]:
    """Keep the value and the traceback that IPython would show, and restore the state of the outer cell.

    IPython passes values to the display hook, and tracebacks to a method of the shell. Tracebacks name the cell by the
    shell's counter, which already has the next number.
    """
    hook, count, outer = sys.displayhook, shell.execution_count, shell.displayhook.exec_result

    def keep_value(value: Any) -> None:
        local.value = value

    def keep_traceback(etype: Any, evalue: Any, lines: list[str]) -> None:
        local.traceback = tuple(lines)

    sys.displayhook, shell.execution_count, shell._showtraceback = keep_value, number, keep_traceback
    try:
        yield
    finally:
        sys.displayhook, shell.execution_count, shell.displayhook.exec_result = hook, count, outer
        del shell._showtraceback


@contextmanager
def _exact_syntax_errors(compiler: Any) -> Iterator[None]:
    """Report the exact syntax error, as ranks do. From Python 3.13 on IPython only reports incomplete input."""
    flag = compiler.flags & INCOMPLETE
    compiler.flags &= ~INCOMPLETE
    try:
        yield
    finally:
        compiler.flags |= flag


@contextmanager
def _interrupting(shell: Any, cell: asyncio.Task[Any], interrupt: Callable[[], object]) -> Iterator[None]:
    """Interrupt the ranks and the code here on Ctrl-C.

    Running code gets a KeyboardInterrupt. Code that awaits is cancelled instead, since a KeyboardInterrupt would end
    the kernel's loop.
    """
    loop = asyncio.get_running_loop()
    code = CodeInterrupts(shell, outer=(_run_here.__code__, run_with_local.__code__))

    def cancel() -> None:
        code.is_early = False  # the loop runs, so the code awaits
        cell.cancel()

    def act() -> None:
        interrupt()
        code.interrupt(sys._getframe())
        loop.call_soon_threadsafe(cancel)

    code.install()
    try:
        with interruptible(act):
            yield
    finally:
        code.remove()


def _labelled(text: str) -> str:
    first, *rest = text.split("\n")
    return "\n".join([LABEL + first, *(" " * len(LABEL) + line for line in rest)])


class _Labelled(io.TextIOBase):
    """Writes to a stream, with the label before each line."""

    def __init__(self, stream: TextIO, kept: Spool) -> None:
        self._stream = stream
        self._kept = kept
        self._is_at_start = True

    def write(self, text: str) -> int:
        self._kept.write(text)
        lines = text.splitlines(keepends=True)
        labels = ["" if index == 0 and not self._is_at_start else LABEL for index in range(len(lines))]
        self._stream.write("".join(label + line for label, line in zip(labels, lines, strict=True)))
        if text:
            self._is_at_start = text.endswith("\n")
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False
