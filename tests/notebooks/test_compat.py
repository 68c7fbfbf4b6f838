"""Notebooks as people write them for ipyparallel and nbdistributed run, with one line at their head."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
pytestmark = pytest.mark.kernel


def shown_by(name: str, folder: Path) -> dict[str, str]:
    """Run the notebook with the kernel that it names; what a person reads below each cell, by the cell's id."""
    notebook = nbformat.read(FOLDER / name, as_version=4)
    NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(folder)}}).execute()
    return {cell.id: "".join(map(text_of, cell.outputs)) for cell in notebook.cells if cell.cell_type == "code"}


def text_of(output: Any) -> str:
    if output.output_type == "stream":
        return str(output.text)
    if output.output_type == "error":
        return COLOURS.sub("", "\n".join(output.traceback))
    return str(output.data.get("text/plain", ""))


def test_views_of_ipyparallel(tmp_path: Path) -> None:
    shown = shown_by("ipyparallel_views.ipynb", tmp_path)
    assert shown["cluster"] == "[0, 1, 2, 3]"
    assert shown["apply"] == "[(True, 0), (True, 10), (True, 20), (True, 30)]"
    assert shown["dictionary"] == "([5, 5, 5, 5], [1, 2], [[5, [1, 2]], [5, [1, 2]]])"
    parts = [list(range(start, start + 4)) for start in (0, 4, 8, 12)]
    assert re.sub(r"\s+", " ", shown["scatter"]) == f"({parts}, 120, {list(range(16))})"
    assert shown["imports"] == "import random on 4 ranks\nTrue"
    assert shown["later"] == "(True, [0, 1, 4, 9, 16, 25, 36, 49])"
    assert shown["balanced"] == "[0, 1, 2, 0, 1, 2, 0, 1, 2]"
    assert shown["decorated"] == "[15, 15, 15, 15]"
    assert shown["caught"] == "[ranks 0-3] ZeroDivisionError: division by zero\n"
