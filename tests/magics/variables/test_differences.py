"""`%mesh diff`: which ranks agree, which parts differ, and which numbers are compared element by element."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from meshbook.magics.variables import compare
from meshbook.magics.variables.compare import plan_comparisons
from meshbook.magics.variables.differences import (
    LargestDifference,
    MeasuredPart,
    find_differences,
    find_largest_difference,
    format_differences,
    format_same,
)
from meshbook.runtime.cells.digests import DigestRequest, VariableDigest
from meshbook.runtime.cells.variables import Namespace

MISSING = object()


def digests_of(values: Sequence[Any]) -> dict[int, VariableDigest | None]:
    """Return the digests of these values by rank."""
    taken = (
        DigestRequest("x").handle(Namespace({} if value is MISSING else {"x": value}, list, None)) for value in values
    )
    return dict(enumerate(taken))  # type: ignore[arg-type]


def said(values: Sequence[Any]) -> str:
    by_rank = digests_of(values)
    differences = find_differences(by_rank)
    return format_differences("x", by_rank, differences, {}) if differences else format_same("x", by_rank)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1, 1], "x is the same on ranks 0-1: int  1"),
        ([{"a": 1}, {"a": 1}], "x is the same on ranks 0-1: dict  1 parts"),
        ([{"a": 1, "b": 2}, {"b": 2, "a": 1}], "x is the same on ranks 0-1: dict  2 parts"),
        ([1, 2, 1], "x differs: ranks 0,2 agree, rank 1 differs\n[0,2] int  1\n[1] int  2"),
        ([1, 2], "x differs: no two ranks agree\n[0] int  1\n[1] int  2"),
        ([1, 1, 2, 2], "x differs: ranks 0-1 agree, ranks 2-3 agree\n[0-1] int  1\n[2-3] int  2"),
        ([1, MISSING, 1], "x differs: ranks 0,2 agree, rank 1 differs\n[0,2] int  1\n[1] not defined"),
        ([1, [2, 3], 1], "x differs: ranks 0,2 agree, rank 1 differs\n[0,2] int  1\n[1] list  2 parts"),
        (
            [{"lr": 1, "n": 0}, {"lr": 1, "n": 1}, {"lr": 1, "n": 0, "more": "y"}],
            "x differs in 2 of 3 parts: no two ranks agree\n"
            "['n']\n    [0,2] int  0\n    [1] int  1\n"
            "['more']\n    [0-1] not defined\n    [2] str  'y'",
        ),
    ],
)
def test_agreement_and_differences(values: Sequence[Any], text: str) -> None:
    assert said(values) == text


def test_many_differences_are_counted() -> None:
    text = said([dict.fromkeys(range(30), rank) for rank in range(12)])
    assert "… 4 more variants" in text
    assert text.endswith("… 10 more parts differ")
    assert len(text.splitlines()) == 1 + 20 * 10 + 1


def measured(values: Sequence[Any]) -> Mapping[str, MeasuredPart]:
    """Answer the requests as ranks would."""
    probes = plan_comparisons(find_differences(digests_of(values)))
    found = {}
    for probe in probes:
        sent = {rank: {"": values[rank].reshape(-1)[: 10**9]} for rank in probe.representatives}
        found[probe.difference.path] = compare._measure_one(probe, sent)
    return {path: each for path, each in found.items() if each is not None}


@pytest.mark.parametrize(
    ("one", "other", "text"),
    [
        ([0.0], [-0.0], "equal numbers with different bits (-0.0, or different NaNs)"),
        (0.5, 2.0, "largest difference 1.5: 0.5 on rank 0, 2 on rank 1; 1 of 1 numbers differ"),
        (2**53, 2**53 + 1, f"largest difference 1: {2**53} on rank 0, {2**53 + 1} on rank 1; 1 of 1 numbers differ"),
        ([1.0, 2.0], [1.0, float("nan")], "NaN at [1]: 2 on rank 0, nan on rank 1; 1 of 2 numbers differ"),
    ],
)
def test_the_text_of_a_largest_difference(one: Any, other: Any, text: str) -> None:
    for make in (np.array, torch.tensor):
        values = [make(one), make(other)]
        by_rank = digests_of(values)
        assert format_differences("x", by_rank, find_differences(by_rank), measured(values)).splitlines()[-1] == text


# --- the largest difference between arrays ---

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
        ([torch.tensor([2**62 + 1]), torch.tensor([2**62])], LargestDifference(0, 2**62, 2**62 + 1, 1, 0, 1)),
        ([np.array([2**63 - 1, 9]), np.array([-(2**63), 9])], LargestDifference(0, -(2**63), 2**63 - 1, 1, 0, 1)),
        ([np.array([3, 200], "uint8"), np.array([0, 255], "uint8")], LargestDifference(1, 200, 255, 0, 1, 2)),
        ([[2**70, 1], [2**70, 2]], LargestDifference(1, 1.0, 2.0, 0, 1, 1)),
        ([np.array([INF, 1.0]), np.array([INF, 2.0])], LargestDifference(1, 1.0, 2.0, 0, 1, 1)),
        ([np.array([INF]), np.array([-INF])], LargestDifference(0, -INF, INF, 1, 0, 1)),
        ([np.array([0j, 0j]), np.array([0j, 3j])], LargestDifference(1, 0j, 3j, 0, 1, 1)),
    ],
)
def test_the_largest_difference(arrays: list[Any], gap: LargestDifference) -> None:
    assert find_largest_difference(arrays) == gap


def test_a_nan_of_some_arrays_is_the_largest_difference() -> None:
    gap = find_largest_difference([np.array([NAN, 1.0, 9.0]), np.array([NAN, NAN, 0.0])])
    assert gap is not None
    assert (gap.index, gap.least, gap.least_in, gap.most_in, gap.differing) == (1, 1.0, 0, 1, 2)
    assert math.isnan(gap.size)


@pytest.mark.parametrize("arrays", [[[1.0], [1.0]], [[0.0], [-0.0]], [[NAN], [NAN]], [[INF], [INF]]])
def test_no_difference(arrays: list[Any]) -> None:
    assert find_largest_difference(arrays) is None
