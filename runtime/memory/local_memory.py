"""Memory that a user passes (a tensor, an array, a memoryview) as an address range, and the object that keeps it.

`TensorForm` is the type and shape of a tensor or array, to make one again over other memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

CPU = "cpu"


@dataclass(frozen=True, slots=True)
class LocalMemory:
    """A memory range of this process. While `keep` exists, the memory is neither freed nor moved.

    `device` is "cpu" or torch's name of a GPU, such as "cuda:0"; `tensor` is the flat tensor of bytes, if there is one.
    """

    address: int
    size: int  # bytes
    device: str
    is_writable: bool
    keep: Any
    tensor: Any = None

    def part(self, offset: int, size: int) -> LocalMemory:
        """Return `size` bytes of it from `offset` on. The caller has checked the bounds."""
        if size == self.size:
            return self
        tensor = None if self.tensor is None else self.tensor[offset : offset + size]
        return LocalMemory(self.address + offset, size, self.device, self.is_writable, self.keep, tensor)

    def array(self) -> Any:
        """Return its bytes as a `ctypes` array. CPU memory only."""
        made = (ctypes.c_ubyte * self.size).from_address(self.address)
        made._kept = self.keep  # type: ignore[attr-defined]  # the array keeps this, and this the memory
        return made

    def view(self) -> memoryview:
        """Return its bytes. CPU memory only."""
        return memoryview(self.array()).cast("B")


class MemoryPool:
    """Memory for copies. The last piece returned is the next one taken: it is in the cache. Safe from any thread."""

    def __init__(self, allocate: Callable[[], LocalMemory], kept: int) -> None:
        self._allocate = allocate
        self._free: deque[LocalMemory] = deque(maxlen=kept)  # any thread appends and pops

    @contextlib.contextmanager
    def borrowed(self) -> Iterator[LocalMemory]:
        """Yield a piece. It is kept for the next copy, but not after an error: a GPU may still write to it."""
        try:
            found = self._free.pop()
        except IndexError:
            found = self._allocate()
        yield found
        self._free.append(found)


def local_memory(data: Any, what: str) -> LocalMemory:
    """Return the memory of a tensor, a NumPy array or any object with the buffer protocol, of any shape and type.

    `what` names it in errors. Raises ValueError if it is not contiguous or has no bytes. Raises TypeError if it is not
    memory, or if its bytes alone do not define it: Python objects, lazy conjugates, quantized and sparse tensors.
    """
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")  # loaded wherever a tensor or array exists
    if torch is not None and isinstance(data, torch.Tensor):
        return _of_tensor(data, what, torch)
    if numpy is not None and isinstance(data, numpy.ndarray):
        return _of_array(data, what, numpy)
    try:
        view = memoryview(data)
    except TypeError:
        kind = type(data).__qualname__
        remedy = "; pass its to_numpy()" if hasattr(data, "to_numpy") else ""
        raise TypeError(f"{what} must be a tensor, a NumPy array or a memoryview, not a {kind}{remedy}") from None
    except ValueError as error:
        raise ValueError(f"the memory of {what} cannot be used: {error}") from error  # released, closed
    return _of_view(view, what)


def _of_tensor(tensor: Any, what: str, torch: Any) -> LocalMemory:
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        kind = "quantized" if tensor.is_quantized else str(tensor.layout) if not tensor.is_nested else "nested"
        raise TypeError(
            f"{what} is a {kind} tensor, but only dense tensors are supported; pass the tensors that it contains"
        )
    if not tensor.is_contiguous():
        raise _scattered(what, tuple(tensor.shape), tensor.stride(), f"{what}.contiguous()")
    if tensor.is_conj() or tensor.is_neg():
        resolve = "resolve_conj" if tensor.is_conj() else "resolve_neg"
        raise TypeError(f"{what} is a lazy view, whose memory does not contain its values; pass {what}.{resolve}()")
    if not tensor.numel():
        raise ValueError(f"{what} has no bytes: its shape is {tuple(tensor.shape)}")
    try:
        flat = tensor.detach().view(-1).view(torch.uint8)
        address = flat.data_ptr()
    except RuntimeError:  # a functorch tensor, which represents several
        address = 0
    if not address:
        raise TypeError(f"{what} is a {type(tensor).__qualname__} on {tensor.device} that has no memory of its own")
    if flat.device.type != CPU:
        return LocalMemory(address, flat.numel(), f"{flat.device.type}:{flat.device.index}", True, flat, flat)
    # An array of the same memory: once torch has exported it, torch refuses to resize the storage, which would free it.
    return LocalMemory(address, flat.numel(), CPU, True, flat.numpy(), flat)


def _of_array(array: Any, what: str, numpy: Any) -> LocalMemory:
    if array.dtype.hasobject:
        raise _objects(what, array.dtype)
    if not array.flags.c_contiguous:
        raise _scattered(what, array.shape, array.strides, f"numpy.ascontiguousarray({what})")
    if not array.nbytes:
        raise ValueError(f"{what} has no bytes: its shape is {array.shape}")
    return _of_bytes(memoryview(array.reshape(-1).view(numpy.uint8)))  # dates do not support the buffer protocol


def _of_view(view: memoryview, what: str) -> LocalMemory:
    if "O" in view.format:
        raise _objects(what, view.format)
    if not view.c_contiguous:
        raise _scattered(what, view.shape, view.strides, "a copy of it")
    if not view.nbytes:
        raise ValueError(f"{what} has no bytes: its shape is {view.shape}")
    # No cast: not every format supports one. A PickleBuffer supports all formats, but a memoryview in a PickleBuffer
    # crashes Python (before 3.13) when the garbage collector finds both.
    return _of_bytes(view)


def _scattered(what: str, shape: object, strides: object, dense: str) -> ValueError:
    # For a destination, a copy would be filled instead of it, and discarded.
    remedy = "read into contiguous memory, and copy it from there" if what == "dst" else f"pass {dense}"
    return ValueError(f"{what} is not contiguous (shape {shape}, strides {strides}); {remedy}")


def _objects(what: str, kind: object) -> TypeError:
    return TypeError(f"{what} contains Python objects (type {kind}), whose addresses are valid only in this process")


def _of_bytes(view: memoryview) -> LocalMemory:
    # `ctypes` returns the address only for writable memory.
    buffer = _Buffer()
    _get_buffer(ctypes.py_object(view), ctypes.byref(buffer), _SIMPLE)
    address = int(buffer.address)
    _release_buffer(ctypes.byref(buffer))
    return LocalMemory(address, view.nbytes, CPU, not view.readonly, view)


_get_buffer, _release_buffer = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
_SIMPLE = 0  # the bytes as one contiguous block


class _Buffer(ctypes.Structure):
    """`Py_buffer` of Python's C API: only its first field and its total size matter here."""

    _fields_ = (("address", ctypes.c_void_p), ("others", ctypes.c_byte * 120))


