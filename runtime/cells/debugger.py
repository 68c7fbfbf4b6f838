"""pdb on a rank: `breakpoint()`, `pdb.set_trace()`, `%debug` and the post-mortem of a cell that failed.

It is IPython's debugger. It reads commands like any input of a rank, and its output is output of the cell. The notebook
decides which ranks a command is for (`meshbook.magics.prompts.debugger_groups`).
"""

from __future__ import annotations

import pdb
import sys
import threading
from bdb import BdbQuit
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from IPython.core.debugger import Pdb

from meshbook.runtime.cells.failures import is_user_code
from meshbook.runtime.cells.interrupts import INTERRUPTS
from meshbook.runtime.cells.prompts import RankPrompts
from meshbook.runtime.cells.thread_stacks import is_of_cell
from meshbook.runtime.traces import is_ours, short_name

CONTINUES = -1  # bdb's line to stop at, after `continue`
# A step does not stop in the code that runs cells or takes their output.
_BENEATH = ("/IPython/core/", "/asyncio/", "/threading.py", "/contextlib.py")


class Debugger:
    """The debugger of this rank: one for all cells, so that displays and aliases persist."""

    def __init__(self, prompts: RankPrompts) -> None:
        self._prompts = prompts
        self._pdb: RankPdb | None = None  # created on first use, since that takes milliseconds
        self._declined_origin = ""  # the execution that does not stop here, by the controller's answer

    def install(self) -> None:
        """Replace `pdb.set_trace`, which Python's own hook for `breakpoint()` calls; it respects PYTHONBREAKPOINT."""
        pdb.set_trace = self.set_trace

    def set_trace(self, *, header: str | None = None, commands: Sequence[str] = ()) -> None:
        """Stop at the caller's line, if this rank stops at all. `commands` are run first."""
        if not self._may_stop():
            return
        debugger = self._make()
        if header is not None:
            debugger.message(header)
        debugger.rcLines.extend(commands)
        debugger.stop_at(sys._getframe(1))

    def _may_stop(self) -> bool:
        """Whether this rank stops (`--break`); caches a refusal. StdinNotImplementedError without a keyboard."""
        origin = INTERRUPTS.origin
        if origin and self._declined_origin == origin:
            return False
        stops = self._prompts.ask("stop") == "stop"
        self._declined_origin = "" if stops else origin
        return stops

    def examine(self, error: BaseException) -> None:
        """Open the debugger at the frames of an error (post-mortem). KeyboardInterrupt if it is interrupted."""
        debugger = self._make()
        debugger.reset()
        with INTERRUPTS.user_code():
            debugger.message(f"{type(error).__name__}: {error}")
            try:
                debugger.interaction(None, error)
            finally:
                debugger.release_frames()

    def end_cell(self) -> None:
        """Stop stepping at the end of the user's code, and release the frames, so that their objects are freed."""
        if self._pdb is not None:
            sys.settrace(None)
            self._pdb.release_frames()

    def _make(self) -> RankPdb:
        """Return the debugger; a new one for a breakpoint in code run at its prompt, or on another thread."""
        is_elsewhere = threading.current_thread() is not threading.main_thread()  # two threads would share its state
        if is_elsewhere or (self._pdb is not None and self._pdb.is_asking):
            return RankPdb(prompts=self._prompts)
        if self._pdb is None:
            self._pdb = RankPdb(prompts=self._prompts)
        return self._pdb


