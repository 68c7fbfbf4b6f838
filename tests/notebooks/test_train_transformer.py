"""The notebook on a transformer on four processes runs from its first cell to its last, with equal loss curves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "train_transformer.ipynb"


def check(page: Any) -> None:
    """What it promises is there."""
    shown = page.shown
    assert page.failed == set()
    assert "Beautiful is better than ugly." in shown["text"]
    assert "(query): Linear(in_features=32, out_features=32, bias=True)" in shown["mesh"]
    assert "layers.0.query.weight    (32, 32)   (Replicate(), Shard(dim=0))" in shown["placed"]
    assert "image/png" in page.cells["curve"].outputs[0].data
    assert "(Shard(dim=0),)" in shown["save"]
    summary = json.loads(shown["sum-up"].partition("summary: ")[2])
    assert summary["last"] < 0.6 * summary["first"]
    assert summary["largest_difference"] < 1e-5
    before, after = summary["loaded"]
    assert after == pytest.approx(before, rel=1e-5)


@pytest.mark.kernel
@pytest.mark.long
def test_it_runs_and_shows_what_it_promises(executed: Callable[[Path], Any], tmp_path: Path) -> None:
    check(executed(NOTEBOOK))
    assert list(tmp_path.iterdir()) == []


def test_the_page_that_is_committed_has_its_outputs(committed: Callable[[Path], Any]) -> None:
    check(committed(NOTEBOOK))
