"""How far numbers are apart, and where."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from meshbook.magics.variables.differences import LargestDifference, find_largest_difference

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("arrays", "gap"),
    [
        ([np.array([1, 2, 3]), np.array([1, 5, 4])], LargestDifference(1, 2, 5, 0, 1, 2)),
        ([[1.0, 2.0], [1.0, 2.5]], LargestDifference(1, 2.0, 2.5, 0, 1, 1)),
        (
            [torch.tensor([0.0, 1]), torch.tensor([2.0, 1]), torch.tensor([-1.0, 1])],
            LargestDifference(0, -1, 2, 2, 1, 1),
        ),
        (
            [torch.ones(1, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.bfloat16)],
            LargestDifference(0, 0, 1, 1, 0, 1),
        ),
        ([np.array([True]), np.array([False])], LargestDifference(0, 0, 1, 1, 0, 1)),
        ([np.array([INF, 1.0]), np.array([INF, 2.0])], LargestDifference(1, 1.0, 2.0, 0, 1, 1)),
        ([np.array([INF]), np.array([-INF])], LargestDifference(0, -INF, INF, 1, 0, 1)),
        ([np.array([0j, 0j]), np.array([0j, 3j])], LargestDifference(1, 0j, 3j, 0, 1, 1)),
    ],
)
def test_the_largest_difference(arrays: list[Any], gap: LargestDifference) -> None:
    assert find_largest_difference(arrays) == gap


def test_a_nan_that_not_all_have_is_the_largest_difference() -> None:
    gap = find_largest_difference([np.array([NAN, 1.0, 9.0]), np.array([NAN, NAN, 0.0])])
    assert gap is not None
    assert (gap.index, gap.least, gap.least_in, gap.most_in, gap.differing) == (1, 1.0, 0, 1, 2)
    assert math.isnan(gap.size)


@pytest.mark.parametrize("arrays", [[[1.0], [1.0]], [[0.0], [-0.0]], [[NAN], [NAN]], [[INF], [INF]]])
def test_no_difference(arrays: list[Any]) -> None:
    assert find_largest_difference(arrays) is None