class RankPdb(Pdb):
    """IPython's pdb, from the cell's first frame on."""

    initial_frame: FrameType | None = None
    botframe: FrameType | None

    def __init__(self, completekey: Any = None, stdin: Any = None, stdout: Any = None, **options: Any) -> None:
        # For its command `debug`, pdb itself makes another one, which reads from the same source.
        self._lines = CommandLines(options.pop("prompts", None) or stdin.prompts, self)
        super().__init__(completekey, self._lines, stdout, nosigint=True, **options)
        self.use_rawinput = False
        self.prompt = ""  # the controller's prompt names the ranks
        self.is_asking = False
        self._is_interrupted = False

    @property
    def place(self) -> str:
        """The current place: `cell 12:7 in step`."""
        frame: FrameType = self.curframe
        line = self.stack[self.curindex][1]
        code = frame.f_code
        name = short_name(code.co_filename) if is_of_cell(frame) else Path(code.co_filename).name
        return f"{name}:{line}" + ("" if code.co_name.startswith("<module") else f" in {code.co_name}")

    def stop_at(self, frame: FrameType) -> None:
        """Take commands here, then continue as they request. Not at the next line: there may be none."""
        self.initial_frame = frame
        self.reset()
        self._trace_from(frame)
        self.set_step()
        self.interaction(frame, None)
        if self.quitting:
            raise BdbQuit
        if self.stoplineno != CONTINUES or self.breaks:
            self._trace_from(frame)  # again: a breakpoint within a command may have removed it
            sys.settrace(self.trace_dispatch)

    def release_frames(self) -> None:
        """Release all frames."""
        self.forget()
        self._set_stopinfo(None, None)
        self.botframe = None
        self.initial_frame = None
        self.__dict__.pop("curframe_locals", None)
        self._skip_cache.clear()
        self._parent_skip_cache.clear()

    def _trace_from(self, frame: FrameType | None) -> None:
        """Set the trace function of the frames that run now; it takes effect with `sys.settrace`."""
        while frame is not None:
            frame.f_trace = self.trace_dispatch
            self.botframe = frame
            frame = frame.f_back

    # -- where it stops ------------------------------------------------------------

    def get_stack(self, *arguments: Any, **keywords: Any) -> tuple[list[tuple[FrameType, int]], int]:
        stack, position = super().get_stack(*arguments, **keywords)
        first = next((at for at, (frame, _) in enumerate(stack) if is_of_cell(frame)), 0)
        return stack[first:], max(0, position - first)

    def stop_here(self, frame: FrameType) -> bool:
        return _is_called_by_user(frame) and bool(super().stop_here(frame))

    # IPython runs each statement of a cell by itself: a stop at its begin or end is of no use.

    def user_call(self, frame: FrameType, arguments: Any) -> None:
        """Handle the call of a function."""
        if not _is_statement(frame):
            super().user_call(frame, arguments)

    def user_return(self, frame: FrameType, value: Any) -> None:
        """Handle the return of a function."""
        if not _is_statement(frame):
            super().user_return(frame, value)

    def user_exception(self, frame: FrameType, exc_info: Any) -> None:
        """Handle an exception. Beneath the cell it only marks the end of a statement with `await`."""
        if _is_called_by_user(frame):
            super().user_exception(frame, exc_info)
        else:
            self.set_step()

    # -- output --------------------------------------------------------------------

    def do_interact(self, arg: str) -> None:
        """interact

        Not available on ranks: input that is not a command runs as Python.
        """
        self.error("interact is not available on ranks; input that is not a command runs as Python")

    def print_stack_entry(self, frame_lineno: tuple[FrameType, int], prompt_prefix: str = "") -> None:
        """Print a frame without the blank line that IPython puts before its own prompt."""
        self.message(self.format_stack_entry(frame_lineno, "").rstrip("\n"))

    # -- interrupts ----------------------------------------------------------------

    def interaction(self, frame: FrameType | None, tb_or_exc: BaseException | TracebackType | None) -> None:
        """Take commands; one debugger at a time, since the prompt shows one place of a rank."""
        with self._lines.prompts.debugger_lock:
            self.is_asking, self._is_interrupted = True, False
            try:
                super().interaction(frame, tb_or_exc)
            finally:
                self.is_asking = False
        if self._is_interrupted:
            raise KeyboardInterrupt

    def _cmdloop(self) -> None:
        """Take commands. An interrupt ends this, since it is meant for the cell."""
        try:
            self.cmdloop()
        except KeyboardInterrupt:
            self._is_interrupted = True
            self.set_continue()
            sys.settrace(None)

    def _error_exc(self) -> None:
        """Print the error of a command, or raise its KeyboardInterrupt."""
        if isinstance(error := sys.exc_info()[1], KeyboardInterrupt):
            raise error
        super()._error_exc()


class CommandLines:
    """The stream from which the debugger reads its commands."""

    def __init__(self, prompts: RankPrompts, debugger: RankPdb) -> None:
        self.prompts = prompts
        self._debugger = debugger

    def readline(self) -> str:
        """The next command; empty at the end of all input."""
        try:
            return f"{self.prompts.ask('command', place=self._debugger.place)}\n"
        except EOFError:
            return ""


def _is_statement(frame: FrameType) -> bool:
    return is_of_cell(frame) and frame.f_back is not None and _is_beneath(frame.f_back)


def _is_called_by_user(frame: FrameType | None) -> bool:
    """Whether it is the user's code, or library code called by it, and not the code that runs cells."""
    while frame is not None and not _is_beneath(frame):
        if is_user_code(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


def _is_beneath(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return is_ours(name) or any(part in name for part in _BENEATH)
