"""Reducing values of several ranks, and splitting data: tables over tensors, arrays, numbers and containers."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, TensorDataset

from meshbook.magics.variables.reduce import ReduceError, reduce_values
from meshbook.magics.variables.split import split

Pair = namedtuple("Pair", "left right")  # as a user writes one


class Squares(Dataset):
    """As a user writes one; it has no slices."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, index**2


class Hub:
    """Rows as those of the Hugging Face library are taken."""

    def __init__(self, rows: range) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, rows: range) -> Hub:
        return Hub(self.rows[rows.start : rows.stop])

    def shard(self) -> None:
        """What else they have."""


FRAME = pl.DataFrame({"a": range(7), "b": list("abcdefg")})
TABLES = {
    "polars": FRAME,
    "a series": FRAME["b"],
    "arrow": FRAME.to_arrow(),
    "a batch": FRAME.to_arrow().to_batches()[0],
    "chunks": pa.chunked_array([[1, 2], [3], [], [4, 5]]),
    "an array": pa.array(["a", None, "c"]),
    "pandas": FRAME.to_pandas(),
    "nothing": FRAME[:0],
}


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


@pytest.mark.parametrize(
    ("data", "count", "dim", "pieces"),
    [
        ([1, 2, 3, 4, 5], 2, 0, [[1, 2, 3], [4, 5]]),
        ("abc", 2, 0, ["ab", "c"]),
        (range(4), 2, 0, [range(2), range(2, 4)]),
        ((1,), 3, 0, [(1,), (), ()]),
        (torch.arange(4), 2, 0, [torch.tensor([0, 1]), torch.tensor([2, 3])]),
        (torch.eye(2), 2, 1, [torch.tensor([[1.0], [0]]), torch.tensor([[0.0], [1]])]),
        (np.eye(2), 2, -1, [np.array([[1.0], [0]]), np.array([[0.0], [1]])]),
        ({"x": [1, 2], "y": "ab"}, 2, 0, [{"x": [1], "y": "a"}, {"x": [2], "y": "b"}]),
    ],
)
def test_split(data: Any, count: int, dim: int, pieces: list[Any]) -> None:
    assert same(split(data, count, dim), pieces)


@pytest.mark.parametrize(
    ("data", "dim", "problem"),
    [
        (5, 0, "data of type int has no dimension 0"),
        ([1], 1, "data of type list has no dimension 1"),
        (torch.ones(2), 1, "data of shape (2,) has no dimension 1"),
        (torch.tensor(1), 0, "data of shape () has no dimension 0"),
        ({1, 2}, 0, "data of type set cannot be split"),
        (FRAME.lazy(), 0, "a LazyFrame is a lazy plan without rows; call collect() first"),
        (FRAME["a"], 1, "data of shape (7,) has no dimension 1"),
        (FRAME, 2, "data of shape (7, 2) has no dimension 2"),
        ({"x": [1], "y": 5}, 0, "data of type int has no dimension 0"),
    ],
)
def test_data_that_cannot_be_split(data: Any, dim: int, problem: str) -> None:
    with pytest.raises(ReduceError) as caught:
        split(data, 2, dim)
    assert problem in str(caught.value)


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("count", [1, 3, 9])
def test_pieces_of_a_table_are_rows_and_can_be_concatenated(name: str, count: int) -> None:
    pieces = split(TABLES[name], count)
    assert {*map(type, pieces)} == {type(TABLES[name])}
    assert max(map(len, pieces)) - min(map(len, pieces)) <= 1
    assert reduce_values(pieces, "cat").equals(TABLES[name])


def test_pieces_of_a_table_may_be_columns() -> None:
    for name in ("polars", "pandas", "arrow", "a batch"):
        assert [piece.shape for piece in split(TABLES[name], 2, 1)] == [(7, 1), (7, 1)]
    assert reduce_values(split(FRAME, 2, 1), "cat", 1).equals(FRAME)


def test_pieces_of_a_table_are_views() -> None:
    table = pa.table({"x": np.arange(100)})
    [_, last] = split(table, 2)
    assert np.shares_memory(last["x"].chunk(0).to_numpy(), table["x"].chunk(0).to_numpy())


def test_arrow_streams_are_read() -> None:
    import duckdb  # not above: what is there when tests begin is never collected, which its bindings call a leak

    pieces = split(duckdb.sql("select range as n, 'row ' || range as s from range(5)"), 2)
    assert [piece.to_pylist()[0] for piece in pieces] == [{"n": 0, "s": "row 0"}, {"n": 3, "s": "row 3"}]


def test_datasets_are_split() -> None:
    [first, _] = split(TensorDataset(torch.arange(5), torch.eye(5)), 2)
    assert (type(first), len(first), first[2][0]) == (TensorDataset, 3, torch.tensor(2))
    assert split(Squares(), 2) == [[(0, 0), (1, 1), (2, 4)], [(3, 9), (4, 16)]]
    assert [piece.rows for piece in split(Hub(range(5)), 2)] == [range(3), range(3, 5)]


@given(st.lists(st.integers()), st.integers(1, 9))
def test_concatenated_pieces_equal_the_data(data: list[int], count: int) -> None:
    pieces = split(data, count)
    assert reduce_values(pieces, "cat") == data
    assert max(map(len, pieces)) - min(map(len, pieces)) <= 1
