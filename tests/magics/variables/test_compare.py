"""The parts of a variable that are compared between ranks, and how."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from meshbook.magics.variables import compare
from meshbook.magics.variables.compare import plan_comparisons
from meshbook.magics.variables.differences import (
    find_differences,
    find_largest_difference,
    format_differences,
)
from meshbook.runtime.cells.digests import BLOCK
from tests.magics.variables.test_differences import digests_of, measured


def test_comparable_numbers_are_compared() -> None:
    one, other = torch.zeros(2, 3), torch.zeros(2, 3)
    other[1, 2] = -4
    by_rank = digests_of([one, other, one])
    text = format_differences("x", by_rank, find_differences(by_rank), measured([one, other, one]))
    assert text.splitlines()[-1] == (
        "largest difference 4 at [1, 2]: -4 on rank 1, 0 on ranks 0,2; 1 of 6 numbers differ"
    )
    assert plan_comparisons(find_differences(digests_of([torch.zeros(2), torch.zeros(3)]))) == []
    assert plan_comparisons(find_differences(digests_of(["a", "b"]))) == []


def test_of_large_parts_only_differing_blocks_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    length = BLOCK // 8
    one, other = np.zeros((5, length)), np.zeros((5, length))
    other[1, 3], other[4, 7] = 1, 2
    (probe,) = plan_comparisons(find_differences(digests_of([one, other])))
    assert (probe.blocks, probe.is_whole, probe.representatives) == ((1, 4), True, [0, 1])
    gap = find_largest_difference([np.concatenate([array[1], array[4]]) for array in (one, other)])
    assert gap is not None
    assert probe.place_of(gap.index) == (4, 7)
    monkeypatch.setattr(compare, "MOST_BYTES", 2 * BLOCK)
    (probe,) = plan_comparisons(find_differences(digests_of([one, other])))
    assert (probe.blocks, probe.is_whole) == ((1,), False)
