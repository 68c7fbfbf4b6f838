"""The command line `meshbook`: its verbs and their help, completion, and what it rejects."""

from __future__ import annotations

import argparse
import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshbook.__main__ import main
from meshbook.cli.batch_notebook import read_parameter
from meshbook.cli.command_line import build_parser

VERBS = "lab run export runs attach end trace debug explain doctor worker install uninstall completion"


def verbs() -> Iterator[argparse.ArgumentParser]:
    for action in build_parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.values()


def test_all_verbs_are_there() -> None:
    assert [parser.prog for parser in verbs()] == [f"meshbook {verb}" for verb in VERBS.split()]


@pytest.mark.parametrize("parser", [build_parser(), *verbs()], ids=lambda parser: parser.prog)
def test_every_help_has_an_example_that_can_be_parsed(parser: argparse.ArgumentParser) -> None:
    found = (parser.epilog or "").partition("example: meshbook ")[2].partition(" > ")[0]
    assert found
    assert found in " ".join(parser.format_help().split())
    build_parser().parse_args(found.split())


@pytest.mark.process
def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys, contextlib, meshbook.__main__ as m\n"
        "with contextlib.suppress(SystemExit): m.main(['run', '--help'])\n"
        "print(*{'torch', 'IPython', 'numpy', 'jupyter_client', 'shtab'} & set(sys.modules), sep=',')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == ""


def test_explain_prints_a_section(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["explain", "GroupError"]) == 0
    heading, empty, *lines = capsys.readouterr().out.splitlines()
    assert (heading, empty) == ("GroupError", "")
    assert 40 < max(map(len, lines)) <= 60


def test_a_stream_that_is_ascii_gets_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(data := io.BytesIO(), encoding="ascii"))
    assert main(["explain", "GroupError"]) == 0
    print("caf\xe9", flush=True)
    assert data.getvalue().endswith(rb"caf\xe9" + b"\n")


@pytest.mark.process
@pytest.mark.without_torch
def test_a_command_whose_output_has_no_reader_ends_without_a_traceback() -> None:
    """As in `meshbook explain | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "meshbook", "explain"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_explain_without_a_name_lists_the_sections(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    assert re.search(r"^launcherror +A host agent", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize(("shell", "word"), [("bash", "-F _shtab_meshbook meshbook"), ("zsh", "#compdef meshbook")])
def test_completion(shell: str, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    code = capsys.readouterr().out
    assert word in code
    assert "uninstall" in code
    assert "grouperror" in code


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "none.ipynb"], "no such file: none.ipynb"),
        (["run", "none.py", "1"], "meshbook: error: no such file: none.py"),
        (["run", "{notebook}", "-o", "out.html"], "-o must be another file"),
        (["run", "{notebook}", "-o", "{notebook}"], "-o must be another file"),
        (["run", "{notebook}", "-o", "nowhere/out.ipynb"], "no such folder"),
        (["run", "{notebook}", "-p", "lr"], "must be NAME=VALUE, not 'lr'"),
        (["run", "{notebook}", "extra"], "unknown argument: extra"),
        (["run", "{notebook}", "--name", "a"], "--name is the name of the mesh of --hosts and --gpus"),
        (["run", "{notebook}", "--curves", "a.csv"], "-m and --curves are for scripts"),
        (["run", "-p", "lr=1", "train.py"], "are for notebooks"),
        (["explain", "groperror"], "no section is about 'groperror'; did you mean grouperror"),
        (["run", "--gpus", "0", "{notebook}"], "must be an integer of at least 1"),
    ],
)
def test_mistakes(words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.ipynb").touch()
    with pytest.raises(SystemExit) as caught:
        main([word.format(notebook=tmp_path / "a.ipynb") for word in words])
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("lr=1e-3", 1e-3),
        ("steps=10", 10),
        ("amp=true", True),
        ("amp=False", False),
        ("none=null", None),
        ("sizes=[1, 2]", [1, 2]),
        ("path=a=b", "a=b"),
        ("empty=", ""),
    ],
)
def test_values_of_parameters(text: str, value: object) -> None:
    assert read_parameter(text) == (text.partition("=")[0], value)


@pytest.mark.process
def test_lab_passes_its_options_on() -> None:
    command = [sys.executable, "-m", "meshbook", "lab", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout[0].isdecimal()
