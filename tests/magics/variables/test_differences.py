"""`%mesh diff`: which ranks agree, which parts differ, and which numbers are compared element by element."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from meshbook.magics.variables import compare
from meshbook.magics.variables.compare import plan_comparisons
from meshbook.magics.variables.differences import (
    Difference,
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


def measured(values: Sequence[Any]) -> Mapping[Difference, MeasuredPart]:
    """Answer the requests as ranks would."""
    probes = plan_comparisons(find_differences(digests_of(values)))
    found = {}
    for probe in probes:
        sent = {rank: {"": values[rank].reshape(-1)[: 10**9]} for rank in probe.representatives}
        found[probe.difference] = compare._measure_one(probe, sent)
    return {difference: each for difference, each in found.items() if each is not None}


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


# --- shards ---


def distributed(rank: int, placements: Sequence[Any], value: float = 0.0) -> Any:
    """A tensor on a mesh of two by two ranks, as this rank has it."""
    torch.distributed.init_process_group("fake", rank=rank, world_size=4, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        return DTensor.from_local(torch.full((2, 3), value), mesh, placements, run_check=False)
    finally:
        torch.distributed.destroy_process_group()


COMPARED = "1 part is sharded over 2 ranks, of which replicas are compared"
ALONE = "1 part is sharded over 2 ranks, without replicas to compare"
SHARDED, REPLICATED = (Replicate(), Shard(0)), (Replicate(), Replicate())


@pytest.mark.parametrize(
    ("ranks", "placements", "values", "text"),
    [
        (4, [SHARDED] * 4, [0, 1, 0, 1], f"x is the same on ranks 0-3: DTensor  1 parts; {COMPARED}"),
        (2, [SHARDED] * 2, [0, 1], f"x has no replicas on ranks 0-1: DTensor  1 parts; {ALONE}"),
        (
            4,
            [(Shard(0), Shard(1))] * 4,
            [0, 1, 2, 3],
            f"x has no replicas on ranks 0-3: DTensor  1 parts; {ALONE.replace('2', '4')}",
        ),
        (4, [(Replicate(), Partial())] * 4, [0, 1, 0, 1], f"x is the same on ranks 0-3: DTensor  1 parts; {COMPARED}"),
        (4, [REPLICATED] * 4, [0, 0, 0, 0], "x is the same on ranks 0-3: DTensor  1 parts"),
        (4, [REPLICATED] * 4, [0, 0, 0, 1], "x differs in 1 of 1 parts: ranks 0-2 agree, rank 3 differs"),
        (4, [SHARDED] * 4, [0, 1, 0, 2], f"x differs in 1 of 1 parts: ranks 0-2 agree, rank 3 differs; {COMPARED}"),
        (
            4,
            [SHARDED] * 2 + [REPLICATED] * 2,
            [0, 1, 0, 1],
            f"x differs in 1 of 1 parts: ranks 0-1 agree, ranks 2-3 agree; {ALONE}",
        ),
    ],
)
def test_only_replicas_of_a_shard_are_compared(
    ranks: int, placements: Sequence[Any], values: Sequence[float], text: str
) -> None:
    assert said([distributed(rank, placements[rank], values[rank]) for rank in range(ranks)]).splitlines()[0] == text


def test_the_difference_of_a_shard_names_the_shard() -> None:
    values = [distributed(rank, SHARDED, value) for rank, value in enumerate([0, 1, 0, 3])]
    by_rank = digests_of([{"w": value, "n": 1} for value in values])
    (difference,) = find_differences(by_rank)
    assert (difference.label, difference.blocks) == ("['w'].to_local() (shard 1 of 2)", [0])
    assert [variant.ranks for variant in difference.compared] == [(1,), (3,)]


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
