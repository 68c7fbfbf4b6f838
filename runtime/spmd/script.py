"""Runs a script or a module as `__main__` of this process, like `python train.py` and `python -m package.train`.

On the main thread SIGINT raises KeyboardInterrupt in the script, and has no effect outside it, where it would break the
runtime.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import runpy
import signal
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import TracebackType
from typing import Any

from meshbook.runtime.errors import MeshbookError
from meshbook.runtime.spmd.run_policy import EndRun

INTERRUPTED = 128 + signal.SIGINT  # a shell's exit status after Ctrl-C
TEXT_CHARACTERS = 500
_RUNNERS = (runpy.__file__, "<frozen ")  # the files of the frames between this module's and the script's


class ScriptExited(MeshbookError):
    """A script exited with `code`, which is not 0, on `rank`."""

    def __init__(self, message: str, rank: int, code: int) -> None:
        super().__init__(message)
        self.rank = rank
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.rank, self.code)


def run_as_main(arguments: Sequence[str]) -> None:
    """Run `["train.py", "--lr", "1"]` or `["-m", "package.train", "--lr", "1"]`; raises the script's exceptions.

    `__main__`, `sys.argv` and `sys.path[0]` are the script's, also afterwards: threads that it leaves behind may need
    them. ValueError if no script is named.
    """
    is_module = list(arguments[:1]) == ["-m"]
    name, *rest = arguments[is_module:] or [""]
    if not name:
        raise ValueError(f"no script in {list(arguments)}: expected ['train.py', ...] or ['-m', 'package.train', ...]")
    run = _run_module if is_module else _run_file
    if threading.current_thread() is threading.main_thread():
        _run_interruptibly(lambda: run(name, rest))
    else:
        run(name, rest)


def _run_interruptibly(run: Callable[[], None]) -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    finally:
        signal.signal(signal.SIGINT, before)  # replaces the script's own handler, too


def ignore_interrupts() -> None:
    """Ignore SIGINT in this process from now on, if called on the main thread."""
    if threading.current_thread() is threading.main_thread():  # only it can set handlers
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextlib.contextmanager
def main_restored() -> Iterator[None]:
    """Restore `__main__`, `sys.argv`, `sys.path` and `sys.excepthook` at the end, for other code in this process.

    `init_process_group()` sets a hook that puts the rank before each line, one around the other.
    """
    argv, path, main, hook = sys.argv, list(sys.path), sys.modules["__main__"], sys.excepthook
    try:
        yield
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"], sys.excepthook = argv, path, main, hook


def _run_file(name: str, rest: list[str]) -> None:
    path = str(Path(name).absolute())
    with open(path, "rb") as file:
        source = file.read()
    sys.argv = [name, *rest]
    sys.path.insert(0, str(Path(path).resolve().parent))
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = path
    main.__loader__ = SourceFileLoader("__main__", path)
    # without inheriting this file's `from __future__`
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)


def _run_module(name: str, rest: list[str]) -> None:
    sys.argv = ["-m", *rest]  # runpy replaces `-m` by the module's file
    sys.path.insert(0, str(Path.cwd()))
    runpy.run_module(name, run_name="__main__", alter_sys=True)


# -- the end of a script ---------------------------------------------------------


def exit_code(error: SystemExit) -> int:
    """Return the exit status as a shell sees it: 0 for None, 1 for a message, and the last eight bits of a number."""
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1


def explain_exit(error: SystemExit, name: str, rank: int) -> ScriptExited:
    """Return the error for the caller of a script that exited with a code."""
    text = f"{name} exited with code {exit_code(error)} on rank {rank}"
    if not isinstance(error.code, int):
        text += f": {error.code}"
    return ScriptExited(text, rank, exit_code(error))


def own_trace(error: BaseException) -> TracebackType | None:
    """Return the traceback from the script's first frame on; None if the script never ran."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    ours = max((place for place, file in enumerate(files, 1) if file == __file__), default=0)
    runners = itertools.takewhile(lambda file: file.startswith(_RUNNERS), files[ours:])
    trace = error.__traceback__
    for _ in range(ours + len(list(runners))):
        trace = trace.tb_next if trace is not None else None
    return trace


def ending_of(error: BaseException) -> EndRun:
    """Return the end of a script that raised this error, and print the report that `python` would print."""
    if isinstance(error, SystemExit):
        return _ending_of_exit(error)
    if isinstance(error, KeyboardInterrupt):
        # An interrupt that comes while the script fails with another error may have no frame of the script.
        place = _place_of(error) or (_place_of(error.__context__) if error.__context__ is not None else "")
        return EndRun(INTERRUPTED, "KeyboardInterrupt", place, interrupted=True)
    error.__traceback__ = own_trace(error)
    place = _place_of(error)
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException:  # the hook is the script's
        traceback.print_exc()
    return EndRun(1, _cut(f"{type(error).__name__}: {_say(error)}"), place)


def _ending_of_exit(error: SystemExit) -> EndRun:
    code = exit_code(error)
    if error.code is None or isinstance(error.code, int):
        return EndRun(code, f"exited with code {code}" if code else "")
    print(error.code, file=sys.stderr)
    return EndRun(code, f"exited with code {code}: {_cut(str(error.code))}")


def _say(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "<exception str() failed>"  # as in a traceback


def _cut(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= TEXT_CHARACTERS else f"{line[:TEXT_CHARACTERS]}…"


def _place_of(error: BaseException) -> str:
    """Return the innermost line of the script's own folder, as `train.py:12 in step`."""
    frames = traceback.extract_tb(own_trace(error))
    folder = tuple(sys.path[:1])
    own = [each for each in frames if each.filename.startswith(folder) and "site-packages" not in each.filename]
    if not frames:
        return ""
    last = (own or list(frames))[-1]
    name = "" if last.name == "<module>" else f" in {last.name}"
    return f"{last.filename.removeprefix(str(Path.cwd()) + os.sep)}:{last.lineno}{name}"
