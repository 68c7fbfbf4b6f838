"""Arrow tables and Polars frames out of band: their columns are buffers already, which travel as they lie.

A slice of Arrow's is a view that holds the whole of its parent, and pyarrow pickles the parent; here a slice travels as
what it shows. What has no bytes to spare is left to pyarrow.
"""

from __future__ import annotations

import io
import pickle
import sys
from typing import Any

from meshbook.runtime.wire.frames import Buffer

SLACK = 4096  # bytes that an array may hold beside what it shows


def reduce_arrow(value: Any) -> Any:
    """How an array of Arrow's travels, as `__reduce__` would say it. Tables and batches are made of such arrays."""
    pyarrow = sys.modules["pyarrow"]
    if not isinstance(value, pyarrow.Array) or not _drags(value, pyarrow):
        return NotImplemented
    return trimmed(value, pyarrow).__reduce__()


def reduce_frame(frame: Any) -> Any:
    """How a Polars frame travels: as an Arrow table, which shares its memory; without pyarrow, as Arrow's IPC bytes."""
    polars = sys.modules["polars"]
    # Of Python's objects Arrow would get the addresses; Polars itself says that they cannot be sent.
    if type(frame) is not polars.DataFrame or any(_has_objects(dtype, polars) for dtype in frame.dtypes):
        return NotImplemented
    newest = polars.CompatLevel.newest()
    try:
        return _frame_of_arrow, (frame.to_arrow(compat_level=newest),)
    except (ImportError, ValueError):  # no pyarrow here, or a type that it does not have, such as Int128
        stream = io.BytesIO()
        frame.write_ipc_stream(stream, compat_level=newest)
        return _frame_of_ipc, (pickle.PickleBuffer(stream.getbuffer()),)


def reduce_series(series: Any) -> Any:
    """How a Polars series travels: as a frame of one column."""
    if type(series) is not sys.modules["polars"].Series:
        return NotImplemented
    return _series_of_frame, (series.to_frame(),)


def refuse_relation(relation: Any) -> Any:
    """Say what may travel instead of a query of DuckDB's. To run it unasked might take hours."""
    if type(relation).__name__ != "DuckDBPyRelation":
        return NotImplemented
    raise TypeError(
        "a query of DuckDB belongs to its connection: send what it gives, by its .to_arrow_table() or .pl()"
    )


def _has_objects(dtype: Any, polars: Any) -> bool:
    parts = [field.dtype for field in getattr(dtype, "fields", ())]
    parts += [dtype.inner] if getattr(dtype, "inner", None) is not None else []
    return bool(dtype == polars.Object) or any(_has_objects(part, polars) for part in parts)


def _frame_of_arrow(table: Any) -> Any:
    import polars  # weight: only who receives a frame pays for it

    return polars.from_arrow(table, rechunk=False)


def _frame_of_ipc(data: Buffer) -> Any:
    import polars  # weight, as above

    return polars.read_ipc_stream(io.BytesIO(data))


def _series_of_frame(frame: Any) -> Any:
    return frame.to_series()


# --- Arrow's arrays without what lies beside them ---


