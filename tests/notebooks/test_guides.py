"""The notebooks on hangs run, and what they promise comes out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
MACHINE = re.compile(r"/(?:home|root|tmp|Users|var|work)/\S*")


def check_debugging_a_hang(page: Any, summary: dict[str, Any]) -> None:
    shown = page.shown
    assert shown["wait"] == "False"
    assert re.search(r"rank 2 done, 3 ranks \[0-1,3\] in all_reduce \(cell \d+:4\)", shown["jobs"])
    assert "all_reduce" in shown["stack"]
    assert "interrupted 3 ranks [0-1,3], rank 2 idle" in shown["interrupt"]
    assert "3 running" in shown["interrupt"]
    assert "ranks 0-3 run no cell" in shown["break"]
    assert "interrupted; ranks 0-1,3 were at cell" in shown["result"]
    assert "19 batches, 19 steps" in shown["find"]
    assert "weights is the same on ranks 0-3" in shown["diff"]
    assert summary["steps"] == [114] * 4
    assert max(summary["errors"]) < 0.05


CHECKS: dict[str, Callable[[Any, dict[str, Any]], None]] = {
    "debugging_a_hang": check_debugging_a_hang,
}


def check(name: str, page: Any) -> None:
    """What the notebook promises is there."""
    assert page.failed == page.may_fail
    CHECKS[name](page, json.loads(page.shown["sum-up"].partition("summary: ")[2]))


@pytest.mark.kernel
@pytest.mark.timeout(300)
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
