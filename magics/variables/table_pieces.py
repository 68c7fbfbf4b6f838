"""Cutting and joining of tables and columns of Arrow, Polars and pandas. Pure.

The class of a value identifies its library, so no library is imported for the check. Parts are views: nothing is
copied.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Any

from meshbook.runtime.cells.tables import library_of


class NotReadableError(ValueError):
    """A value whose rows must first be read; the message says how."""


def as_table(value: Any) -> Any:
    """Return the value, as a table if it can be read as one: a DuckDB relation, an Arrow reader.

    Raises NotReadableError if it cannot be read.
    """
    if type(value).__module__.startswith("polars.") and hasattr(value, "collect"):
        raise NotReadableError(f"a {type(value).__name__} is a lazy plan without rows; call collect() first")
    if library_of(value) or not hasattr(value, "__arrow_c_stream__"):
        return value
    try:
        import pyarrow  # weight: only Arrow streams need it
    except ImportError:
        raise NotReadableError(f"reading a {type(value).__name__} needs pyarrow: pip install pyarrow") from None
    return pyarrow.table(value)


def slice_table(table: Any, dim: int, start: int, end: int) -> Any:
    """Return these rows of a table; with `dim` 1 these columns."""
    library, by_rows = library_of(table), dim % len(table.shape) == 0 if hasattr(table, "shape") else True
    if library == "pandas":
        return table.iloc[start:end] if by_rows else table.iloc[:, start:end]
    if by_rows:
        return table[start:end]
    return table[:, start:end] if library == "polars" else table.select(list(range(start, end)))


def concat_tables(tables: Sequence[Any], dim: int) -> Any:
    """Concatenate tables by rows; with `dim` 1 by columns. Raises the library's error if they do not fit together."""
    match library_of(tables[0]):
        case "pandas":
            return sys.modules["pandas"].concat(tables, axis=dim)
        case "polars":
            return sys.modules["polars"].concat(tables, how="horizontal" if dim else "vertical")
    if dim:
        raise ValueError("Arrow tables can only be concatenated by rows")
    return _concat_arrow(tables, sys.modules["pyarrow"])


def _concat_arrow(tables: Sequence[Any], pyarrow: Any) -> Any:
    first = tables[0]
    if isinstance(first, pyarrow.Table):
        return pyarrow.concat_tables(tables)
    if isinstance(first, pyarrow.RecordBatch):
        return pyarrow.concat_batches(tables)
    if isinstance(first, pyarrow.ChunkedArray):
        chunks = itertools.chain.from_iterable(table.chunks for table in tables)
        return pyarrow.chunked_array(chunks, first.type)
    return pyarrow.concat_arrays(tables)
