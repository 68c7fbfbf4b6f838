"""Holds the tables of `docs/` to the tests: each row names those that show it, and they are there.

Who adds a row names the file as a link, and after it each of its tests.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
HEADINGS = ("what", "what happens")
# How many rows each page has: one that nobody shows any more must not just go.
ROWS = {"faults.md": 26, "notebook.md": 47}
Row = tuple[str, str, str]


def rows_of(page: str) -> list[Row]:
    """The page, the subject and the last column of each row."""
    lines = [line.strip("|\n").split(" | ") for line in (DOCS / page).read_text().splitlines() if line.startswith("| ")]
    return [(page, subject.strip(), shown) for subject, _, shown in lines if subject.strip() not in HEADINGS]


ALL_ROWS = [row for page in ROWS for row in rows_of(page)]


def named_tests(shown: str) -> list[tuple[Path, str]]:
    """The tests that a last column names: each belongs to the link before it."""
    found: list[tuple[Path, str]] = []
    file = DOCS
    for link, test in re.findall(r"\]\((\S+?)\)|`(test_\w+)`(?!\])", shown):
        if link:
            file = (DOCS / link).resolve()
        else:
            found.append((file, test))
    return found


@functools.cache
def defined_in(file: Path) -> frozenset[str]:
    return frozenset(node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize(("page", "count"), ROWS.items())
def test_no_row_is_gone_or_there_twice(page: str, count: int) -> None:
    subjects = [subject for _, subject, _ in rows_of(page)]
    assert len(subjects) == len(set(subjects)) == count


@pytest.mark.parametrize("row", ALL_ROWS, ids=lambda row: row[1])
def test_every_row_is_shown_by_tests(row: Row) -> None:
    named = named_tests(row[2])
    assert named
    for file, test in named:
        assert test in defined_in(file), f"{file.name} has no {test}"
