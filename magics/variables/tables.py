"""Tables and columns of Arrow, Polars and pandas: parts of them, and one of several. Pure.

Which library a value is of is told by its class, so that none is imported for it. Parts are views: nothing is copied.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Any

from meshbook.runtime.cells.tables import library_of


class NotReadableError(ValueError):
    """What has rows only once it is read; says how."""


def as_table(value: Any) -> Any:
    """The same, as a table where it is a result that can be read as one: a relation of DuckDB, a reader of Arrow's.

    NotReadableError where it cannot.
    """
    if type(value).__module__.startswith("polars.") and hasattr(value, "collect"):
        raise NotReadableError(
            f"a {type(value).__name__} is a plan, which has no rows before they are collected: collect()"
        )
    if library_of(value) or not hasattr(value, "__arrow_c_stream__"):
        return value
    try:
        import pyarrow  # weight: only what speaks Arrow needs it
    except ImportError:
        raise NotReadableError(f"to read a {type(value).__name__} pyarrow is needed: pip install pyarrow") from None
    return pyarrow.table(value)


def cut(table: Any, dim: int, start: int, end: int) -> Any:
    """These rows of it; with `dim` 1 these columns."""
    library, by_rows = library_of(table), dim % len(table.shape) == 0 if hasattr(table, "shape") else True
    if library == "pandas":
        return table.iloc[start:end] if by_rows else table.iloc[:, start:end]
    if by_rows:
        return table[start:end]
    return table[:, start:end] if library == "polars" else table.select(list(range(start, end)))


def join(tables: Sequence[Any], dim: int) -> Any:
    """One of them all, row after row; with `dim` 1 column beside column. What the library raises where they differ."""
    match library_of(tables[0]):
        case "pandas":
            return sys.modules["pandas"].concat(tables, axis=dim)
        case "polars":
            return sys.modules["polars"].concat(tables, how="horizontal" if dim else "vertical")
    if dim:
        raise ValueError("Arrow's tables go together by rows")
    return _join_arrow(tables, sys.modules["pyarrow"])


def _join_arrow(tables: Sequence[Any], pyarrow: Any) -> Any:
    first = tables[0]
    if isinstance(first, pyarrow.Table):
        return pyarrow.concat_tables(tables)
    if isinstance(first, pyarrow.RecordBatch):
        return pyarrow.concat_batches(tables)
    if isinstance(first, pyarrow.ChunkedArray):
        chunks = itertools.chain.from_iterable(table.chunks for table in tables)
        return pyarrow.chunked_array(chunks, first.type)
    return pyarrow.concat_arrays(tables)
