"""How to pickle arrays and tables out of band, where the libraries would put them into the pickle stream.

NumPy: strided arrays, dates, masked arrays and mapped files. Dense arrays of numbers need none of this: NumPy exports
their memory as it is. Small ones stay in the stream.

Arrow tables and Polars frames: their columns are buffers already, and are sent as they are. A slice of an
Arrow array is a view that keeps all of its parent, and pyarrow pickles the parent; here only the slice's contents are
sent (`slices`). pyarrow pickles the arrays that keep nothing extra.

Modules of torch with parametrizations, such as weight_norm, have no pickle at all.
"""

from __future__ import annotations

import io
import pickle
import sys
from typing import Any

from meshbook.runtime.wire.frames import Buffer
from meshbook.runtime.wire.slices import keeps_more, trimmed

SMALL = 4096  # bytes: below, a copy costs less than a separate buffer
_PLAIN_KINDS = "biufcmMSUV"  # dtype kinds whose items consist of bytes only, unless they contain objects


def reduce_array(array: Any) -> Any:
    """Return how to pickle an array, as `__reduce__` does; NotImplemented if NumPy's own way is as good."""
    numpy = sys.modules["numpy"]
    if not isinstance(array, numpy.ndarray) or array.nbytes < SMALL:
        return NotImplemented
    if array.dtype.kind not in _PLAIN_KINDS or array.dtype.hasobject:
        return NotImplemented
    if type(array) is numpy.ma.MaskedArray:
        mask = array.mask if array.mask is not numpy.ma.nomask else None
        return _rebuild_masked, (array.data, mask, array._fill_value, array.hardmask)
    is_dense = array.flags.c_contiguous or array.flags.f_contiguous
    # NumPy exports dense arrays itself, but the buffer protocol does not support dates.
    if type(array) is numpy.ndarray and is_dense and array.dtype.kind not in "mM":
        return NotImplemented
    # Of a mapped file, this sends the contents and not the path.
    if type(array) not in (numpy.ndarray, numpy.memmap):
        return NotImplemented
    order = "F" if array.flags.fnc else "C"
    dense = numpy.asarray(array, order=order).reshape(-1, order=order)
    buffer = pickle.PickleBuffer(dense.view(numpy.ndarray).view(numpy.uint8))
    return _rebuild_dense, (buffer, array.dtype, array.shape, order)


def _rebuild_dense(buffer: Buffer, dtype: Any, shape: tuple[int, ...], order: str) -> Any:
    import numpy  # weight: only receivers of arrays need it

    return numpy.frombuffer(buffer, dtype).reshape(shape, order=order)


def _rebuild_masked(data: Any, mask: Any, fill_value: Any, is_hard: bool) -> Any:
    from numpy import ma  # weight, as above

    whole = ma.nomask if mask is None else mask
    return ma.MaskedArray(data, whole, fill_value=fill_value, hard_mask=is_hard, copy=False)


def reduce_parametrized(value: Any) -> Any:
    """Return how to pickle a module with parametrizations: as one of its own class, which the receiver injects anew.

    torch makes a class for each of these modules, which refuses pickle; `register_parametrization` injects it.
    """
    if "parametrizations" not in vars(value).get("_modules", ()):
        return NotImplemented
    return _make_plain, (type(value).__base__,), vars(value), None, None, _fill_parametrized


def _make_plain(cls: type) -> Any:
    return object.__new__(cls)


def _fill_parametrized(module: Any, state: dict[str, Any]) -> None:
    from torch.nn.utils import parametrize  # weight: only receivers of these modules need it

    vars(module).update(state)
    parametrize._inject_new_class(module)
    for name in module.parametrizations:
        parametrize._inject_property(module, name)


def reduce_arrow(value: Any) -> Any:
    """Return how to pickle an Arrow array, as `__reduce__` does. Tables and batches consist of such arrays."""
    pyarrow = sys.modules["pyarrow"]
    if not isinstance(value, pyarrow.Array) or not keeps_more(value, pyarrow):
        return NotImplemented
    return trimmed(value, pyarrow).__reduce__()


def reduce_frame(frame: Any) -> Any:
    """Return how to pickle a Polars frame: as an Arrow table, which shares its memory; without pyarrow as Arrow IPC."""
    polars = sys.modules["polars"]
    # For Python objects Arrow would get the addresses; Polars itself reports that they cannot be sent.
    if type(frame) is not polars.DataFrame or any(_has_objects(dtype, polars) for dtype in frame.dtypes):
        return NotImplemented
    newest = polars.CompatLevel.newest()
    try:
        return _frame_of_arrow, (frame.to_arrow(compat_level=newest),)
    except (ImportError, ValueError):  # no pyarrow, or a type that Arrow lacks, such as Int128
        stream = io.BytesIO()
        frame.write_ipc_stream(stream, compat_level=newest)
        return _frame_of_ipc, (pickle.PickleBuffer(stream.getvalue()),)


def reduce_series(series: Any) -> Any:
    """Return how to pickle a Polars series: as a frame of one column."""
    if type(series) is not sys.modules["polars"].Series:
        return NotImplemented
    return _series_of_frame, (series.to_frame(),)


def refuse_relation(relation: Any) -> Any:
    """Refuse to pickle a DuckDB query, and name the alternatives. Running it implicitly might take hours."""
    if type(relation).__name__ != "DuckDBPyRelation":
        return NotImplemented
    raise TypeError("a DuckDB query belongs to its connection: send the result of its .to_arrow_table() or .pl()")


def _has_objects(dtype: Any, polars: Any) -> bool:
    parts = [field.dtype for field in getattr(dtype, "fields", ())]
    parts += [dtype.inner] if getattr(dtype, "inner", None) is not None else []
    return bool(dtype == polars.Object) or any(_has_objects(part, polars) for part in parts)


def _frame_of_arrow(table: Any) -> Any:
    import polars  # weight: only receivers of frames need it

    return polars.from_arrow(table, rechunk=False)


def _frame_of_ipc(data: Buffer) -> Any:
    import polars  # weight, as above

    return polars.read_ipc_stream(io.BytesIO(data))


def _series_of_frame(frame: Any) -> Any:
    return frame.to_series()
