"""What type checkers see of a user's program: mypy reads program.py once, and must say what its comments say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")
# Not of workers, but of mypy: it takes seconds.
pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("program.py")
LIMIT = 110.0  # seconds, on a machine that does other things too

_SAID = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+): (?P<kind>note|error): (?P<text>.*)$")
_REVEALED = re.compile(r'^Revealed type is "(?P<type>.*)"$')
_CODE = re.compile(r"\[(?P<code>[\w-]+)\]$")


def expectations(mark: str) -> dict[int, str]:
    lines = enumerate(PROGRAM.read_text(encoding="utf-8").splitlines(), 1)
    return {number: line.partition(mark)[2] for number, line in lines if mark in line and not line.startswith("`")}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[re.Match[str]]:
    cache = tmp_path_factory.mktemp("mypy")
    command = [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={cache}", str(PROGRAM)]
    environment = os.environ | {"MYPYPATH": str(ROOT)}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)
    found = [match for line in run.stdout.splitlines() if (match := _SAID.match(line))]
    assert found, run.stdout + run.stderr
    assert {Path(ROOT, match["file"]) for match in found} == {PROGRAM}, run.stdout
    return found


def test_types(said: list[re.Match[str]]) -> None:
    revealed = {
        int(match["line"]): re.sub(r"(\w+\.)+(?=\w)", "", note["type"])
        for match in said
        if (note := _REVEALED.match(match["text"]))
    }
    assert revealed == expectations("  # -> ")


def test_errors(said: list[re.Match[str]]) -> None:
    codes: dict[int, set[str]] = {}
    for match in said:
        if match["kind"] == "error" and (code := _CODE.search(match["text"])):
            codes.setdefault(int(match["line"]), set()).add(code["code"])
    expected = expectations("  # error: ")
    assert codes.keys() == expected.keys()
    assert {line: code for line, code in expected.items() if code not in codes[line]} == {}
