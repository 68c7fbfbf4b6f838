"""The notebook on one-sided transfers runs from its first cell to its last, and what it promises comes out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "parameter_server.ipynb"


def check(page: Any) -> None:
    """What it promises is there."""
    shown = page.shown
    assert page.failed == {"drop"}
    assert "BufferDropped" in shown["drop"]
    assert "-> process memory" in shown["explain"]
    assert re.search(r"rank 3 +rank 0 +process memory +write", shown["transfers"])
    assert all("image/png" in page.cells[name].outputs[0].data for name in ("curve", "matrix"))
    summary = json.loads(shown["sum-up"].partition("summary: ")[2])
    assert summary["accuracy"] >= 0.95
    assert summary["steps"] == 1350
    assert summary["moved_by_the_server"] == 0
    assert summary["moved_by_workers_MB"] == round(2 * 1350 * 153_640 / 1e6)
    assert summary["server_was_busy"]


@pytest.mark.kernel
@pytest.mark.long
@pytest.mark.usefixtures("sklearn_once")
def test_it_runs_and_shows_what_it_promises(executed: Callable[[Path], Any], tmp_path: Path) -> None:
    check(executed(NOTEBOOK))
    assert list(tmp_path.iterdir()) == []


def test_the_page_that_is_committed_has_its_outputs(committed: Callable[[Path], Any]) -> None:
    check(committed(NOTEBOOK))
