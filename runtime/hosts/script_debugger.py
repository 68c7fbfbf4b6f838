"""The controller's side of `breakpoint()` in scripts: one rank at a time is connected to a terminal.

It is the terminal of `meshbook debug` where that runs, otherwise the script's own. Without either, a rank
that reaches a breakpoint gets an error with that reason.
"""

from __future__ import annotations

import contextlib
import io
import json
import queue
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from meshbook.runtime.formats import mesh_name
from meshbook.runtime.telemetry.prompt_questions import EOF, PromptAnswer, PromptQuestion, Reply

DEBUGGER_SOCKET = "debugger"  # the socket in the folder of all runs at which `meshbook debug` listens
HOLD = 0.5  # seconds that a rank keeps the terminal after a command, while others wait for it
NO_TERMINAL = (
    "the script has no terminal; run it in a terminal, or run `meshbook debug` in another terminal "
    "and start the script again"
)


class Console(Protocol):
    """A terminal at which a user enters commands."""

    def ask(self, text: str, prompt: str) -> str:
        """Show a text, and return the line that is entered. EOFError at the end of all input."""

    def close(self) -> None: ...


class OwnTerminal:
    """The terminal of this process."""

    def ask(self, text: str, prompt: str) -> str:
        print(text, end="", flush=True)
        return input(prompt)

    def close(self) -> None: ...


class SecondTerminal:
    """The terminal of `meshbook debug`, by a line of JSON for each text and each command."""

    def __init__(self, connection: socket.socket) -> None:
        self._file = connection.makefile("rw", encoding="utf-8")
        connection.close()  # the file keeps the connection

    def ask(self, text: str, prompt: str) -> str:
        try:
            self._file.write(json.dumps([text, prompt]) + "\n")
            self._file.flush()
            line = self._file.readline()
        except OSError as error:
            raise EOFError(f"the second terminal was closed: {error}") from None
        if not line or (entered := json.loads(line)) is None:
            raise EOFError
        return str(entered)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


def open_console(root: Path) -> Console | None:
    """Return the terminal to use now; None if there is none."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(root / DEBUGGER_SOCKET))
        return SecondTerminal(connection)
    except OSError:
        connection.close()
    return OwnTerminal() if sys.stdin is not None and sys.stdin.isatty() else None


class ScriptDebugger:
    """Answers the prompts of stopped ranks, on a thread of its own, which starts with the first prompt."""

    def __init__(self, root: Callable[[], Path]) -> None:
        self._root = root  # of all runs
        self._questions: queue.SimpleQueue[tuple[PromptQuestion, Reply] | None] = queue.SimpleQueue()
        self._waiting: list[tuple[PromptQuestion, Reply]] = []
        self._console: Console | None = None
        self._thread: threading.Thread | None = None

    def take(self, question: PromptQuestion, reply: Reply) -> None:
        """Queue a prompt; never blocks."""
        self._questions.put((question, reply))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="meshbook debugger", daemon=True)
            self._thread.start()

    def withdraw(self, rank: int, number: int) -> None:
        """Do nothing: a rank waits for each of its answers."""

    def stopped(self) -> list[tuple[str, int, str]]:
        """Return the mesh, rank and place of each debugger that waits for a command."""
        waiting = [question for question, _ in list(self._waiting) if question.kind == "command"]
        return [(mesh_name(question.mesh), question.rank, question.place) for question in waiting]

    def close(self) -> None:
        """Answer nothing more. The thread may still wait for the terminal; it ends with the process."""
        self._questions.put(None)

    def _run(self) -> None:
        last: PromptQuestion | None = None
        while self._gather(last):
            question, reply = item = next((each for each in self._waiting if _is_same(each[0], last)), self._waiting[0])
            reply(self._answer(question))
            self._waiting.remove(item)
            last = question
        if self._console is not None:
            self._console.close()

    def _gather(self, last: PromptQuestion | None) -> bool:
        """Wait for a prompt, up to `HOLD` for one of the last rank; return whether to continue."""
        while not any(_is_same(question, last) for question, _ in self._waiting):
            try:
                item = self._questions.get(timeout=HOLD if self._waiting else None)
            except queue.Empty:
                return True
            if item is None:
                return False
            if item[0].kind == "command":
                self._waiting.append(item)
            else:  # needs no user input
                item[1](self._admit(item[0]))
            if last is None and self._waiting:
                return True
        return True

    def _admit(self, question: PromptQuestion) -> PromptAnswer:
        """Answer whether a rank may stop: it may if there is a terminal."""
        if question.kind != "stop":
            return PromptAnswer("refused", "only a running cell can show this prompt")
        self._console = self._console or open_console(self._root())
        return PromptAnswer("text", "stop") if self._console is not None else PromptAnswer("refused", NO_TERMINAL)

    def _answer(self, question: PromptQuestion) -> PromptAnswer:
        if self._console is None:
            return EOF
        try:
            prompt = f"[{mesh_name(question.mesh)} {question.rank} {question.place}] (Pdb) "
            return PromptAnswer("text", self._console.ask(question.prompt, prompt))
        except EOFError:
            console, self._console = self._console, None  # the next rank that stops opens a terminal again
            console.close()
            return EOF


def _is_same(question: PromptQuestion, other: PromptQuestion | None) -> bool:
    return other is not None and (question.mesh, question.rank) == (other.mesh, other.rank)


def serve_terminal(root: Path, listening: Callable[[], object] = lambda: None) -> None:
    """Serve as the second terminal of this user's scripts, until interrupted. RuntimeError if another one runs."""
    path = root / DEBUGGER_SOCKET
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if probe.connect_ex(str(path)) == 0:
            raise RuntimeError("`meshbook debug` is already running in another terminal")
    path.unlink(missing_ok=True)  # left by a terminal that was killed
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        listening()
        try:
            while True:
                connection, _ = listener.accept()
                # A script that is killed resets the connection. The next script gets this terminal.
                with (
                    contextlib.suppress(ConnectionError),
                    connection,
                    connection.makefile("rw", encoding="utf-8") as script,
                ):
                    _converse(script)
        finally:
            path.unlink(missing_ok=True)


def _converse(script: io.TextIOBase) -> None:
    """Enter the commands of one script until it ends."""
    for line in script:
        text, prompt = json.loads(line)
        print(text, end="", flush=True)
        try:
            entered: str | None = input(prompt)
        except EOFError:
            entered = None
            print()
        script.write(json.dumps(entered) + "\n")
        script.flush()
