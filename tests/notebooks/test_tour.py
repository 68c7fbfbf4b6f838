"""The tour runs from its first cell to its last, and reads well as the page that is committed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "tour.ipynb"


def check(page: Any) -> None:
    """What the tour promises is there."""
    shown = page.shown
    assert page.failed == {name for name in shown if name.startswith("fails-")}
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
        "trace": "least time",
        "redefined": "[11, 21, 31, 41]",
        "fails-killed": "SIGKILL",
        "dash": "1 dead (X)",
        "heal": "it lost ",
        "resize": "2 ranks (gpus=2)",
    }
    assert {name: text for name, text in promised.items() if text not in shown[name]} == {}


@pytest.mark.kernel
def test_it_runs_and_shows_what_it_promises(executed: Callable[[Path], Any], tmp_path: Path) -> None:
    check(executed(NOTEBOOK))
    assert list(tmp_path.iterdir()) == []


def test_the_page_that_is_committed_has_its_outputs(committed: Callable[[Path], Any]) -> None:
    page = committed(NOTEBOOK)
    check(page)
    numbers = [cell.execution_count for cell in page.cells.values()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert NOTEBOOK.stat().st_size < 400_000


def test_the_page_that_is_committed_names_nothing_of_a_machine(committed: Callable[[Path], Any]) -> None:
    page = committed(NOTEBOOK)
    outputs = json.dumps([cell.outputs for cell in page.cells.values()])
    assert re.findall(r"/(?:home|root|tmp|Users|var|work)/\S*", outputs) == []
    assert "\n  localhost  3 idle, 1 dead" in page.shown["dash"]