class TensorForm(msgspec.Struct, frozen=True, array_like=True):
    """A dense tensor or array."""

    kind: str  # "torch" or "numpy"
    dtype: str  # the library's name for it
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype.lstrip('<=|')} {self.shape}"


def form_of(data: Any) -> TensorForm | None:
    """Return the form of a tensor or of an array of plain numbers; None for other memory, which is bytes."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(data, torch.Tensor):
        return TensorForm("torch", str(data.dtype).removeprefix("torch."), tuple(data.shape))
    if numpy is not None and isinstance(data, numpy.ndarray) and data.dtype.names is None:
        return TensorForm("numpy", data.dtype.str, data.shape)
    return None


def shaped(local: LocalMemory, form: TensorForm | None) -> Any:
    """Return the memory as a tensor or array of this form, without a copy; without a form, as a memoryview of bytes."""
    if form is None:
        return local.view()
    return _tensor(local, form) if form.kind == "torch" else _array(local, form)


def _tensor(local: LocalMemory, form: TensorForm) -> Any:
    import torch  # weight: only users of tensors need it

    flat = local.tensor if local.tensor is not None else torch.frombuffer(local.view(), dtype=torch.uint8)
    return flat.view(getattr(torch, form.dtype)).view(form.shape)


def _array(local: LocalMemory, form: TensorForm) -> Any:
    import numpy  # weight, as above

    array = numpy.frombuffer(local.view(), numpy.dtype(form.dtype)).reshape(form.shape)
    array.flags.writeable = local.is_writable
    return array
