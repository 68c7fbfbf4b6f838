"""Data split into a piece for each rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, TensorDataset

from meshbook.magics.variables.reduce import ReduceError, reduce_values
from meshbook.magics.variables.split import split
from tests.magics.variables.test_reduce import FRAME, same


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
