"""The IPython shell of a rank: runs a cell on the main thread, and keeps its value or error instead of printing it."""

from __future__ import annotations

import ast
import asyncio
import bdb
import codeop
import contextlib
import gc
import hashlib
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from IPython.core import pylabtools
from IPython.core.compilerop import CachingCompiler
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.error import StdinNotImplementedError, UsageError
from IPython.core.inputtransformer2 import TransformerManager
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.path import compress_user
from traitlets.config import Config

from meshbook.runtime.cells import debugger, prompts
from meshbook.runtime.cells.debugger import Debugger
from meshbook.runtime.cells.displays import Displays
from meshbook.runtime.cells.failures import frames_of, notes_of
from meshbook.runtime.cells.interrupts import INTERRUPTS
from meshbook.runtime.cells.line_magics import INSTALLERS, format_elsewhere, in_turn
from meshbook.runtime.cells.object_info import CellInspector
from meshbook.runtime.cells.prompts import RankPrompts
from meshbook.runtime.telemetry import collective_spans
from meshbook.runtime.traces import OWN, format_error

# The start of frames in IPython's tracebacks: those that are never shown, and those that `%xmode Verbose` shows.
NEVER_SHOWN = tuple(
    f"{compress_user(file)}:" for file in (__file__, prompts.__file__, debugger.__file__, collective_spans.__file__)
)
OURS = tuple(map(compress_user, OWN))
FRAME = re.compile(r"(?:\s|\x1b\[[0-9;]*m)*File .*")
# Marks of IPython's syntax: magics, shell commands, help; autocall; pasted prompts; a first line that is blank or
# indented.
MARKS = re.compile(r"[%!?]|^[ \t]*(?:[/,;]|>>>|\.\.\.|In ?\[)|\A\s", re.MULTILINE)
# A magic of the notebook as a line of a traceback shows it: after its number, and as the comment sent to the rank.
_CODES = r"(?:\x1b\[[\d;]*m)*"
_MAGIC_ABOVE = re.compile(rf"^({_CODES} *\d+{_CODES} {_CODES})#(?=%%(?:mesh|time|timeit|px|rank|distributed)\b)")
# The comments that replace the line of `%%mesh`, and those below it.
COMMENTS = re.compile(r"(?:#.*\n)*")
# Such comments if the cell's own first line is a cell magic.
MAGIC_BELOW = re.compile(r"(?:#.*\n|[ \t]*\n)+(?=%%\w)")
INCOMPLETE: int = codeop.PyCF_ALLOW_INCOMPLETE_INPUT  # type: ignore[attr-defined]  # not in typeshed
# Figures of these backends of matplotlib are widgets, which need a comm to the notebook.
WIDGET_BACKENDS = frozenset({"ipympl", "nbagg", "notebook", "widget"})
NO_WINDOWS = (
    "{} is not available on ranks, which have no windows or widgets; %matplotlib inline shows figures as images"
)
NUMBER_OF_TRANSFORMS = sum(map(len, vars(TransformerManager()).values()))


@dataclass
class RunResult:
    """The outcome of a source: the value of its last expression, or the error and its rendering."""

    value: Any = None
    error: BaseException | None = None
    rendered: list[str] = field(default_factory=list)


class CellCompiler(CachingCompiler):
    """Names a cell `<cell 9 1b2c3d4e>` by its number in the notebook and its content, for tracebacks and places.

    Several cells may have one number: those that a loop runs, and those before and after a restart of the kernel.
    """

    number = 0

    def __init__(self) -> None:
        super().__init__()
        # A prompt waits for the rest of incomplete input; here the flag would only hide the error ("'(' was never
        # closed").
        self.flags &= ~INCOMPLETE

    def get_code_name(self, raw_code: str, code: str, number: int) -> str:
        return f"<cell {self.number} {hashlib.blake2b(code.encode(errors='replace'), digest_size=4).hexdigest()}>"

    def cache(self, transformed_code: str, number: int = 0, raw_code: str | None = None) -> str:
        name: str = super().cache(transformed_code, self.number, raw_code)
        return name


class ResultHook(DisplayHook):
    """Keeps the value of the last expression, unless a semicolon ends it."""

    exec_result: Any = None  # no trait: each cell sets it twice, and nothing observes it

    def __call__(self, result: Any = None) -> None:
        self.check_for_underscore()
        if result is not None:
            self.update_user_ns(result)
            self.fill_exec_result(result)

    def update_user_ns(self, result: Any) -> None:
        """Set `_` to the last value, as in any IPython. There is no `_9`, which would keep tensors alive."""
        self.shell.user_ns["_"] = result


