"""The notebooks on tensors run from their first cell to their last, and what they promise comes out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
PICTURES = {"pipeline_parallel": {"curve", "schedule"}, "distributed_tensors": {"curve"}}


def check_pipeline(summary: dict[str, Any]) -> None:
    assert summary["difference"] < 1e-6
    assert summary["last_loss"] < 0.2 * summary["first_loss"]
    assert summary["transfers"] == 2 * 4  # forward and backward, for each micro-batch
    assert all(peak > 0 for peak in summary["peak_bytes"])


def check_views(summary: dict[str, Any]) -> None:
    assert summary["per_rank_difference"] < 1e-5  # the order of sums, over thirty steps
    assert summary["global_difference"] < 1e-5
    assert summary["last_over_first"] < 0.2
    assert summary["sums"] == [1, 5]
    assert summary["product_is_equal"]


CHECKS: dict[str, Callable[[dict[str, Any]], None]] = {
    "pipeline_parallel": check_pipeline,
    "distributed_tensors": check_views,
}


def check(name: str, page: Any) -> None:
    """What the notebook promises is there."""
    assert page.failed == page.may_fail
    pictures = {
        cell.id for cell in page.cells.values() if any("image/png" in each.get("data", {}) for each in cell.outputs)
    }
    assert pictures == PICTURES[name]
    CHECKS[name](json.loads(page.shown["sum-up"].partition("summary: ")[2]))


@pytest.mark.kernel
@pytest.mark.parametrize("name", CHECKS)
def test_it_runs_and_shows_what_it_promises(name: str, executed: Callable[[Path], Any], tmp_path: Path) -> None:
    check(name, executed(NOTEBOOKS / f"{name}.ipynb"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", CHECKS)
def test_the_page_that_is_committed_has_its_outputs(name: str, committed: Callable[[Path], Any]) -> None:
    check(name, committed(NOTEBOOKS / f"{name}.ipynb"))
