"""Random programs on a mesh give what they give locally, on each rank (Hypothesis)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from meshbook.runtime.tensor.recordings import compile as record
from meshbook.runtime.tensor.trees import fetch_shard
from tests.support import PATIENCE

pytestmark = pytest.mark.slow

RANKS = 2
SHAPE = (4, 4)
Step = Callable[[list[Any], int, int], None]  # of the tensors, a number, and another one


def append(make: Callable[[Any, Any, int], Any]) -> Step:
    """Return a step that makes a tensor of two others."""
    return lambda tensors, a, b: tensors.append(make(tensors[a % len(tensors)], tensors[b % len(tensors)], b))


def change(work: Callable[[Any, Any, int], Any]) -> Step:
    """Return a step that changes a tensor in place."""

    def run(tensors: list[Any], a: int, b: int) -> None:
        work(tensors[a % len(tensors)], tensors[b % len(tensors)], b)

    return run


# All tensors are 4 x 4 and hold whole numbers modulo a prime, so that every result is exact.
STEPS: dict[str, Step] = {
    "add": append(lambda x, y, n: (x + y) % 97),
    "multiply": append(lambda x, y, n: (x * y + n) % 97),
    "matmul": append(lambda x, y, n: (x @ y) % 97),
    "transposed view": append(lambda x, y, n: x.t()),
    "detached": append(lambda x, y, n: x.detach()),
    "sorted": append(lambda x, y, n: x.sort(dim=n % 2).values),
    "rows chosen": append(lambda x, y, n: x[(y[:, 0] % 4).long()]),
    "halves swapped": append(lambda x, y, n: torch.cat(x.split(2, dim=n % 2)[::-1], dim=n % 2)),
    "summed": append(lambda x, y, n: x.sum(n % 2, keepdim=True).expand(4, 4).contiguous() % 97),
    "where": append(lambda x, y, n: torch.where(x > n, x, y)),
    "add in place": change(lambda x, y, n: x.add_(y.clone(), alpha=n).remainder_(97)),
    "row in place": change(lambda x, y, n: x[n % 4].mul_(2).remainder_(97)),
    "view in place": change(lambda x, y, n: x.view(16)[:4].fill_(n) if x.is_contiguous() else x.fill_(n)),
    "triangle in place": change(lambda x, y, n: x.tril_(n % 3)),
    "dropped": change(lambda x, y, n: None),
}
DROPPED = "dropped"
REDUCED = "reduced over the ranks"

programs = st.lists(
    st.tuples(st.sampled_from([*STEPS, REDUCED]), st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=12
)


def start(rank: Any) -> list[Any]:
    return [(torch.arange(16.0).view(SHAPE) * 3 + rank) % 97, torch.eye(4) * 5 + rank]


def run(program: list[tuple[str, int, int]], tensors: list[Any]) -> list[Any]:
    """Run a program on a mesh, or on one rank without reductions."""
    for name, a, b in program:
        if name == REDUCED:
            tensors.append(tensors[a % len(tensors)].reduce("gpus", "sum"))
        else:
            step(tensors, name, a, b)
    return tensors


def step(tensors: list[Any], name: str, a: int, b: int) -> None:
    if name == DROPPED and len(tensors) > 2:
        del tensors[a % len(tensors)]
    STEPS[name](tensors, a, b)


def run_locally(program: list[tuple[str, int, int]]) -> list[list[torch.Tensor]]:
    """Run a program on all ranks in lockstep; return the tensors of each."""
    ranks = [start(rank) for rank in range(RANKS)]
    for name, a, b in program:
        if name == REDUCED:
            total = sum(tensors[a % len(tensors)] for tensors in ranks)
            for tensors in ranks:
                tensors.append(total.clone(memory_format=torch.contiguous_format))
        else:
            for tensors in ranks:
                step(tensors, name, a, b)
    return ranks


def check(results: list[Any], expected: list[list[torch.Tensor]]) -> None:
    for rank in range(RANKS):
        values = fetch_shard(results, gpus=rank).get(PATIENCE)
        assert len(values) == len(expected[rank])
        for index, (value, local) in enumerate(zip(values, expected[rank], strict=True)):
            assert torch.equal(value, local), index
    for result, local in zip(results, expected[0], strict=True):
        assert (result.shape, result.stride(), result.dtype) == (local.shape, local.stride(), local.dtype)


@pytest.fixture(scope="module")
def mesh(pair):
    return pair.device_mesh


@hypothesis.given(programs)
@hypothesis.settings(max_examples=40, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
def test_a_program_gives_what_it_gives_locally(mesh, program):
    with mesh.activate():
        results = run(program, start(mesh.rank_tensor("gpus")))
    check(results, run_locally(program))


@hypothesis.given(programs)
@hypothesis.settings(max_examples=15, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
def test_a_replayed_program_gives_the_same(mesh, program):
    recorded = record(lambda *tensors: run(program, list(tensors)))
    with mesh.activate():
        for _ in range(2):
            results = recorded(*start(mesh.rank_tensor("gpus")))
    check(results, run_locally(program))


def gradients(mesh: Any, program: list[tuple[str, int, int]]) -> None:
    def differentiate(leaf: Any) -> Any:
        tensors = [leaf * 1, leaf.sin()]
        for name, a, b in program:
            step(tensors, name, a, b)
        sum(tensor.sum() for tensor in tensors).backward()
        return leaf.grad

    start_value = torch.arange(16.0).view(SHAPE) / 16
    try:
        expected = differentiate(start_value.clone().requires_grad_())
    except RuntimeError:  # it changes a value that the backward needs
        hypothesis.reject()
    with mesh.activate():
        result = differentiate(mesh.constant(start_value).requires_grad_())
    torch.testing.assert_close(fetch_shard(result, gpus=1).get(PATIENCE), expected, rtol=1e-6, atol=1e-6)


SMOOTH = ["add", "multiply", "transposed view", "halves swapped", "summed", "add in place", "row in place"]


@hypothesis.given(
    st.lists(st.tuples(st.sampled_from(SMOOTH), st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=8)
)
@hypothesis.settings(max_examples=20, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
def test_a_program_has_the_gradients_that_it_has_locally(mesh, program):
    gradients(mesh, program)
