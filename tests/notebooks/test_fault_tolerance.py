"""The notebook on faults runs from its first cell to its last, and what it promises comes out."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "fault_tolerance.ipynb"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
pytestmark = [pytest.mark.kernel, pytest.mark.timeout(300)]


def texts(notebook: nbformat.NotebookNode) -> dict[str, str]:
    """What a person reads below each cell, by the cell's id."""
    return {
        cell.id: COLOURS.sub("", "\n".join(map(text_of, cell.outputs)))
        for cell in notebook.cells
        if cell.cell_type == "code"
    }


def text_of(output: Any) -> str:
    if output.output_type == "stream":
        return str(output.text)
    if output.output_type == "error":
        return "\n".join(output.traceback)
    return str(output.data.get("text/plain", ""))


@pytest.mark.usefixtures("sklearn_once")
def test_it_runs_and_shows_what_it_promises(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(
        notebook, timeout=120, kernel_name="meshbook", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()  # raises where a cell fails that is not marked for it
    shown = texts(notebook)

    failing = {cell.id for cell in notebook.cells if "raises-exception" in cell.metadata.get("tags", ())}
    failed = {
        cell.id for cell in notebook.cells if any(each.output_type == "error" for each in cell.get("outputs", ()))
    }
    assert failed == failing == {"killed", "stuck"}
    assert re.search(r"rank 2 \(pid \d+\) died during the cell: SIGKILL", shown["killed"])
    assert "rank 2 dead" in shown["status-dead"]
    assert "rank 2 is back" in shown["heal"]
    assert (shown["generation"], shown["group-again"]) == ("2", "3")
    assert "[0-3] 10" in shown["resume"]
    assert re.search(r"3 ranks \[0-2\] in barrier", shown["stuck"])
    assert "[1, 101]" in shown["actors"]
    assert "sig=9" in shown["seen"]
    assert "[101, 1]" in shown["policy"]

    summary = json.loads(shown["sum-up"].partition("summary: ")[2])
    assert summary["epochs"] == [*range(12), *range(10, 25)]
    assert summary["repeated_loss_differs_by"] < 1e-4
    assert min(summary["accuracies"]) > 0.9
    assert {"failed", "healed", "respawned"} <= set(summary["kinds"])
    assert list(tmp_path.iterdir()) == []
