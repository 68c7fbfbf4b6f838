"""Large values of cells: sent as they were at the end of their cell, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from meshbook.runtime.cells import kept_values
from meshbook.runtime.cells.kept_values import MOST_VALUES, KeptValues


def sum_of(kept: KeptValues, origin: str = "cell 1") -> float:
    value = kept.pack(origin).open()["value"]
    parts = value.state_dict().values() if isinstance(value, torch.nn.Module) else [value]
    return float(sum(each.sum() for each in parts))


def add(value: Any) -> None:
    with torch.no_grad():
        for each in value.parameters() if isinstance(value, torch.nn.Module) else [value]:
            each += 1


def linear() -> torch.nn.Module:
    return torch.nn.utils.skip_init(torch.nn.Linear, 3, 1)


@pytest.fixture(params=[lambda: np.zeros(4), lambda: torch.zeros(4), linear], ids=["array", "tensor", "module"])
def value(request: pytest.FixtureRequest) -> Any:
    make: Callable[[], Any] = request.param
    made = make()
    if isinstance(made, torch.nn.Module):
        for each in made.parameters():
            torch.nn.init.zeros_(each)
    return made


@pytest.fixture
def copies_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_values, "COPIED_BYTES", 8)


def test_a_value_is_what_it_was_at_the_end_of_its_cell(value: Any) -> None:
    kept = KeptValues()
    kept.add("cell 1", value)
    add(value)
    assert sum_of(kept) == 0
    add(value)
    assert sum_of(kept) == 0


@pytest.mark.parametrize("is_released", [False, True])
def test_a_value_that_was_too_large_to_copy_is_sent_unless_it_has_changed(
    copies_nothing: None, value: Any, is_released: bool
) -> None:
    kept = KeptValues()
    kept.add("cell 1", value)
    if is_released:
        kept.release("cell 1")
    if isinstance(value, np.ndarray):  # whether it has changed is not known
        with pytest.raises(KeyError, match="may have changed"):
            kept.pack("cell 1")
        return
    assert sum_of(kept) == 0
    add(value)
    with pytest.raises(KeyError, match="may have changed"):
        kept.pack("cell 1")


def test_a_released_value_is_sent_while_it_exists_unchanged(value: Any) -> None:
    kept = KeptValues()
    kept.add("cell 1", value)
    kept.add("cell 2", np.zeros(4))
    for origin in ("cell 1", "cell 2", "cell 3"):
        kept.release(origin)
    kept.release("cell 1")
    assert sum_of(kept) == 0
    with pytest.raises(KeyError, match="discarded"):
        kept.pack("cell 2")
    add(value)
    with pytest.raises(KeyError, match="may have changed"):
        kept.pack("cell 1")


def test_texts_do_not_change(copies_nothing: None) -> None:
    kept = KeptValues()
    kept.add("cell 1", "a long text")
    assert kept.pack("cell 1").open() == {"value": "a long text"}
    kept.release("cell 1")
    with pytest.raises(KeyError, match="discarded"):
        kept.pack("cell 1")


def test_only_the_last_ones_are_kept() -> None:
    kept = KeptValues()
    for number in range(MOST_VALUES + 1):
        kept.add(f"cell {number}", np.zeros(4))
    assert sum_of(kept, "cell 1") == 0
    with pytest.raises(KeyError, match="discarded"):
        kept.pack("cell 0")


def test_all_copies_together_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest ones are released."""
    values, kept = [np.zeros(1000), np.zeros(1000)], KeptValues()
    monkeypatch.setattr(kept_values, "ALL_COPIED_BYTES", 12_000)
    for number, value in enumerate(values):
        kept.add(f"cell {number}", value)
        add(value)
    assert sum_of(kept, "cell 1") == 0
    with pytest.raises(KeyError, match="may have changed"):
        kept.pack("cell 0")
