"""The controller's side of breakpoints in scripts: which rank has the terminal."""

from __future__ import annotations

import queue
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from meshbook.runtime.hosts import script_debugger as module
from meshbook.runtime.hosts.script_debugger import DEBUGGER_SOCKET, ScriptDebugger, serve_terminal
from meshbook.runtime.telemetry.prompt_questions import Kind, PromptAnswer, PromptQuestion
from tests.support import PATIENCE


class Person:
    """Is asked, and answers what the test says."""

    def __init__(self) -> None:
        self.asked: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self.lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def ask(self, text: str, prompt: str) -> str:
        self.asked.put((text, prompt))
        if (line := self.lines.get(timeout=PATIENCE)) is None:
            raise EOFError
        return line

    def close(self) -> None: ...


class Ranks:
    """What ranks of a mesh ask, and what they are answered."""

    def __init__(self, debugger: ScriptDebugger) -> None:
        self.debugger = debugger
        self.answers: queue.SimpleQueue[tuple[int, PromptAnswer]] = queue.SimpleQueue()

    def ask(self, rank: int, kind: Kind = "command", text: str = "") -> None:
        question = PromptQuestion("", "trainers-1f", rank, 1, kind, text, "script.py:7 in step")
        self.debugger.take(question, lambda answer: self.answers.put((rank, answer)))

    def answer(self) -> tuple[int, PromptAnswer]:
        return self.answers.get(timeout=PATIENCE)


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> Person:
    made = Person()
    monkeypatch.setattr(module, "open_console", lambda root: made)
    return made


@pytest.fixture
def ranks(tmp_path: Path) -> Any:
    debugger = ScriptDebugger(lambda: tmp_path)
    yield Ranks(debugger)
    debugger.close()


def test_a_rank_keeps_the_terminal_while_it_has_more_to_ask(
    ranks: Ranks, person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HOLD", PATIENCE)
    for rank in (0, 1):
        ranks.ask(rank, "stop")
        assert ranks.answer() == (rank, PromptAnswer("text", "stop"))
    ranks.ask(0, text="first\n")
    assert person.asked.get(timeout=PATIENCE) == ("first\n", "[trainers 0 script.py:7 in step] (Pdb) ")
    ranks.ask(1)
    person.lines.put("n")
    assert ranks.answer() == (0, PromptAnswer("text", "n"))
    ranks.ask(0, text="second\n")
    assert person.asked.get(timeout=PATIENCE)[0] == "second\n"
    assert {rank for _, rank, _ in ranks.debugger.stopped()} == {0, 1}
    person.lines.put("c")
    assert ranks.answer() == (0, PromptAnswer("text", "c"))


def test_another_rank_has_it_then(ranks: Ranks, person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HOLD", 0.01)
    ranks.ask(0, "stop")
    ranks.answer()
    for rank in (0, 1):
        ranks.ask(rank)
    for rank in (0, 1):
        assert person.asked.get(timeout=PATIENCE)[1].startswith(f"[trainers {rank} ")
        person.lines.put("c")
        assert ranks.answer() == (rank, PromptAnswer("text", "c"))


def test_the_end_of_all_input_ends_the_debugger_of_the_rank(ranks: Ranks, person: Person) -> None:
    ranks.ask(0, "stop")
    ranks.answer()
    ranks.ask(0)
    person.lines.put(None)
    assert ranks.answer()[1].kind == "eof"


def test_without_a_terminal_a_rank_is_refused(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "open_console", lambda root: None)
    ranks.ask(0, "stop")
    _, answer = ranks.answer()
    assert answer.kind == "refused"
    assert "run `meshbook debug`" in answer.text


def test_the_second_terminal_serves_the_next_script_after_one_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A killed script resets its connection, with an answer that it has not read, or before one is written."""
    listening, asked, may_answer = threading.Event(), threading.Event(), threading.Event()

    def answer(prompt: str) -> str:
        asked.set()
        may_answer.wait(PATIENCE)
        return "next"

    monkeypatch.setattr("builtins.input", answer)
    terminal = threading.Thread(target=serve_terminal, args=(tmp_path, listening.set), daemon=True)
    terminal.start()
    assert listening.wait(PATIENCE)
    killed = _connect(tmp_path)
    killed.sendall(b'["", "(Pdb) "]\n["", "(Pdb) "]\n')
    assert asked.wait(PATIENCE)
    killed.close()
    may_answer.set()
    with _connect(tmp_path) as script:
        script.sendall(b'["", "(Pdb) "]\n')
        assert script.recv(100) == b'"next"\n'
    assert terminal.is_alive()


def _connect(folder: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(PATIENCE)
    connection.connect(str(folder / DEBUGGER_SOCKET))
    return connection
