"""The command line `python -m meshbook.monarch`, up to where it becomes another program."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from meshbook.monarch.__main__ import interpreter_flags, main

NAME = "meshbook.monarch"


@pytest.mark.parametrize(
    ("command", "count", "flags"),
    [
        (["-m", NAME], 0, []),
        (["-m", NAME, "s.py"], 1, []),
        (["-u", "-X", "dev", "-m", NAME, "s.py", "-m", NAME], 3, ["-u", "-X", "dev"]),
        (["-uOm", NAME, "s.py"], 1, ["-uO"]),
        (["-W", "error", f"-m{NAME}", "s.py", "a"], 2, ["-W", "error"]),
        (["-B", f"-um{NAME}", "s.py"], 1, ["-B", "-u"]),
    ],
)
def test_the_flags_of_python_are_passed_on(command, count, flags):
    assert interpreter_flags(command, count) == flags


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help(capsys, option):
    assert main([option]) == 0
    assert "script.py [arguments]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "a script or a module is required"),
        (["-m"], "a script or a module is required"),
        (["-c", "pass"], "unknown option -c"),
        (["missing.py", "--help"], "no script 'missing.py' in /"),
    ],
)
def test_a_mistake_is_said_and_ends_with_status_2(capsys, monkeypatch, tmp_path, arguments, said):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert f"python -m meshbook.monarch: {said}" in capsys.readouterr().err


@pytest.mark.parametrize("other", ["monarch.py", "monarch/__init__.py"])
@pytest.mark.parametrize("arguments", [["script.py"], ["-m", "script"]])
def test_another_monarch_beside_the_program_is_said(capsys, monkeypatch, tmp_path, other, arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "monarch").mkdir()
    for name in (other, "script.py"):
        Path(name).write_text("")
    assert main(arguments) == 2
    assert f"import the `monarch` in {tmp_path}" in capsys.readouterr().err


def test_a_python_that_ignores_the_environment_is_said(capsys, monkeypatch, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("")

    class Flags:
        ignore_environment = True
        safe_path = False

    monkeypatch.setattr(sys, "flags", Flags())
    assert main([str(script)]) == 2
    assert "ignore PYTHONPATH" in capsys.readouterr().err
