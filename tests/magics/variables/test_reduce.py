"""Reducing values of several ranks, and splitting data: tables over tensors, arrays, numbers and containers."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from meshbook.magics.variables.reduce import ReduceError, reduce_values

Pair = namedtuple("Pair", "left right")  # as a user writes one


FRAME = pl.DataFrame({"a": range(7), "b": list("abcdefg")})


def same(left: Any, right: Any) -> bool:
    """Of the same kind, with the same in it."""
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, np.ndarray):
        return isinstance(right, np.ndarray) and left.shape == right.shape and bool((left == right).all())
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and bool(left == right)


@pytest.mark.parametrize(
    ("values", "how", "one"),
    [
        ([3, 4], "first", 3),
        ([1, 2], "mean", 1.5),
        ([True, False], "mean", 0.5),
        ([torch.tensor([1.0, 3.0]), torch.tensor([3.0, 5.0])], "mean", torch.tensor([2.0, 4.0])),
        ([torch.tensor([1]), torch.tensor([2])], "mean", torch.tensor([1.5])),
        ([torch.full((1,), 60000.0, dtype=torch.float16)] * 2, "mean", torch.full((1,), 60000.0, dtype=torch.float16)),
        ([np.array([1.0]), np.array([2.0])], "mean", np.array([1.5])),
        ([{"loss": 1.0, "n": (1, [2])}, {"loss": 3.0, "n": (2, [4])}], "mean", {"loss": 2.0, "n": (1.5, [3.0])}),
        ([Pair(1, 2), Pair(3, 4)], "mean", Pair(2.0, 3.0)),
        ([torch.zeros(1, 2), torch.ones(2, 2)], "cat", torch.tensor([[0.0, 0], [1, 1], [1, 1]])),
        ([torch.tensor(1), torch.tensor(2)], "cat", torch.tensor([1, 2])),
        ([np.array([1]), np.array([2, 3])], "cat", np.array([1, 2, 3])),
        ([[1], [2, 3]], "cat", [1, 2, 3]),
        ([(1,), ()], "cat", (1,)),
        (["ab", "c"], "cat", "abc"),
        ([range(1), range(5, 7)], "cat", [0, 5, 6]),
        ([b"ab", b"c"], "cat", b"abc"),
        ([1, 2.5], "cat", [1, 2.5]),
        ([{"x": [1]}, {"x": [2]}], "cat", {"x": [1, 2]}),
        ([torch.tensor([1]), torch.tensor([2])], "stack", torch.tensor([[1], [2]])),
        ([1, 2], "stack", np.array([1, 2])),
        ([{"x": 1}, {"x": 2}], "stack", {"x": np.array([1, 2])}),
    ],
)
def test_reduce_values(values: list[Any], how: Any, one: Any) -> None:
    assert same(reduce_values(values, how), one)


def test_a_mean_leaves_the_values_and_their_graphs_alone() -> None:
    values = [torch.ones(2, requires_grad=True), torch.zeros(2)]
    mean = reduce_values(values, "mean")
    assert mean.tolist() == [0.5, 0.5]
    assert not mean.requires_grad
    assert values[0].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("values", "how", "problem"),
    [
        (["a", "b"], "mean", "cannot compute the mean of values of type str"),
        ([torch.ones(2), torch.ones(3)], "mean", "the mean of a Tensor of shape (2,) and a Tensor of shape (3,)"),
        ([torch.ones(2), 3], "mean", "the mean of a Tensor of shape (2,) and values of type int"),
        ([{"a": 1}, {"b": 1}], "mean", "the dicts have different keys"),
        ([{"a": 1}, 2], "mean", "the dicts have different keys"),
        ([[1], [1, 2]], "mean", "values of type list differ in type or length"),
        ([torch.ones(2, 2), torch.ones(2, 3)], "cat", ": Sizes of tensors must match"),
        ([FRAME, FRAME.select("a")], "cat", "a polars DataFrame of shape (7, 1): "),
        ([FRAME, "text"], "cat", "cannot concatenate a polars DataFrame of shape (7, 2) and values of type str"),
        (
            [FRAME, FRAME.to_pandas()],
            "cat",
            "a polars DataFrame of shape (7, 2) and a pandas DataFrame of shape (7, 2)",
        ),
        (
            [FRAME.to_arrow(), FRAME.to_arrow().select(["a"])],
            "cat",
            ": Schema at index 1 was diff",
        ),
        ([torch.ones(2), [1]], "cat", "cannot concatenate"),
        ([[1], (2,)], "cat", "cannot concatenate values of type list and values of type tuple"),
        ([object(), object()], "cat", "cannot concatenate values of type object"),
        ([object(), object()], "stack", "cannot stack values of type object: not numbers"),
        ([torch.ones(2), torch.ones(3)], "stack", "cannot stack"),
    ],
)
def test_values_that_cannot_be_reduced(values: list[Any], how: Any, problem: str) -> None:
    with pytest.raises(ReduceError) as caught:
        reduce_values(values, how)
    assert problem in str(caught.value)
