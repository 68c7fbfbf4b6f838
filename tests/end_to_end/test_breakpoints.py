"""`breakpoint()` in actors of scripts: on the script's terminal, on a second one, and without any."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import PATIENCE

pytestmark = [pytest.mark.process, pytest.mark.without_torch]
SCRIPT = """
from meshbook import Actor, ActorError, endpoint, this_host

class Trainer(Actor):
    @endpoint
    def step(self, value: int) -> int:
        breakpoint()
        value += 1
        return value

class AsyncTrainer(Actor):
    @endpoint
    async def step_async(self, value: int) -> int:
        breakpoint()
        value += 1
        return value

trainers = this_host().spawn_procs(per_host={"gpus": 1}, name="trainers")
for step in (trainers.spawn("trainer", Trainer).step, trainers.spawn("trainer", AsyncTrainer).step_async):
    try:
        print("answer", step.call_one(1).get(), flush=True)
    except ActorError as error:
        print("error", error, flush=True)
"""


class Terminal:
    """A person at a terminal that a process has."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | environment, start_new_session=True
        )
        os.close(theirs)
        self._read = ""

    def wait_for(self, text: str) -> str:
        """Read until this is shown, and return what came before it."""
        while text not in self._read:
            piece = b""
            with contextlib.suppress(OSError):  # the other side is closed
                piece = os.read(self._ours, 4096)
            assert piece, f"{text!r} does not come after {self._read!r}"
            self._read += piece.decode()
        before, _, self._read = self._read.partition(text)
        return before

    def enter(self, line: str) -> None:
        os.write(self._ours, f"{line}\n".encode())

    def close(self) -> None:
        with self.process:
            self.process.kill()
        os.close(self._ours)


@pytest.fixture
def open_terminal(runtime_dir: Path) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def run(*command: str) -> Terminal:
        opened.append(Terminal([sys.executable, *command], {"MESHBOOK_RUNTIME_DIR": str(runtime_dir)}))
        return opened[-1]

    yield run
    for terminal in opened:
        terminal.close()


def debug(terminal: Terminal) -> None:
    """Change the value in both endpoints."""
    for function in ("step", "step_async"):
        terminal.wait_for(f" in {function}] (Pdb) ")
        terminal.enter("p value + 40")
        assert "41" in terminal.wait_for(f" in {function}] (Pdb) ")
        terminal.enter("value = 10")
        terminal.wait_for("(Pdb) ")
        for _ in range(2 if sys.version_info >= (3, 13) else 1):  # from 3.13 on, the first stop is at `breakpoint()`
            terminal.enter("n")
            terminal.wait_for("(Pdb) ")
        terminal.enter("p value")
        assert "11" in terminal.wait_for("(Pdb) ")
        terminal.enter("c")


def test_a_script_on_a_terminal_opens_the_debugger_there(
    open_terminal: Callable[..., Terminal], tmp_path: Path
) -> None:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    terminal = open_terminal(str(file))
    debug(terminal)
    assert terminal.process.wait(PATIENCE) == 0
    assert "answer 11" in terminal.wait_for("answer 11\r\n") + "answer 11"


def test_quitting_is_an_error_of_the_call(open_terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    terminal = open_terminal(str(file))
    terminal.wait_for("] (Pdb) ")
    terminal.enter("q")
    terminal.wait_for("BdbQuit")
    terminal.wait_for("in step_async] (Pdb) ")
    terminal.enter("c")
    terminal.wait_for("answer 2")


def test_a_second_terminal_takes_the_commands(
    open_terminal: Callable[..., Terminal], run_script: Callable[..., Any]
) -> None:
    second = open_terminal("-m", "meshbook", "debug")
    second.wait_for("waiting for an actor")
    script = run_script(SCRIPT)
    debug(second)
    assert [script.read_line() for _ in range(2)] == ["answer 11", "answer 11"]
    refused = open_terminal("-m", "meshbook", "debug")
    refused.wait_for("already running in another terminal")
    assert refused.process.wait(PATIENCE) == 1


def test_without_a_terminal_the_error_says_what_to_do(run_script: Callable[..., Any]) -> None:
    script = run_script(SCRIPT)
    line = script.read_line()
    assert line.startswith("error trainer.step() on rank")
    assert "the script has no terminal" in line
    assert "`meshbook debug` in another terminal" in line
