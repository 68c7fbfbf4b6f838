"""NumPy arrays that NumPy itself would put into the pickle stream: strided ones, dates, masked ones, mapped files.

Dense arrays of numbers need none of this: NumPy exports their memory as it is. Small ones stay in the stream.
"""

from __future__ import annotations

import pickle
import sys
from typing import Any

from meshbook.runtime.wire.frames import Buffer

SMALL = 4096  # bytes: below, a copy costs less than a separate buffer
_PLAIN_KINDS = "biufcmMSUV"  # dtype kinds whose items consist of bytes only, unless they contain objects


def reduce_array(array: Any) -> Any:
    """Return how to pickle an array, as `__reduce__` does; NotImplemented if NumPy's own way is as good."""
    numpy = sys.modules["numpy"]
    if not isinstance(array, numpy.ndarray) or array.nbytes < SMALL or not _is_plain(array.dtype):
        return NotImplemented
    if type(array) is numpy.ma.MaskedArray:
        mask = array.mask if array.mask is not numpy.ma.nomask else None
        return _rebuild_masked, (array.data, mask, array._fill_value, array.hardmask)
    is_mapped = type(array) is numpy.memmap  # sends the contents, not the path
    if is_mapped or (type(array) is numpy.ndarray and not _travels_by_itself(array)):
        return _reduce_dense(array, numpy)
    return NotImplemented


def _is_plain(dtype: Any) -> bool:
    return dtype.kind in _PLAIN_KINDS and not dtype.hasobject


def _travels_by_itself(array: Any) -> bool:
    # The buffer protocol does not support dates.
    return (array.flags.c_contiguous or array.flags.f_contiguous) and array.dtype.kind not in "mM"


def _reduce_dense(array: Any, numpy: Any) -> tuple[Any, ...]:
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
