"""Notebooks as people write them for ipyparallel and nbdistributed run, with one line at their head."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent
pytestmark = [pytest.mark.kernel, pytest.mark.long]


def test_views_of_ipyparallel(executed: Callable[[Path], Any]) -> None:
    shown = executed(FOLDER / "ipyparallel_views.ipynb").shown
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


def test_magics_of_ipyparallel(executed: Callable[[Path], Any]) -> None:
    shown = executed(FOLDER / "ipyparallel_magics.ipynb").shown
    assert shown["lines"] == "".join(f"[{rank}] engine {rank}\n" for rank in range(4))
    assert shown["cells"] == "[0] 10\n[1] 20\n[2] 30\n[3] 40"
    assert shown["some"] == "[1] b is 20\n[2] b is 30\n"
    assert "[3] late 4\n" in shown["asked"]
    assert shown["asked"].endswith("[0] 1\n[1] 4\n[2] 9\n[3] 16")
    assert shown["kept"] == "[1, 4, 9, 16]"
    assert shown["seen"] == "('only here', [10, 20, 30, 40])"
    assert shown["all"] == "[0] 11\n[1] 21\n[2] 31\n[3] 41"
    assert shown["here"] == "(False, [11, 21, 31, 41])"
    assert shown["fails"].startswith("[rank 2] ZeroDivisionError: division by zero\n")


def test_training_as_with_nbdistributed(executed: Callable[[Path], Any]) -> None:
    shown = executed(FOLDER / "nbdistributed_training.ipynb").shown
    assert shown["hello"] == "[0] Rank 0 of 2, group of 2\n[1] Rank 1 of 2, group of 2\n"
    assert "mean 3" in shown["reduce"]
    assert shown["train"].endswith("[0-1] True")
    assert shown["one"] == "[0] weights [1, 1, 1, 1]\n"
    assert shown["same"] == "[0-1] True"
    assert shown["sync"] == "ranks 0-1 are synchronized\n"
    assert shown["status"].startswith("mesh: 2 ranks")
    assert shown["here"] == "False"


def test_cells_that_say_where_they_run_as_with_nbdistributed(executed: Callable[[Path], Any]) -> None:
    shown = executed(FOLDER / "nbdistributed_by_hand.ipynb").shown
    assert shown["local"] == "42"
    assert shown["data"] == "[0] 6\n[1] 22\n[2] 38"
    assert shown["some"] == "[0] rank 0 has [0, 1, 2, 3]\n[2] rank 2 has [8, 9, 10, 11]\n"
    assert shown["range"] == "[0] 0\n[1] 1"
    assert shown["gathered"] == "[0-2] 66"
    assert shown["everywhere"] == "[0] 0\n[1] 100\n[2] 200"
    assert shown["fails"].startswith("[rank 1] AssertionError: not here\n")
    assert shown["fresh"] == "[0-1] False"
