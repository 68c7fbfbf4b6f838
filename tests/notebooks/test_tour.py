"""The tour runs from its first cell to its last, and reads well as the page that is committed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "tour.ipynb"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def cells_of(notebook: nbformat.NotebookNode) -> dict[str, Any]:
    return {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}


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
    """What the tour promises is there."""
    cells = cells_of(notebook)
    failed = {name for name, cell in cells.items() if any(each.output_type == "error" for each in cell.outputs)}
    assert failed == {name for name in cells if name.startswith("fails-")}
    shown = {name: text_of(cell) for name, cell in cells.items()}
    promised = {
        "start": "mesh: 4 ranks (gpus=4)",
        "cell": "[3] tensor([0, 3, 6])",
        "output": "[2] and this is rank 2",
        "bars": "[0-3] epoch: 100%",
        "results": "[3] min 3  mean 3  max 3",
        "fails-errors": "[rank 1] ZeroDivisionError: division by zero",
        "failed": "[1] 100.0",
        "push": "[3] [0.4]",
        "pulled": "[0.1, 0.2, 0.3, 0.4]",
        "whos": "(2, 2) float32 cpu",
        "diff": "largest difference 3",
        "jobs": "job 1 of cell",
        "awaited": "[3] 300",
        "first": "[0] False\n[1-3] True",
        "mode-cell": "[3] 1003",
        "mode-here": "False",
        "mode-off": "[0] rank 0\n[1] rank 1",
        "inspect": "[0-3] File:      cell 10\n",
        "fails-timeout": "3 ranks [0-2] in barrier",
        "trace": "for rank 3 in all_reduce",
        "redefined": "[11, 21, 31, 41]",
        "fails-killed": "SIGKILL",
        "dash": "1 dead (X)",
        "heal": "rank 2 is back",
        "resize": "2 ranks (gpus=2)",
    }
    assert {name: text for name, text in promised.items() if text not in shown[name]} == {}


@pytest.mark.kernel
def test_it_runs_and_shows_what_it_promises(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(
        notebook, timeout=60, kernel_name="meshbook", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()  # raises where a cell fails that is not marked for it
    check(notebook)
    assert list(tmp_path.iterdir()) == []


def test_the_page_that_is_committed_has_its_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    check(notebook)
    numbers = [cell.execution_count for cell in cells_of(notebook).values()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert NOTEBOOK.stat().st_size < 400_000
