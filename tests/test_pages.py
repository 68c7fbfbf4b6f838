"""Holds `docs/faults.md`: each thing that may break has its row there, and each row the tests that show it.

A new row comes with its tests, in a file beside this one: `test_workers.py` and `test_controller.py` are of processes
that die. Who adds a row names the file as a link, and after it each of its tests.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "faults.md"
# What the page has to speak of; a row that nobody shows any more must not just go.
SUBJECTS = {
    "An endpoint raises",
    "A worker is killed, segfaults, aborts, exits",
    "A rank runs out of memory",
    "A rank is stuck in a collective",
    "A rank is healed, and others die meanwhile",
    'A rank dies in a mesh with `on_failure="respawn"`',
    "The owner of a mesh dies while it heals",
    "The host agent dies",
    "A host is cut off, or does not answer",
    "The network between hosts is cut for less than that, or a process is stopped or busy",
    "A stranger connects, or sends garbage",
    "The controller is killed",
    "The controller goes on purpose (`%mesh detach`, `meshbook.runs.detach`)",
    "A receiver is slow, stopped or killed, and 100,000 messages are on the way",
    "A message cannot be pickled or unpickled, or is too large",
    "Too few open files, processes or threads",
    "The disk is full, there is no /dev/shm",
    "10^6 lines of output from each rank",
    "Much of this at once",
}


def rows() -> dict[str, str]:
    """The subjects of the table, each with its last column."""
    lines = [line.strip("| \n").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    found = {subject: shown for subject, _, shown in lines[1:]}
    assert len(found) == len(lines) - 1, "a subject has two rows"
    return found


def named_tests(shown: str) -> list[tuple[Path, str]]:
    """The tests that a last column names: each belongs to the link before it."""
    found: list[tuple[Path, str]] = []
    file = PAGE
    for link, test in re.findall(r"\]\((\S+?)\)|`(test_\w+)`(?!\])", shown):
        if link:
            file = (PAGE.parent / link).resolve()
        else:
            found.append((file, test))
    return found


def test_every_subject_has_its_row() -> None:
    assert set(rows()) == SUBJECTS


@pytest.mark.parametrize("subject", sorted(SUBJECTS))
def test_every_row_is_shown_by_tests(subject: str) -> None:
    named = named_tests(rows()[subject])
    assert named
    for file, test in named:
        defined = {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}
        assert test in defined, f"{file.name} has no {test}"
