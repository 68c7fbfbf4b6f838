"""The notebooks on tensors, reinforcement learning, sweeps, hangs and slow ranks run and show what they promise."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
MACHINE = re.compile(r"/(?:home|root|tmp(?!/ipykernel_)|Users|var|work)/\S*")  # a kernel names its cells by such files
PICTURES = {"pipeline_parallel": {"curve", "schedule"}, "distributed_tensors": {"curve"}}


def check_pipeline_parallel(page: Any, summary: dict[str, Any]) -> None:
    assert summary["difference"] < 1e-6
    assert summary["last_loss"] < 0.2 * summary["first_loss"]
    assert summary["transfers"] == 2 * 4  # forward and backward, for each micro-batch
    assert all(peak > 0 for peak in summary["peak_bytes"])


def check_distributed_tensors(page: Any, summary: dict[str, Any]) -> None:
    assert summary["per_rank_difference"] < 1e-5  # the order of sums, over thirty steps
    assert summary["global_difference"] < 1e-5
    assert summary["last_over_first"] < 0.2
    assert summary["sums"] == [1, 5]
    assert summary["product_is_equal"]


def check_reinforcement_learning(page: Any, summary: dict[str, Any]) -> None:
    assert summary["mean_reward"] >= 195
    assert summary["games"] < 3000
    assert summary["healed"] == [1]
    assert "SIGKILL" in page.shown["train"]
    assert "healed" in page.shown["status"]
    assert "generators 1" in page.shown["trace"]
    assert re.search(r"^mean_reward .*notebook: \d+", page.shown["curves"], re.MULTILINE)


def check_hyperparameter_sweep(page: Any, summary: dict[str, Any]) -> None:
    assert summary["trainings"] == 12
    assert summary["best"] > 0.93
    assert len(summary["ranks"]) > 1
    assert summary["handed_out_again"] == 0
    assert page.shown["map"].count("width") == 4
    assert "accuracy/width" in page.shown["curves"]


def check_debugging_a_hang(page: Any, summary: dict[str, Any]) -> None:
    shown = page.shown
    assert shown["wait"] == "False"
    assert re.search(r"rank 2 done, 3 ranks \[0-1,3\] in all_reduce \(cell \d+:4\)", shown["jobs"])
    assert "all_reduce" in shown["stack"]
    assert "interrupted 3 ranks [0-1,3]; rank 2 idle" in shown["interrupt"]
    assert "3 running" in shown["interrupt"]
    assert "ranks 0-3 run no cell" in shown["break"]
    assert "interrupted; ranks 0-1,3 were at cell" in shown["result"]
    assert "19 batches, 19 steps" in shown["find"]
    assert "weights is the same on ranks 0-3" in shown["diff"]
    assert summary["steps"] == [114] * 4
    assert max(summary["errors"]) < 0.05


def check_straggler(page: Any, summary: dict[str, Any]) -> None:
    shown = page.shown
    assert "for rank 2 in all_reduce" in shown["trace"]
    assert "rank 2 diverges" in shown["curves"]
    assert "parse (cell" in shown["profile"]
    assert "[2] (144, CacheInfo(hits=0" in shown["why"]
    before, after = ([each["load_ms"] for each in summary[when]] for when in ("before", "after"))
    assert before[2] > 3 * median(before)
    assert after[2] < before[2] / 3


CHECKS: dict[str, Callable[[Any, dict[str, Any]], None]] = {
    "pipeline_parallel": check_pipeline_parallel,
    "distributed_tensors": check_distributed_tensors,
    "reinforcement_learning": check_reinforcement_learning,
    "hyperparameter_sweep": check_hyperparameter_sweep,
    "debugging_a_hang": check_debugging_a_hang,
    "straggler": check_straggler,
}


def has_picture(cell: Any) -> bool:
    return any("image/png" in each.get("data", {}) for each in cell.outputs)


def check(name: str, page: Any) -> None:
    """What the notebook promises is there."""
    assert page.failed == page.may_fail
    if name in PICTURES:
        assert {cell.id for cell in page.cells.values() if has_picture(cell)} == PICTURES[name]
    CHECKS[name](page, json.loads(page.shown["sum-up"].partition("summary: ")[2]))


@pytest.mark.kernel
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("sklearn_once")
@pytest.mark.parametrize("name", CHECKS)
def test_it_runs_and_shows_what_it_promises(name: str, executed: Callable[[Path], Any], tmp_path: Path) -> None:
    check(name, executed(NOTEBOOKS / f"{name}.ipynb"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", CHECKS)
def test_the_page_that_is_committed_has_its_outputs(name: str, committed: Callable[[Path], Any]) -> None:
    page = committed(NOTEBOOKS / f"{name}.ipynb")
    check(name, page)
    numbers = [cell.execution_count for cell in page.cells.values()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert MACHINE.findall(json.dumps([cell.outputs for cell in page.cells.values()])) == []
