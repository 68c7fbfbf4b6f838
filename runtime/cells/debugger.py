"""pdb on a rank: `breakpoint()`, `pdb.set_trace()`, `%debug` and the post-mortem of a cell that failed.

It is IPython's debugger; its commands are asked for like any input of a rank, and what it prints is output of the cell.
Which ranks a command is for is decided where they come from (`meshbook.magics.prompts.debugger`).
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
from meshbook.runtime.traces import is_ours

CONTINUES = -1  # bdb's line to stop at, after `continue`
# Where a step does not lead: what runs cells, and what takes their output.
_BENEATH = ("/IPython/core/", "/asyncio/", "/threading.py", "/contextlib.py")


class Debugger:
    """The debugger of this rank: one, for all of its cells, so that what they display and alias stays."""

    def __init__(self, prompts: RankPrompts) -> None:
        self._prompts = prompts
        self._pdb: RankPdb | None = None  # made when it is first needed, since that takes milliseconds
        self._passing = ""  # the execution that does not stop here, as the controller has said

    def install(self) -> None:
        """Take the place of pdb's; `breakpoint()` comes there by Python's own hook, which heeds PYTHONBREAKPOINT."""
        pdb.set_trace = self.set_trace

    def set_trace(self, *, header: str | None = None, commands: Sequence[str] = ()) -> None:
        """Stop at the caller's line, where this rank stops at all. `commands` are run first."""
        if not self._may_stop():
            return
        debugger = self._make()
        if header is not None:
            debugger.message(header)
        debugger.rcLines.extend(commands)
        debugger.stop_at(sys._getframe(1))

    def _may_stop(self) -> bool:
        """As the cell has it (`--break`); it says so once. StdinNotImplementedError where nobody can be asked."""
        origin = INTERRUPTS.origin
        if origin and self._passing == origin:
            return False
        stops = self._prompts.ask("stop") == "stop"
        self._passing = "" if stops else origin
        return stops

    def examine(self, error: BaseException) -> None:
        """Post-mortem: look at the frames of an error; KeyboardInterrupt where that is interrupted."""
        debugger = self._make()
        debugger.reset()
        with INTERRUPTS.user_code():
            debugger.message(f"{type(error).__name__}: {error}")
            try:
                debugger.interaction(None, error)
            finally:
                debugger.let_go()

    def end_cell(self) -> None:
        """Step no further: what comes is not the user's. And keep nothing alive that his frames hold."""
        if self._pdb is not None:
            sys.settrace(None)
            self._pdb.let_go()

    def _make(self) -> RankPdb:
        """The debugger; another one where what is run at its prompt, or another thread, comes to a breakpoint."""
        is_elsewhere = threading.current_thread() is not threading.main_thread()  # two of them would share one's state
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
        # pdb itself makes another one, for its command `debug`, which reads where the first one does.
        self._lines = CommandLines(options.pop("prompts", None) or stdin.prompts, self)
        super().__init__(completekey, self._lines, stdout, nosigint=True, **options)
        self.use_rawinput = False
        self.prompt = ""  # the controller's shows who is asked
        self.is_asking = False
        self._is_interrupted = False

    @property
    def place(self) -> str:
        """Where it stands: `cell 12:7 in step`."""
        frame: FrameType = self.curframe
        line = self.stack[self.curindex][1]
        code = frame.f_code
        name = code.co_filename.strip("<>") if is_of_cell(frame) else Path(code.co_filename).name
        return f"{name}:{line}" + ("" if code.co_name.startswith("<module") else f" in {code.co_name}")

    def stop_at(self, frame: FrameType) -> None:
        """Take commands here, and go on as they say. Not at the next line: there may be none."""
        self.initial_frame = frame
        self.reset()
        self._trace_from(frame)
        self.set_step()
        self.interaction(frame, None)
        if self.quitting:
            raise BdbQuit
        if self.stoplineno != CONTINUES or self.breaks:
            self._trace_from(frame)  # again: a breakpoint that a command has come to may have taken it off
            sys.settrace(self.trace_dispatch)

    def let_go(self) -> None:
        """Hold no frames."""
        self.forget()
        self._set_stopinfo(None, None)
        self.botframe = None
        self.initial_frame = None
        self.__dict__.pop("curframe_locals", None)
        self._skip_cache.clear()
        self._parent_skip_cache.clear()

    def _trace_from(self, frame: FrameType | None) -> None:
        """Have the frames that run now traced, too, once there is a trace."""
        while frame is not None:
            frame.f_trace = self.trace_dispatch
            self.botframe = frame
            frame = frame.f_back

    # -- where it stops ------------------------------------------------------------------

    def get_stack(self, *arguments: Any, **keywords: Any) -> tuple[list[tuple[FrameType, int]], int]:
        stack, position = super().get_stack(*arguments, **keywords)
        first = next((at for at, (frame, _) in enumerate(stack) if is_of_cell(frame)), 0)
        return stack[first:], max(0, position - first)

    def stop_here(self, frame: FrameType) -> bool:
        return _is_called_by_user(frame) and bool(super().stop_here(frame))

    # IPython runs each statement of a cell by itself: its begin and its end are no places to stop at.

    def user_call(self, frame: FrameType, arguments: Any) -> None:
        """A function begins."""
        if not _is_statement(frame):
            super().user_call(frame, arguments)

    def user_return(self, frame: FrameType, value: Any) -> None:
        """A function returns."""
        if not _is_statement(frame):
            super().user_return(frame, value)

    def user_exception(self, frame: FrameType, exc_info: Any) -> None:
        """An exception comes to a frame; to one beneath the cell it is that a statement with `await` is over."""
        if _is_called_by_user(frame):
            super().user_exception(frame, exc_info)
        else:
            self.set_step()

    # -- what it says --------------------------------------------------------------------

    def do_interact(self, arg: str) -> None:
        """interact

        Not on ranks: what is no command is run as Python.
        """
        self.error("interact is not for ranks: what is no command is run as Python")

    def print_stack_entry(self, frame_lineno: tuple[FrameType, int], prompt_prefix: str = "") -> None:
        """Without the blank line that IPython puts before its own prompt."""
        self.message(self.format_stack_entry(frame_lineno, "").rstrip("\n"))

    # -- interrupts ----------------------------------------------------------------------

    def interaction(self, frame: FrameType | None, tb_or_exc: BaseException | TracebackType | None) -> None:
        """Take commands; one debugger at a time, since a person sees one place of a rank."""
        with self._lines.prompts.floor:
            self.is_asking, self._is_interrupted = True, False
            try:
                super().interaction(frame, tb_or_exc)
            finally:
                self.is_asking = False
        if self._is_interrupted:
            raise KeyboardInterrupt

    def _cmdloop(self) -> None:
        """Take commands. An interrupt ends that: the cell is what it is meant for."""
        try:
            self.cmdloop()
        except KeyboardInterrupt:
            self._is_interrupted = True
            self.set_continue()
            sys.settrace(None)

    def _error_exc(self) -> None:
        """A command has raised."""
        if isinstance(error := sys.exc_info()[1], KeyboardInterrupt):
            raise error
        super()._error_exc()


class CommandLines:
    """What the debugger reads its commands from."""

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
    """Whether it is code of the user's, or of a library that his code has called, and not what runs cells."""
    while frame is not None and not _is_beneath(frame):
        if is_user_code(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


def _is_beneath(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return is_ours(name) or any(part in name for part in _BENEATH)
