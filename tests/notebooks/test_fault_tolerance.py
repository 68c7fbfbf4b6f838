"""The notebook on faults runs from its first cell to its last, and what it promises comes out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "fault_tolerance.ipynb"


@pytest.mark.kernel
@pytest.mark.long
@pytest.mark.usefixtures("sklearn_once")
def test_it_runs_and_shows_what_it_promises(executed: Callable[[Path], Any], tmp_path: Path) -> None:
    page = executed(NOTEBOOK)
    shown = page.shown
    assert page.failed == page.may_fail == {"killed", "stuck"}
    assert re.search(r"rank 2 \(pid \d+\) died during the cell: SIGKILL", shown["killed"])
    assert "rank 2 dead" in shown["status-dead"]
    assert "it lost " in shown["heal"]
    assert (shown["generation"], shown["group-again"]) == ("2", "")
    assert "[0-3] 10" in shown["resume"]
    assert re.search(r"3 ranks \[0-2\] in barrier", shown["stuck"])
    assert "[1, 101]" in shown["actors"]
    assert "sig=9" in shown["seen"]
    assert "[101, 1]" in shown["policy"]

    summary = json.loads(shown["sum-up"].partition("summary: ")[2])
    assert summary["generation"] == 3
    assert summary["epochs"] == [*range(12), *range(10, 25)]
    assert summary["repeated_loss_differs_by"] < 1e-4
    assert min(summary["accuracies"]) > 0.9
    assert {"failed", "healed", "respawned"} <= set(summary["kinds"])
    assert list(tmp_path.iterdir()) == []
