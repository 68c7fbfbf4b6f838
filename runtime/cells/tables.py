"""Summaries of tables and columns of Arrow, Polars and pandas: their types, their sizes and the content of columns.

The library of a value is determined by its class, so that none is imported for it. No loop here runs over rows.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

MOST_COLUMNS = 12  # that are named
_NUMBERS = re.compile(r"u?int(8|16|32|64)|float(16|32|64)?|halffloat|double")  # as the libraries call them
_TABLES = {
    "pandas": ("DataFrame", "Series"),
    "polars": ("DataFrame", "Series"),
    "pyarrow": ("Table", "RecordBatch", "ChunkedArray", "Array"),
}


@dataclass(frozen=True, slots=True)
class TableSummary:
    """A summary of a table or a column; `size` is in bytes.

    `kinds` are its types; for a table, each with the column's name.
    """

    shape: tuple[int, ...]
    kinds: str
    size: int


def library_of(value: Any) -> str:
    """Return the library of a table or column, such as `polars`; empty for anything else."""
    modules = {kind.__module__.partition(".")[0] for kind in type(value).__mro__}
    for library, names in _TABLES.items():
        if library in modules and isinstance(value, tuple(getattr(sys.modules[library], name) for name in names)):
            return library
    return ""


def summarize_table(value: Any) -> TableSummary | None:
    """Summarize a table or a column, in little time; None for anything else."""
    if not (library := library_of(value)):
        return None
    shape = tuple(value.shape) if hasattr(value, "shape") else (len(value),)
    kinds = str(_kind_of(value)) if len(shape) == 1 else _kinds_of(value, library, shape[1])
    return TableSummary(shape, kinds, _size_of(value, library))


def _kinds_of(table: Any, library: str, count: int) -> str:
    if library == "pandas":
        fields: Any = table.dtypes.items()
    else:
        fields = table.schema.items() if library == "polars" else ((each.name, each.type) for each in table.schema)
    named = [f"{name} {kind}" for name, kind in islice(fields, MOST_COLUMNS)]
    return ", ".join(named) + (f" and {count - MOST_COLUMNS:,} more" if count > MOST_COLUMNS else "")


def _kind_of(column: Any) -> Any:
    return column.dtype if hasattr(column, "dtype") else column.type


def _size_of(value: Any, library: str) -> int:
    if library == "polars":
        return int(value.estimated_size())
    if library == "pyarrow":
        return int(value.nbytes)
    usage = value.memory_usage(deep=False)
    return int(usage.sum() if hasattr(usage, "sum") else usage)


def columns_of(table: Any) -> Sequence[tuple[str, Any]] | None:
    """Return the columns of a table, each with its path. None for anything else, and for a column."""
    if not (library := library_of(table)) or len(getattr(table, "shape", (0,))) != 2:
        return None
    names = table.column_names if library == "pyarrow" else list(table.columns)
    places = range(len(names))  # names may be duplicates
    if library == "pandas":
        columns = [table.iloc[:, at] for at in places]
    else:
        columns = [table.column(at) if library == "pyarrow" else table.to_series(at) for at in places]
    named = [(f"[{name!r}]", column) for name, column in zip(names, columns, strict=True)]
    if library != "pandas":
        return named
    rows = table.index
    return [(".index", str(rows) if type(rows).__name__ == "RangeIndex" else rows.to_numpy()), *named]


def numbers_of(column: Any) -> Any:
    """Return a column of numbers without gaps as a NumPy array; anything else unchanged."""
    library = library_of(column)
    if not library or len(getattr(column, "shape", (0,))) != 1 or not _NUMBERS.fullmatch(str(_kind_of(column)).lower()):
        return column
    gaps = column.null_count if hasattr(column, "null_count") else 0
    if gaps() if callable(gaps) else gaps:
        return column
    return column.to_numpy(zero_copy_only=False) if library == "pyarrow" else column.to_numpy()


def content_of(column: Any) -> Iterator[Any] | None:
    """The whole content of a column of Arrow or Polars, in buffers that are equal for equal columns.

    None for other values, and if pyarrow is not installed.
    """
    library = library_of(column)
    if library not in ("pyarrow", "polars") or len(getattr(column, "shape", (0,))) != 1:
        return None
    try:
        import pyarrow  # weight: Polars works without it

        array = column.to_arrow() if library == "polars" else column
        return _buffers_of(array, pyarrow)
    except (ImportError, ValueError):  # ValueError: a type of Polars that Arrow does not have
        return None


def _buffers_of(array: Any, pyarrow: Any) -> Iterator[Any]:
    # The division into chunks, and the numbering of a dictionary, make no difference.
    whole = array.combine_chunks() if isinstance(array, pyarrow.ChunkedArray) else array
    whole = pyarrow.concat_arrays(whole.chunks) if isinstance(whole, pyarrow.ChunkedArray) else whole
    whole = whole.dictionary_decode() if pyarrow.types.is_dictionary(whole.type) else whole
    whole = _gathered(whole, pyarrow)
    yield str(whole.type).encode()
    if whole.null_count:
        yield pyarrow.concat_arrays([whole.is_valid()]).buffers()[1]
        whole = _filled(whole, pyarrow) if whole.null_count < len(whole) else whole.slice(0, 0)
    yield from (buffer for buffer in pyarrow.concat_arrays([whole]).buffers() if buffer is not None)


def _gathered(array: Any, pyarrow: Any) -> Any:
    """Store texts contiguously, and not as views, whose order may differ."""
    types = pyarrow.types
    if types.is_string_view(array.type) or types.is_string(array.type):
        return array.cast(pyarrow.large_string())
    if types.is_binary_view(array.type) or types.is_binary(array.type):
        return array.cast(pyarrow.large_binary())
    return array


def _filled(array: Any, pyarrow: Any) -> Any:
    """Fill all gaps with the same value, since the bytes in them are undefined."""
    from pyarrow import compute  # weight: only a column with gaps needs it

    try:
        zero = compute.min(compute.drop_null(array))
        return compute.fill_null(array, zero)
    except pyarrow.ArrowException:  # lists, structs
        return array
