"""How to pickle arrays, tensors and tables out of band, where the libraries would put them into the pickle stream.

NumPy: strided arrays, dates, masked arrays and mapped files. Dense arrays of numbers need none of this: NumPy exports
their memory as it is. Small ones stay in the stream.

Arrow tables and Polars frames: their columns are buffers already, and are sent as they are. A slice of an
Arrow array is a view that keeps all of its parent, and pyarrow pickles the parent; here only the slice's contents are
sent (`slices`). pyarrow pickles the arrays that keep nothing extra.

Tensors of torch: a view sends its own bytes and not the whole memory behind it. A tensor of a GPU arrives on the GPU of
the receiver, or on the CPU if the receiver uses none. Sparse and nested tensors consist of dense ones. Modules with
parametrizations, such as weight_norm, have no pickle at all.
"""

from __future__ import annotations

import io
import pickle
import sys
from typing import Any

from meshbook.runtime import devices
from meshbook.runtime.memory.pinned import move
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


def reduce_tensor(tensor: Any) -> Any:
    """Return how to pickle a tensor of no subclass; NotImplemented for others, and if torch's way is as good."""
    torch = sys.modules["torch"]
    if type(tensor) is not torch.Tensor:
        return NotImplemented
    device, needs_grad = tensor.device.type, tensor.requires_grad
    is_dense = tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized
    if device == "cpu" and is_dense:
        plain = tensor.detach()
        if tensor.is_conj() or tensor.is_neg():
            plain = plain.resolve_conj().resolve_neg()
        flat = plain.contiguous().view(-1)
        if flat.stride(0) != 1:  # a single element of an expanded tensor, which counts as contiguous
            flat = flat.as_strided(flat.shape, (1,))
        flat = flat.view(torch.uint8)
        name = str(tensor.dtype).removeprefix("torch.")
        return _rebuild_tensor, (pickle.PickleBuffer(flat.numpy()), name, tuple(tensor.shape), needs_grad)
    if device == "meta":
        return NotImplemented
    if device != "cpu" or needs_grad:  # torch forgets that a sparse tensor requires grad
        return _settle, (move(tensor.detach(), "cpu"), device, needs_grad)
    if tensor.is_quantized and tensor.untyped_storage().nbytes() > tensor.nbytes:
        return tensor.clone().__reduce_ex__(5)  # without the rest of the memory
    return NotImplemented


def reduce_subclass(tensor: Any) -> Any:
    """Return how to pickle a tensor of a subclass: torch's way, with the memory as a tensor without the subclass."""
    torch = sys.modules["torch"]
    reduced = tensor.__reduce_ex__(5)
    if not isinstance(reduced, tuple) or reduced[0] is not torch._tensor._rebuild_from_type_v2:
        return reduced
    make, cls, args, state = reduced[1]
    if make is torch._utils._rebuild_wrapper_subclass:  # it has no memory, and its parts are in the state
        args = tuple(_ArrivalDevice(each.type) if isinstance(each, torch.device) else each for each in args)
        return reduced[0], (make, cls, args, state)
    if make not in (torch._utils._rebuild_tensor_v2, torch._utils._rebuild_tensor_v3):
        return reduced
    with torch._C.DisableTorchFunctionSubclass():
        plain = tensor.detach().as_subclass(torch.Tensor)
    return _rebuild_subclass, (plain, cls, state, tensor.requires_grad)


def reduce_unfinished(value: Any) -> Any:
    """Return how to pickle the result of a collective that may still run: as a tensor, when the collective is done."""
    return reduce_tensor(value.trigger_wait()) if type(value).__name__ == "AsyncCollectiveTensor" else NotImplemented


def refuse_dtensor(value: Any) -> Any:
    """Refuse to pickle a DTensor: the receiver is not in its process groups, or holds another shard."""
    if type(value).__name__ != "DTensor":
        return NotImplemented
    raise TypeError("a DTensor belongs to the ranks of its mesh: send its .full_tensor() or its .to_local()")


class _ArrivalDevice:
    """A device of the sender; pickled, it is that on which its tensors arrive."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __reduce__(self) -> Any:
        return devices.arrival_device, (self._kind,)


def _rebuild_tensor(buffer: Buffer, dtype: str, shape: tuple[int, ...], requires_grad: bool) -> Any:
    import torch  # weight: only receivers of tensors need it

    if not memoryview(buffer).nbytes:  # torch does not accept empty memory
        return torch.empty(shape, dtype=getattr(torch, dtype), requires_grad=requires_grad)
    tensor = torch.frombuffer(buffer, dtype=getattr(torch, dtype)).view(shape)
    return tensor.requires_grad_(requires_grad) if requires_grad else tensor


def _rebuild_subclass(plain: Any, cls: type, state: Any, requires_grad: bool) -> Any:
    import torch  # weight, as above

    made = torch._tensor._rebuild_from_type_v2(lambda: plain, cls, (), state)
    return made.requires_grad_(requires_grad)


def _settle(tensor: Any, kind: str, requires_grad: bool) -> Any:
    return move(tensor, devices.arrival_device(kind)).requires_grad_(requires_grad)


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
