"""Checks the documents: the tests that a table names exist, and so do all linked and named files.

A row names the test file as a link, followed by each of its tests.
"""

from __future__ import annotations

import ast
import functools
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/**/*.md"),
    ROOT / "tests/README.md",
    *ROOT.glob("runtime/*/README.md"),
    *ROOT.glob("benchmarks/results/*.md"),
]
HEADINGS = ("what", "what happens")
# The number of rows of each page, so that no row disappears by accident.
ROWS = {"docs/faults.md": 27, "tests/README.md": 48}
Row = tuple[str, str, str]


def rows_of(page: str) -> list[Row]:
    """Return the page, the subject and the last column of each row."""
    lines = [line.strip("|\n").split(" | ") for line in (ROOT / page).read_text().splitlines() if line.startswith("| ")]
    return [(page, line[0].strip(), line[-1]) for line in lines if line[0].strip() not in HEADINGS]


ALL_ROWS = [row for page in ROWS for row in rows_of(page)]


def named_tests(page: str, shown: str) -> list[tuple[Path, str]]:
    """Return the tests that a last column names, each with the file of the link before it."""
    found: list[tuple[Path, str]] = []
    file = folder = (ROOT / page).parent
    for link, test in re.findall(r"\]\((\S+?)\)|`(test_\w+)`(?!\])", shown):
        if link:
            file = (folder / link).resolve()
        else:
            found.append((file, test))
    return found


@functools.cache
def defined_in(file: Path) -> frozenset[str]:
    return frozenset(node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize(("page", "count"), ROWS.items())
def test_no_row_is_missing_or_duplicated(page: str, count: int) -> None:
    subjects = [subject for _, subject, _ in rows_of(page)]
    assert len(subjects) == len(set(subjects)) == count


@pytest.mark.parametrize("row", ALL_ROWS, ids=lambda row: row[1])
def test_every_row_names_existing_tests(row: Row) -> None:
    named = named_tests(row[0], row[2])
    assert named
    for file, test in named:
        assert test in defined_in(file), f"{file.name} has no {test}"


def anchors_of(document: Path) -> set[str]:
    """Return the anchors of a page: of its headings, as GitHub makes them, its own, and the site's of docstrings."""
    text = document.read_text()
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
    return anchors.union(re.findall(r'<a id="(.+?)">', text), re.findall(r"^::: (\S+)$", text, re.MULTILINE))


def name_of(document: Path) -> str:
    return str(document.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_link_leads_somewhere(document: Path) -> None:
    for link in re.findall(r"\]\((?!https?://)([^)\s]+)\)", document.read_text()):
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target), link


@pytest.mark.parametrize("document", [ROOT / "ARCHITECTURE.md", *ROOT.glob("runtime/*/README.md")], ids=name_of)
def test_every_named_file_exists(document: Path) -> None:
    for name in re.findall(r"`([\w./-]+\.(?:py|md|js))`", document.read_text()):
        near = document.parent.glob(f"**/{name}") if "/" not in name else []
        assert any(near) or (ROOT / name).exists() or (document.parent / name).exists(), name


def test_the_reference_of_options_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "docs/write_options.py"))
    assert (ROOT / "docs/options.md").read_text() == script["reference"](), "run python docs/write_options.py"


def test_the_manifest_for_kubernetes_is_valid() -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    yaml = pytest.importorskip("yaml")
    documents = list(yaml.safe_load_all((ROOT / "docs" / "kubernetes.yaml").read_text()))
    assert [each["kind"] for each in documents] == ["Service", "Deployment", "StatefulSet"]
    for document in documents:
        validate(document, "1.37", strict=True)
