"""`input()`, `getpass` and `sys.stdin` of a rank: a person at the notebook answers.

    input() -> PromptQuestion -> controller -> ... -> PromptAnswer -> the thread that waits here

The thread waits for a plain event, unlike other calls: an interrupt then hits no code of the runtime.
"""

from __future__ import annotations

import builtins
import getpass
import io
import itertools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from IPython.core.error import StdinNotImplementedError

from meshbook.runtime.actor.context import current_origin
from meshbook.runtime.cells.interrupts import INTERRUPTS
from meshbook.runtime.errors import MeshbookError
from meshbook.runtime.node.node import Node
from meshbook.runtime.telemetry.prompt_questions import QUESTIONS, Kind, PromptAnswer, PromptQuestion


class RankPrompts:
    """The prompts of this rank."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._numbers = itertools.count(1)
        self.debugger_lock = threading.RLock()  # held by the debugger that takes commands

    @property
    def pause(self) -> str:
        """The prompt for which the main thread waits, as text; empty if it waits for none."""
        return self._node.status.pause

    def install(self) -> None:
        """Replace Python's own input functions, which have no keyboard here."""
        builtins.input = self.input
        getpass.getpass = self.getpass
        sys.stdin = RankInput(self)

    def input(self, prompt: object = "", /) -> str:
        """Read a line from the user of the notebook. EOFError, or StdinNotImplementedError without a keyboard."""
        return self.ask("input", str(prompt))

    def getpass(self, prompt: str = "Password: ", stream: Any = None, **options: Any) -> str:
        """Read a line that is not shown while it is typed."""
        return self.ask("password", str(prompt))

    def ask(self, kind: Kind, prompt: str = "", place: str = "") -> str:
        """Return the answer to this question; EOFError and StdinNotImplementedError as for `input`."""
        spec = self._node.place
        question = PromptQuestion(
            *(current_origin(), spec.world.mesh, spec.rank, next(self._numbers), kind), prompt=prompt, place=place
        )
        with INTERRUPTS.runtime_code():
            answer = self._wait_for_answer(question)
        if answer.kind == "text":
            return answer.text
        if answer.kind == "eof":
            raise EOFError(answer.text or "EOF when reading a line")
        raise StdinNotImplementedError(f"{_format_call(kind, prompt)}: {answer.text}")

    def _wait_for_answer(self, question: PromptQuestion) -> PromptAnswer:
        if self._node.capture is not None:
            self._node.capture.flush()  # earlier output is shown before the prompt
        answered = threading.Event()
        future = self._node.calls.ask(self._node.controller, QUESTIONS, "ask", question)
        future.when_done(answered.set)
        try:
            with self._paused(question):
                answered.wait()
        except BaseException:
            withdrawn = question.origin, question.rank, question.number
            self._node.calls.notify(self._node.controller, QUESTIONS, "withdraw", *withdrawn)
            raise
        try:
            answer: PromptAnswer = future.get()
        except MeshbookError as error:
            return PromptAnswer("eof", f"the notebook has disconnected: {error}")
        return answer

    @contextmanager
    def _paused(self, question: PromptQuestion) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._node.status.paused("in the debugger" if question.kind in ("command", "stop") else "in input()")
        try:
            with INTERRUPTS.user_code():
                yield
        finally:
            self._node.status.paused("")


def _format_call(kind: Kind, prompt: str) -> str:
    """Return the call that needs the input, as source code."""
    match kind:
        case "input":
            return f"input({prompt!r})"
        case "password":
            return f"getpass({prompt!r})"
        case "stop":
            return "breakpoint()"
        case "command":
            return "the debugger"


class RankInput(io.TextIOBase):
    """`sys.stdin` of a rank: each line is a prompt without text."""

    encoding = "utf-8"
    errors = "replace"
    mode = "r"
    name = "<stdin>"

    def __init__(self, prompts: RankPrompts) -> None:
        self._prompts = prompts

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
        """The next line, whole whatever `size` is; the empty string at the end of all input."""
        try:
            return f"{self._prompts.input()}\n"
        except EOFError:
            return ""

    def read(self, size: int | None = -1, /) -> str:
        """All lines up to the end of all input; with a size the next line."""
        if size is not None and size >= 0:
            return self.readline()
        return "".join(iter(self.readline, ""))

    def readable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        """The descriptor that subprocesses inherit; it provides no input."""
        return 0
