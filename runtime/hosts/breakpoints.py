"""`breakpoint()` in an actor of a script: pdb runs on the rank, and its commands come from the controller.

    Pdb on the rank -> PromptQuestion -> the controller's QuestionRouter -> `hosts.debugging` -> a terminal

In a notebook the debugger of the cells (`runtime.cells.debugger`) replaces this one.
"""

from __future__ import annotations

import io
import itertools
import pdb
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from meshbook.runtime.actor.context import current_origin
from meshbook.runtime.errors import MeshbookError
from meshbook.runtime.node.node import Node
from meshbook.runtime.telemetry.prompt_questions import QUESTIONS, Kind, PromptAnswer, PromptQuestion
from meshbook.runtime.traces import short_name

# A step does not stop in the modules that call the user's code.
SKIPPED = ("meshbook.*", "asyncio.*", "concurrent.*", "contextlib", "contextvars", "threading")


class Breakpoints:
    """The breakpoints of this process. Each debugger belongs to the thread that reached the breakpoint."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._numbers = itertools.count(1)

    def install(self) -> None:
        """Replace `pdb.set_trace`, which `breakpoint()` calls by Python's own hook; that respects PYTHONBREAKPOINT."""
        pdb.set_trace = self.set_trace

    def set_trace(self, *, header: str | None = None, commands: Sequence[str] = ()) -> None:
        """Stop at the caller's line, and run `commands` first. RuntimeError if there is no terminal for commands."""
        answer = self.ask("stop")
        if answer.kind != "text":
            spec = self._node.place
            raise RuntimeError(f"breakpoint() on rank {spec.rank} of {spec.world.mesh}: {answer.text}")
        if answer.text != "stop":
            return
        debugger = ActorPdb(self)
        if header is not None:
            debugger.message(header)
        debugger.rcLines.extend(commands)
        debugger.set_trace(sys._getframe(1))

    def ask(self, kind: Kind, prompt: str = "", place: str = "") -> PromptAnswer:
        """Send a question to the controller, and wait for the answer on a plain event."""
        spec = self._node.place
        number = next(self._numbers)
        question = PromptQuestion(
            current_origin(), spec.world.mesh, spec.rank, number, kind, prompt=prompt, place=place
        )
        if self._node.capture is not None:
            self._node.capture.flush()  # earlier output is shown before the question
        answered = threading.Event()
        future = self._node.calls.ask(self._node.controller, QUESTIONS, "ask", question)
        future.when_done(answered.set)
        answered.wait()
        try:
            answer: PromptAnswer = future.get()
        except MeshbookError as error:
            return PromptAnswer("eof", f"the controller does not answer: {error}")
        return answer


class ActorPdb(pdb.Pdb):
    """pdb whose output goes to the terminal with the next prompt."""

    curframe: FrameType
    stack: list[tuple[FrameType, int]]
    curindex: int

    def __init__(self, breakpoints: Breakpoints) -> None:
        self._breakpoints = breakpoints
        self._said = io.StringIO()
        super().__init__(stdin=self, stdout=self._said, skip=SKIPPED, nosigint=True, readrc=False)  # type: ignore[arg-type]
        self.use_rawinput = False
        self.prompt = ""  # the controller's prompt names the rank

    def readline(self) -> str:
        """Return the next command; empty at the end of all input."""
        said = self._said.getvalue()
        self._said.seek(0)
        self._said.truncate()
        frame, line = self.stack[self.curindex]
        code = frame.f_code
        place = f"{Path(short_name(code.co_filename)).name}:{line} in {code.co_name}"
        answer = self._breakpoints.ask("command", said, place)
        return f"{answer.text}\n" if answer.kind == "text" else ""

    def interaction(self, frame: FrameType | None, traceback: TracebackType | None) -> Any:
        """Run the command loop; after `continue` without breakpoints, tracing is off."""
        super().interaction(frame, traceback)
        self._said.seek(0)
        self._said.truncate()
