"""What a user gives us as memory: a tensor, an array, a memoryview -> where it lies, how long it is, what keeps it."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from typing import Any

CPU = "cpu"


@dataclass(frozen=True, slots=True)
class LocalMemory:
    """A stretch of memory of this process. `keep` holds it: as long as this is there, it is not freed or moved.

    `device` is "cpu" or torch's name of a GPU, as "cuda:0"; `tensor` is the flat tensor of bytes where there is one.
    """

    address: int
    size: int  # bytes
    device: str
    is_writable: bool
    keep: Any
    tensor: Any = None

    def part(self, offset: int, size: int) -> LocalMemory:
        """So many bytes of it from there on; who asks has checked that they are inside."""
        if size == self.size:
            return self
        tensor = None if self.tensor is None else self.tensor[offset : offset + size]
        return LocalMemory(self.address + offset, size, self.device, self.is_writable, self.keep, tensor)

    def array(self) -> Any:
        """Its bytes as an array of `ctypes`, where it is memory of the CPU."""
        made = (ctypes.c_ubyte * self.size).from_address(self.address)
        made._kept = self.keep  # type: ignore[attr-defined]  # the array keeps this, and this the memory
        return made

    def view(self) -> memoryview:
        """Its bytes, where it is memory of the CPU."""
        return memoryview(self.array()).cast("B")


def local_memory(data: Any, what: str) -> LocalMemory:
    """The memory of a tensor, a NumPy array or anything with the buffer protocol, of any shape and type.

    `what` names it in errors. ValueError where it is not contiguous, or has no bytes; TypeError where it is no memory,
    or where its bytes alone are not what it says: Python objects, lazy conjugates, quantized and sparse tensors.
    """
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")  # who has a tensor has loaded it
    if torch is not None and isinstance(data, torch.Tensor):
        return _of_tensor(data, what, torch)
    if numpy is not None and isinstance(data, numpy.ndarray):
        return _of_array(data, what, numpy)
    try:
        view = memoryview(data)
    except TypeError:
        kind = type(data).__qualname__
        dense = ", such as its to_numpy()" if hasattr(data, "to_numpy") else ""
        raise TypeError(f"{what} is a {kind}: a tensor, a NumPy array or a memoryview is wanted{dense}") from None
    except ValueError as error:
        raise ValueError(f"{what} is no memory that can be used: {error}") from error  # released, closed
    return _of_view(view, what)


def _of_tensor(tensor: Any, what: str, torch: Any) -> LocalMemory:
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        kind = "quantized" if tensor.is_quantized else str(tensor.layout) if not tensor.is_nested else "nested"
        raise TypeError(f"{what} is a {kind} tensor, whose bytes alone do not make it: pass the tensors it is made of")
    if not tensor.is_contiguous():
        raise _scattered(what, tuple(tensor.shape), tensor.stride(), f"{what}.contiguous()")
    if tensor.is_conj() or tensor.is_neg():
        resolve = "resolve_conj" if tensor.is_conj() else "resolve_neg"
        raise TypeError(f"{what} is a view that changes each number as it is read: pass {what}.{resolve}()")
    if not tensor.numel():
        raise ValueError(f"{what} has no bytes: its shape is {tuple(tensor.shape)}")
    try:
        flat = tensor.detach().view(-1).view(torch.uint8)
        address = flat.data_ptr()
    except RuntimeError:  # one of functorch's, which stands for several
        address = 0
    if not address:
        raise TypeError(f"{what} is a {type(tensor).__qualname__} on {tensor.device} that has no memory of its own")
    if flat.device.type != CPU:
        return LocalMemory(address, flat.numel(), f"{flat.device.type}:{flat.device.index}", True, flat, flat)
    # An array of the same memory: since torch lent it out, it does not let the storage be resized, which would free it.
    return LocalMemory(address, flat.numel(), CPU, True, flat.numpy(), flat)


def _of_array(array: Any, what: str, numpy: Any) -> LocalMemory:
    if array.dtype.hasobject:
        raise _objects(what, array.dtype)
    if not array.flags.c_contiguous:
        raise _scattered(what, array.shape, array.strides, f"numpy.ascontiguousarray({what})")
    if not array.nbytes:
        raise ValueError(f"{what} has no bytes: its shape is {array.shape}")
    return _of_bytes(memoryview(array.reshape(-1).view(numpy.uint8)))  # dates have no buffer


def _of_view(view: memoryview, what: str) -> LocalMemory:
    if "O" in view.format:
        raise _objects(what, view.format)
    if not view.c_contiguous:
        raise _scattered(what, view.shape, view.strides, "a copy of it")
    if not view.nbytes:
        raise ValueError(f"{what} has no bytes: its shape is {view.shape}")
    # Without a cast, which not every format has. A PickleBuffer has one for all, but a memoryview that was put into one
    # ends Python (before 3.13) when the garbage collector finds both.
    return _of_bytes(view)


def _scattered(what: str, shape: object, strides: object, dense: str) -> ValueError:
    # A copy of what is to be filled would be filled in its place, and thrown away.
    remedy = "read into memory that is, and copy it there then" if what == "dst" else f"pass {dense}"
    return ValueError(f"{what} is not contiguous (shape {shape}, strides {strides}): {remedy}")


def _objects(what: str, kind: object) -> TypeError:
    return TypeError(f"{what} has Python objects in it (type {kind}): their addresses mean nothing elsewhere")


def _of_bytes(view: memoryview) -> LocalMemory:
    return LocalMemory(_address_of(view), view.nbytes, CPU, not view.readonly, view)


def _address_of(view: memoryview) -> int:
    """Where it begins; `ctypes` has that only of what may be written to."""
    buffer = _Buffer()
    _get_buffer(ctypes.py_object(view), ctypes.byref(buffer), _SIMPLE)
    address = buffer.address
    _release_buffer(ctypes.byref(buffer))
    return int(address)


_get_buffer, _release_buffer = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
_SIMPLE = 0  # its bytes, in one piece


class _Buffer(ctypes.Structure):
    """`Py_buffer` of Python's C API: of its fields the first matters here, and the size of all."""

    _fields_ = (("address", ctypes.c_void_p), ("others", ctypes.c_byte * 120))
