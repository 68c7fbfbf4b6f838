"""Lines from a terminal. The front end's prompt is in tests/kernel/test_input.py."""

from __future__ import annotations

import io
import os
import pty
import sys
import threading
from collections.abc import Iterator

import pytest

from meshbook.magics.prompts.keyboard import PromptWithdrawn, TerminalKeyboard


class Terminal:
    """A terminal on which a person types; `shown` is what it shows, echo included."""

    def __init__(self) -> None:
        self._master, slave = pty.openpty()
        self.stdin = os.fdopen(slave, "r")

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def shown(self) -> str:
        return os.read(self._master, 4096).decode()

    def close(self) -> None:
        self.stdin.close()
        os.close(self._master)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdin", terminal.stdin)
    yield terminal
    terminal.close()


@pytest.fixture
def withdrawal() -> Iterator[PromptWithdrawn]:
    withdrawal = PromptWithdrawn()
    yield withdrawal
    withdrawal.close()


def test_a_line(terminal: Terminal, withdrawal: PromptWithdrawn, capsys: pytest.CaptureFixture[str]) -> None:
    terminal.type("bob\n")
    assert TerminalKeyboard().ask("[rank 0] name: ", withdrawal, is_password=False) == "bob"
    assert capsys.readouterr().out == "[rank 0] name: "
    assert terminal.shown() == "bob\r\n"


def test_a_password_is_not_shown(
    terminal: Terminal, withdrawal: PromptWithdrawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Screen(io.StringIO):
        """The person types once he sees the prompt."""

        def write(self, text: str) -> int:
            if text.startswith("Password"):
                terminal.type("secret\n")
            return super().write(text)

    monkeypatch.setattr(sys, "stdout", Screen())
    assert TerminalKeyboard().ask("Password: ", withdrawal, is_password=True) == "secret"
    terminal.type("seen\n")
    assert TerminalKeyboard().ask("name: ", withdrawal, is_password=False) == "seen"
    assert "secret" not in terminal.shown()


def test_the_end_of_all_input(terminal: Terminal, withdrawal: PromptWithdrawn) -> None:
    terminal.type("\x04")
    with pytest.raises(EOFError):
        TerminalKeyboard().ask("name: ", withdrawal, is_password=False)


def test_what_is_no_terminal_is_read_to_its_end(withdrawal: PromptWithdrawn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\ntwo"))
    lines = [TerminalKeyboard().ask("?", withdrawal, is_password=False) for _ in range(2)]
    assert lines == ["one", "two"]
    with pytest.raises(EOFError):
        TerminalKeyboard().ask("?", withdrawal, is_password=True)


def test_a_withdrawn_prompt_ends_and_the_next_one_does_not(terminal: Terminal, withdrawal: PromptWithdrawn) -> None:
    threading.Timer(0.01, withdrawal.set).start()
    assert TerminalKeyboard().ask("name: ", withdrawal, is_password=False) is None
    withdrawal.clear()
    terminal.type("x\n")
    assert TerminalKeyboard().ask("name: ", withdrawal, is_password=False) == "x"