class RankDisplayPublisher(DisplayPublisher):
    """Passes rich displays to `Displays`."""

    displays: Displays

    def publish(
        self, data: Any, metadata: Any = None, *arguments: Any, transient: Any = None, update: bool = False, **more: Any
    ) -> None:
        """Show a display. An id in `transient` makes it replaceable; `update` replaces the display of that id."""
        display_id = (transient or {}).get("display_id") or ""
        self.displays.publish(data, metadata or {}, display_id, update=update)

    def clear_output(self, wait: bool = False) -> None:
        """Clear the output of this rank in the cell; other ranks' output stays."""
        self.displays.clear(wait)


class RankShell(InteractiveShell):
    """The shell of a worker; its namespace is the worker's `__main__`."""

    prompts: RankPrompts
    debugging: Debugger
    predefined: Mapping[str, Any] = MappingProxyType({})  # the names that a cell finds on this rank
    offers: dict[str, Any]  # values of the tensor engine that become variables
    # No traits: each cell sets them, and nothing observes them.
    execution_count: int = 1
    last_execution_succeeded: bool = True
    last_execution_result: Any = None

    def init_history(self) -> None:
        self.config.HistoryManager.enabled = False
        super().init_history()

    def init_io(self) -> None:
        """Do nothing: the capture owns the streams."""

    def init_prompts(self) -> None:
        """Do nothing: prompts in `sys` mark a process as interactive, and Lightning then refuses several ranks."""

    def init_sys_modules(self) -> None:
        self._main_mod_cache: dict[str, Any] = {}
        sys.modules["__main__"] = self.user_module

    @contextmanager
    def _tee(self, channel: str) -> Iterator[None]:
        """Do nothing: IPython would keep all output for a history that is not used here."""
        yield

    def showtraceback(self, *arguments: Any, **keywords: Any) -> None:
        """Render the error for the notebook, except an interrupt or an exit, which is reported in one line."""
        error = sys.exc_info()[1]
        if error is None or isinstance(error, KeyboardInterrupt | asyncio.CancelledError | SystemExit):
            return
        if has_group(error):  # IPython would print it with Python's own means, past us
            self._showtraceback(type(error), error, [render_group(error), "", *notes_of(error)])
            return
        self._is_rendering = True
        try:
            super().showtraceback(*arguments, **keywords)
        except KeyboardInterrupt:
            return  # the error is kept without its rendering
        finally:
            self._is_rendering = False

    _is_rendering = False

    def get_exception_only(self, *arguments: Any, **keywords: Any) -> str:
        """The error in a line. Raises if IPython calls it for an interrupted rendering, and would print it as well."""
        if self._is_rendering:
            raise KeyboardInterrupt
        line: str = super().get_exception_only(*arguments, **keywords)
        return line

    def show_usage_error(self, error: Any) -> None:
        """Do nothing: a misused magic is reported in one line."""

    def _showtraceback(self, etype: Any, evalue: Any, stb: list[str]) -> None:
        stb = [part for part in stb if not self._is_ours(part)]  # the user's frames are before
        # The last entries are the exception's own line and its notes, which the notebook shows once for all ranks.
        own = 1 + len(notes_of(evalue))
        lines = "\n".join(stb[:-own]) if len(stb) > 1 else "".join(stb).rstrip().rpartition("\n")[0]
        # Not in the source itself: IPython shows no colours, and no mark at the error, in source that cannot be parsed.
        self.kept.rendered = [_MAGIC_ABOVE.sub(r"\1", line) for line in lines.split("\n")]

    def _is_ours(self, part: str) -> bool:
        """Whether this part of a traceback is a frame that is hidden from the user."""
        hidden = NEVER_SHOWN if self.InteractiveTB.mode == "Verbose" else OURS
        frame = FRAME.match(part)
        return frame is not None and any(place in frame[0] for place in hidden)

    def init_user_ns(self) -> None:
        """Fill the namespace, at the start and after `%reset`."""
        super().init_user_ns()
        self.user_ns.update(self.predefined)

    def enable_gui(self, gui: str | None = None) -> None:
        """Refuse an event loop of a GUI: ranks have no windows."""
        if gui not in (None, "inline"):
            raise UsageError(NO_WINDOWS.format(gui))

    def enable_matplotlib(self, gui: str | None = None) -> tuple[str | None, str]:
        """Let matplotlib draw below the cell or into files. Backends that need a window or a widget are refused."""
        if gui in WIDGET_BACKENDS:
            raise UsageError(NO_WINDOWS.format(gui))
        # Before the backend is loaded, which fails first if its library is not installed.
        self.enable_gui(pylabtools.find_gui_and_backend(gui)[0])
        chosen: tuple[str | None, str] = super().enable_matplotlib(gui)
        return chosen

    def _find_with_lazy_load(self, kind: str, name: str) -> Any:
        if line := format_elsewhere(kind, name):
            raise UsageError(line)
        found = super()._find_with_lazy_load(kind, name)
        return in_turn(found) if kind == "line" and name in INSTALLERS and found is not None else found

    def ask_exit(self) -> None:
        raise RuntimeError("exit() does not end a rank; %mesh down ends all ranks")

    def debugger(self, force: bool = False) -> None:
        """Open the debugger for `%debug`, and for `%pdb on` at an error."""
        error = getattr(sys, "last_value", None)
        if error is None:
            print("this rank has no error to debug", file=sys.stderr)
        else:
            self.debugging.examine(error)

    def examine(self, error: BaseException) -> None:
        """Open the debugger at the error of a cell, unless the cell was interrupted or exited, or never ran."""
        if frames_of(error) and not isinstance(error, KeyboardInterrupt | SystemExit | SyntaxError | bdb.BdbQuit):
            # The cell ends with its error all the same.
            with contextlib.suppress(KeyboardInterrupt, StdinNotImplementedError):
                self.debugging.examine(error)

    kept: RunResult = RunResult()

    def run_source(self, source: str, number: int) -> RunResult:
        """Run a cell and return its outcome. Only a KeyboardInterrupt of the runtime itself is raised."""
        self.kept = RunResult()
        self.execution_count = number
        self.compile.number = number
        try:
            result = self.run_cell(source, store_history=False)
        finally:
            self.debugging.end_cell()
        self.kept.error = result.error_before_exec or result.error_in_exec
        if result.result is not None and not ends_in_semicolon(source):
            self.kept.value = result.result
        return self.kept

    async def run_code(self, code_obj: Any, result: Any = None, *, async_: bool = False) -> bool:
        """Run code of the user's. IPython's code around it swallows interrupts in some places."""
        with INTERRUPTS.user_code():
            failed: bool = await super().run_code(code_obj, result, async_=async_)
        return failed

    def forget_error(self) -> None:
        """Release the last error, and with its frames the objects that they hold.

        Otherwise the store of a broken process group would keep running. A new group would meet in it, and each rank
        would find the data of the old group there.
        """
        self.kept = RunResult()
        self.last_execution_result = None
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):
            if hasattr(sys, name):
                delattr(sys, name)
        self.InteractiveTB.tb = None
        gc.collect()

    def names(self) -> tuple[str, ...]:
        """The variables that cells have made, or imported."""
        return self.own(tuple(self.user_ns))

    def bindings(self) -> dict[str, int]:
        """The identity of each name's object. References to the objects would keep them alive."""
        return dict(zip(self.user_ns, map(id, self.user_ns.values()), strict=True))

    def own(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of these names that are variables of the user's."""
        return tuple(name for name in names if not name.startswith("_") and name not in self.user_ns_hidden)

    # A cell runs on a cold worker, so each microsecond of work costs five. The following saves half of a short cell's.

    def transform_cell(self, raw_cell: str) -> str:
        """Transform IPython's own syntax into Python. A cell without its marks is unchanged and not tokenized."""
        if MARKS.search(raw_cell, find_end_of_comments(raw_cell)) is None and not self._has_more_transforms():
            return raw_cell if raw_cell.endswith("\n") else f"{raw_cell}\n"
        found = MAGIC_BELOW.match(raw_cell)
        start = found.end() if found else 0
        transformed: str = super().transform_cell(raw_cell[start:])
        return raw_cell[:start] + transformed

    def _has_more_transforms(self) -> bool:
        """Whether transforms were added: the marks are only those of IPython's own."""
        manager = self.input_transformer_manager
        added = [*manager.cleanup_transforms, *manager.line_transforms, *manager.token_transformers]
        return len(added) != NUMBER_OF_TRANSFORMS or bool(self.input_transformers_post)

    def should_run_async(
        self, raw_cell: str, *, transformed_cell: str | None = None, preprocessing_exc_tuple: Any = None
    ) -> bool:
        """Whether the cell awaits, or starts a task. It is examined only if its text has a word for that."""
        if transformed_cell is not None:
            if not any(word in transformed_cell for word in ("await", "async", "create_task")):
                return False
            if starts_tasks(transformed_cell):
                return True
        found: bool = super().should_run_async(
            raw_cell, transformed_cell=transformed_cell, preprocessing_exc_tuple=preprocessing_exc_tuple
        )
        return found


def find_end_of_comments(source: str) -> int:
    """Return where the comments above the code end. They are Python, whatever marks they contain."""
    above = COMMENTS.match(source)
    return above.end() if above is not None else 0


def has_group(error: BaseException | None) -> bool:
    """Whether the error, or an error in its context, is an exception group."""
    while error is not None:
        if isinstance(error, BaseExceptionGroup):
            return True
        error = error.__context__
    return False


def render_group(error: BaseException) -> str:
    """Render it as Python prints it, from the cell's first frame on."""
    trace = error.__traceback__
    while trace is not None and not trace.tb_frame.f_code.co_filename.startswith("<cell"):
        trace = trace.tb_next
    return "".join(traceback.TracebackException(type(error), error, trace).format()).rstrip()


def starts_tasks(source: str) -> bool:
    """Whether the source calls `asyncio.create_task` outside of functions: that needs a running loop, as in Jupyter."""
    if "create_task" not in source:
        return False
    try:
        waiting: list[ast.AST] = [ast.parse(source)]
    except (SyntaxError, ValueError):  # top-level await is no error to this parser
        return False
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("asyncio.create_task", "create_task"):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)
    return False


