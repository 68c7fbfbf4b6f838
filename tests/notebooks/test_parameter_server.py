"""The notebook on one-sided transfers runs from its first cell to its last, and what it promises comes out."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "parameter_server.ipynb"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def text_of(cell: Any) -> str:
    """What a person reads below a cell."""
    return COLOURS.sub("", "\n".join(map(_text_of_output, cell.outputs)))


def _text_of_output(output: Any) -> str:
    if output.output_type == "stream":
        return str(output.text)
    if output.output_type == "error":
        return "\n".join(output.traceback)
    return str(output.data.get("text/plain", ""))


def check(notebook: nbformat.NotebookNode) -> None:
    """What it promises is there."""
    cells = {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}
    shown = {name: text_of(cell) for name, cell in cells.items()}
    failed = {name for name, cell in cells.items() if any(each.output_type == "error" for each in cell.outputs)}
    assert failed == {"drop"}
    assert "BufferDropped" in shown["drop"]
    assert "-> process memory" in shown["explain"]
    assert re.search(r"rank 3 +rank 0 +process memory +write", shown["transfers"])
    assert all("image/png" in cells[name].outputs[0].data for name in ("curve", "matrix"))
    summary = json.loads(shown["sum-up"].partition("summary: ")[2])
    assert summary["accuracy"] >= 0.95
    assert summary["steps"] == 1350
    assert summary["moved_by_the_server"] == 0
    assert summary["moved_by_workers_MB"] == round(2 * 1350 * 153_640 / 1e6)
    assert summary["server_was_busy"]


@pytest.mark.kernel
@pytest.mark.usefixtures("sklearn_once")
def test_it_runs_and_shows_what_it_promises(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(
        notebook, timeout=120, kernel_name="meshbook", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()  # raises where a cell fails that is not marked for it
    check(notebook)
    assert list(tmp_path.iterdir()) == []


def test_the_page_that_is_committed_has_its_outputs() -> None:
    check(nbformat.read(NOTEBOOK, as_version=4))
