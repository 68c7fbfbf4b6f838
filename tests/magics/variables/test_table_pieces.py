"""Pieces of tables: rows, columns, and their concatenation."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from meshbook.magics.variables.reduce import reduce_values
from meshbook.magics.variables.split import split
from tests.magics.variables.test_reduce import FRAME

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
