"""Reducing values of several ranks, and splitting data: tables over tensors, arrays, numbers and containers."""

from __future__ import annotations

import re
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
        return isinstance(right, np.ndarray) and left.dtype == right.dtype and np.array_equal(left, right)
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
        ([torch.tensor([1]), torch.tensor([2])], "mean", torch.tensor([1.5], dtype=torch.float64)),
        ([torch.full((1,), 60000.0, dtype=torch.float16)] * 2, "mean", torch.full((1,), 60000.0, dtype=torch.float16)),
        ([np.array([1.0]), np.array([2.0])], "mean", np.array([1.5])),
        ([{"loss": 1.0, "n": (1, [2])}, {"loss": 3.0, "n": (2, [4])}], "mean", {"loss": 2.0, "n": (1.5, [3.0])}),
        ([Pair(1, 2), Pair(3, 4)], "mean", Pair(2.0, 3.0)),
        ([np.uint8(200), 201], "mean", 200.5),
        ([200, np.uint8(201), np.uint8(202)], "mean", 201.0),
        ([torch.tensor([1.0]), torch.tensor([2.0], dtype=torch.float16)], "mean", torch.tensor([1.5])),
        ([torch.tensor([1]), torch.tensor([2j])], "mean", torch.tensor([0.5 + 1j])),
        ([np.array([1], "int8"), np.array([2.0], "float32")], "mean", np.array([1.5], "float32")),
        ([np.array([1], "m8[s]"), np.array([3], "m8[s]")], "mean", np.array([2], "m8[s]")),
        ([np.array([10**30], object), np.array([10**30], object)], "mean", np.array([1e30], object)),
        ([np.ma.array([200, 1], "uint8", mask=[False, True])] * 2, "mean", np.ma.array([200.0, 1], mask=[False, True])),
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


# Types without arithmetic have no conversion, those of quantized numbers need a scale.
NO_NUMBERS = re.compile(r"torch\.(bits|q|u?int[1-7]$|float4)")
TENSOR_TYPES = sorted({each for each in vars(torch).values() if isinstance(each, torch.dtype)}, key=str)
ARRAY_TYPES = sorted({np.dtype(code) for code in np.typecodes["AllFloat"] + np.typecodes["AllInteger"] + "?"}, key=str)


@pytest.mark.parametrize("dtype", [each for each in TENSOR_TYPES if not NO_NUMBERS.match(str(each))], ids=str)
def test_a_mean_of_tensors_neither_overflows_nor_rounds(dtype: torch.dtype) -> None:
    if dtype.is_floating_point or dtype.is_complex:
        most = torch.tensor([min(torch.finfo(dtype).max, 1e300)], dtype=torch.float64).to(dtype)
        mean = reduce_values([most, most], "mean")
        assert mean.dtype == dtype
        assert mean.to(torch.complex128) == most.to(torch.complex128)
    else:
        numbers = [1, 0] if dtype == torch.bool else [torch.iinfo(dtype).max, 1]
        mean = reduce_values([torch.tensor([number], dtype=dtype) for number in numbers], "mean")
        assert mean.dtype == torch.float64
        assert mean.tolist() == [sum(numbers) / 2]


@pytest.mark.parametrize("dtype", ARRAY_TYPES, ids=str)
@pytest.mark.parametrize("make", [np.array, lambda numbers, dtype: np.dtype(dtype).type(numbers[0])])
def test_a_mean_of_arrays_neither_overflows_nor_rounds(make: Any, dtype: np.dtype[Any]) -> None:
    numbers = [1, 0] if dtype.kind == "b" else [np.iinfo(dtype).max, 1] if dtype.kind in "iu" else [6e4, 6e4]
    mean = reduce_values([make([number], dtype) for number in numbers], "mean")
    assert mean.dtype == (dtype if dtype.kind in "fc" else np.float64)
    assert mean == sum(numbers) / 2


@pytest.mark.parametrize(
    ("values", "how", "problem"),
    [
        (["a", "b"], "mean", "cannot compute the mean of values of type str"),
        ([torch.ones(2), torch.ones(3)], "mean", "the mean of a Tensor of shape (2,) and a Tensor of shape (3,)"),
        ([torch.ones(2), 3], "mean", "the mean of a Tensor of shape (2,) and values of type int"),
        ([{"a": 1}, {"b": 1}], "mean", "the dicts have different keys"),
        ([{"a": 1}, 2], "mean", "the dicts have different keys"),
        ([[1], [1, 2]], "mean", "values of type list differ in type or length"),
        ([np.array(["a"]), np.array(["b"])], "mean", "cannot compute the mean of a ndarray of shape (1,): "),
        ([np.array([1], "M8[s]")] * 2, "mean", "cannot compute the mean of a ndarray of shape (1,): "),
        ([10**400, 1], "mean", "cannot compute the mean of values of type int: "),
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