def ends_in_semicolon(source: str) -> bool:
    """Whether a semicolon suppresses the cell's last expression."""
    try:
        return ";" in source and bool(DisplayHook.semicolon_at_end_of_expression(source))
    except Exception:
        return False  # not even tokens: a syntax error, which has no value


def make_shell(displays: Displays, asking: RankPrompts) -> RankShell:
    """Create the shell of this process; on the main thread."""
    RankDisplayPublisher.displays = displays
    config = Config()
    config.InteractiveShell.colors = "neutral"
    config.InteractiveShell.displayhook_class = ResultHook
    config.InteractiveShell.display_pub_class = RankDisplayPublisher
    config.InteractiveShell.inspector_class = CellInspector
    shell: RankShell = RankShell.instance(
        config=config,
        user_module=sys.modules["__main__"],
        displayhook_class=ResultHook,
        display_pub_class=RankDisplayPublisher,
        compiler_class=CellCompiler,
    )
    shell.loop_runner = LoopRunner()
    shell.offers = {}
    asking.install()
    shell.prompts, shell.debugging = asking, Debugger(asking)
    shell.debugging.install()
    # IPython's advice on SystemExit is for a terminal; ours is in the error.
    warnings.filterwarnings("ignore", message="To exit: use", category=UserWarning)
    return shell