def _drags(array: Any, pyarrow: Any) -> bool:
    shown = _viewed_bytes(array) if _is_view(array.type, pyarrow) else array.nbytes
    return bool(array.get_total_buffer_size() > shown + max(SLACK, shown // 8))


def _viewed_bytes(array: Any) -> int:
    """Of texts that are views, of which Arrow counts all that they might look at."""
    import numpy  # weight: only who sends such texts needs it

    # A view has 16 bytes: a length, and the text itself where that has at most 12, else where it lies.
    lengths = numpy.frombuffer(array.buffers()[1] or b"", numpy.int32)[::4][array.offset : array.offset + len(array)]
    return 16 * len(array) + int(lengths[lengths > 12].sum(dtype=numpy.int64))


def _is_view(kind: Any, pyarrow: Any) -> bool:
    return bool(pyarrow.types.is_string_view(kind) or pyarrow.types.is_binary_view(kind))


def trimmed(array: Any, pyarrow: Any) -> Any:
    """An equal array that holds no more than it shows; its numbers and texts stay where they lie.

    Offsets and validity are made anew, since they would count from the parent's beginning. Types that are seldom seen
    are copied.
    """
    types, kind = pyarrow.types, array.type
    if isinstance(array, pyarrow.ExtensionArray):
        return pyarrow.ExtensionArray.from_storage(kind, trimmed(array.storage, pyarrow))
    if types.is_dictionary(kind):
        indices, dictionary = trimmed(array.indices, pyarrow), _without_dragging(array.dictionary, pyarrow)
        return pyarrow.DictionaryArray.from_arrays(indices, dictionary, ordered=kind.ordered, safe=False)
    if _is_view(kind, pyarrow):
        gathered = pyarrow.large_string() if types.is_string_view(kind) else pyarrow.large_binary()
        return array.cast(gathered).cast(kind)
    if len(array) and types.is_fixed_size_list(kind):
        return _assembled(array, pyarrow, [], _fixed_values(array, pyarrow))
    if len(array) and (types.is_list(kind) or types.is_large_list(kind)):
        first, last, offsets = _own_offsets(array, 8 if types.is_large_list(kind) else 4, pyarrow)
        return _assembled(array, pyarrow, [offsets], trimmed(array.values.slice(first, last - first), pyarrow))
    if len(array) and _is_text(kind, types):
        is_large = types.is_large_string(kind) or types.is_large_binary(kind)
        first, last, offsets = _own_offsets(array, 8 if is_large else 4, pyarrow)
        data = array.buffers()[2]
        return _assembled(array, pyarrow, [offsets, None if data is None else data.slice(first, last - first)])
    if len(array) and (width := _byte_width(kind)):
        data = array.buffers()[1].slice(array.offset * width, len(array) * width)
        return _assembled(array, pyarrow, [data])
    return pyarrow.concat_arrays([array])


def _without_dragging(array: Any, pyarrow: Any) -> Any:
    return trimmed(array, pyarrow) if _drags(array, pyarrow) else array


def _fixed_values(array: Any, pyarrow: Any) -> Any:
    size = array.type.list_size
    return trimmed(array.values.slice(array.offset * size, len(array) * size), pyarrow)


def _is_text(kind: Any, types: Any) -> bool:
    tests = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return any(test(kind) for test in tests)


def _byte_width(kind: Any) -> int:
    """Of what is one buffer of items of the same width; 0 for all other types, and for what is counted in bits."""
    if kind.num_fields or kind.num_buffers != 2:
        return 0
    try:
        bits = int(kind.bit_width)
    except ValueError:
        return 0
    return bits // 8 if bits % 8 == 0 else 0


def _own_offsets(array: Any, width: int, pyarrow: Any) -> tuple[int, int, Any]:
    """Where its content begins and ends in its parent's, and its offsets as they count from there."""
    import numpy  # weight: only who sends such a slice needs it

    dtype = numpy.int64 if width == 8 else numpy.int32
    ends = numpy.frombuffer(array.buffers()[1], dtype)[array.offset : array.offset + len(array) + 1]
    return int(ends[0]), int(ends[-1]), pyarrow.py_buffer(ends - ends[0])


def _assembled(array: Any, pyarrow: Any, buffers: list[Any], child: Any = None) -> Any:
    """An array like this one, of these buffers, which begin where it does."""
    count = array.null_count
    # A bitmap may begin within a byte; a copy of it begins at one.
    validity = pyarrow.concat_arrays([array.is_valid()]).buffers()[1] if count else None
    children = None if child is None else [child]
    return pyarrow.Array.from_buffers(array.type, len(array), [validity, *buffers], count, 0, children)