class LoopRunner:
    """Runs the coroutine of a cell with top-level await on a loop that lasts as long as the worker.

    Tasks that cells leave on the loop continue between cells (`run`).
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._is_used = False
        self._has_run = True  # False once the loop has failed before it ran anything, until the next cell that uses it
        self._woken = self._loop.create_future()
        self.running: Coroutine[Any, Any, Any] | None = None
        self.report: Callable[[str], object] = print  # receives the error that ended the loop

    @property
    def has_work(self) -> bool:
        """Whether there may be anything to run between cells. A thread that only waits wakes faster without a loop."""
        self._is_used = self._is_used or bool(asyncio.all_tasks(self._loop))
        return self._is_used and self._has_run and not self._loop.is_closed()

    def run(self) -> None:
        """Run the loop until `wake`. It may also return earlier."""
        self._woken, self._has_run = self._loop.create_future(), False
        try:
            self._loop.call_soon(self._note_run)
            self._loop.run_until_complete(self._woken)
        except BaseException as error:
            if self._has_run:  # the SystemExit of a task, or its call of `loop.stop()`
                what = "a task of an earlier cell ended the event loop, which continues"
            else:  # its descriptors are closed, or another loop of this thread counts as running
                what = "the event loop does not run, and tasks of earlier cells wait until a cell awaits something"
            self.report(f"{what}:\n{format_error(error)}")

    def _note_run(self) -> None:
        self._has_run = True

    def wake(self) -> None:
        """Let `run` return, this time or, if it does not run now, the next time; from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._set_woken)

    def _set_woken(self) -> None:
        if not self._woken.done():
            self._woken.set_result(None)

    def __call__(self, cell: Coroutine[Any, Any, Any]) -> Any:
        self.running, self._is_used, self._has_run = cell, True, True
        try:
            return self._run(cell)
        finally:
            self.running = None

    def _run(self, cell: Coroutine[Any, Any, Any]) -> Any:
        task = self._loop.create_task(cell)
        try:
            return self._loop.run_until_complete(task)
        except KeyboardInterrupt:
            # Otherwise the cell would continue when the next one awaits. Its cancellation shows best where it was.
            task.cancel()
            self._loop.run_until_complete(asyncio.wait([task]))
            if task.cancelled() or not isinstance(task.result().error_in_exec, asyncio.CancelledError):
                raise
            result = task.result()
            result.error_in_exec = KeyboardInterrupt().with_traceback(result.error_in_exec.__traceback__)
            return result
