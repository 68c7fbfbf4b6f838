"""What a user gives us as memory: a tensor, an array, a memoryview -> where it lies, how long it is, what keeps it."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from typing import Any

CPU = "cpu"


@dataclass(frozen=True, slots=True)
class Local:
    """A stretch of memory of this process. `keep` holds it: as long as this is there, it is not freed or moved.

    `device` is "cpu" or torch's name of a GPU, as "cuda:0"; `tensor` is the flat tensor of bytes where there is one.
    """

    address: int
    size: int  # bytes
    device: str
    is_writable: bool
    keep: Any
    tensor: Any = None

    def part(self, offset: int, size: int) -> Local:
        """So many bytes of it from there on; who asks has checked that they are inside."""
        tensor = None if self.tensor is None else self.tensor[offset : offset + size]
        return Local(self.address + offset, size, self.device, self.is_writable, self.keep, tensor)

    def view(self) -> memoryview:
        """Its bytes, where it is memory of the CPU."""
        made = (ctypes.c_ubyte * self.size).from_address(self.address)
        made._kept = self.keep  # type: ignore[attr-defined]  # the view keeps this, and this the memory
        return memoryview(made).cast("B")


def local_memory(data: Any, what: str) -> Local:
    """The memory of a tensor, a NumPy array or anything with the buffer protocol, of any shape and type.

    `what` names it in errors. ValueError where it is not contiguous, or has no bytes; TypeError where it is no memory.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(data, torch.Tensor):
        return _of_tensor(data, what, torch)
    try:
        view = memoryview(data)
    except TypeError:
        kind = type(data).__qualname__
        raise TypeError(f"{what} is a {kind}: a tensor, an array or a memoryview is wanted") from None
    return _of_view(view, what)


def _of_tensor(tensor: Any, what: str, torch: Any) -> Local:
    if tensor.layout is not torch.strided or not tensor.is_contiguous():
        shape = tuple(tensor.shape)
        raise ValueError(
            f"{what} is not contiguous (shape {shape}, strides {tensor.stride()}): pass {what}.contiguous()"
        )
    flat = tensor.detach().view(-1).view(torch.uint8)
    if not flat.numel():
        raise ValueError(f"{what} has no bytes: its shape is {tuple(tensor.shape)}")
    device = CPU if flat.device.type == CPU else f"{flat.device.type}:{flat.device.index}"
    # An array of the same memory: since torch lent it out, it does not let the storage be resized, which would free it.
    keep = (flat, flat.numpy()) if device == CPU else flat
    return Local(flat.data_ptr(), flat.numel(), device, True, keep, flat)


def _of_view(view: memoryview, what: str) -> Local:
    if not view.c_contiguous:
        raise ValueError(f"{what} is not contiguous (shape {view.shape}, strides {view.strides}): pass a copy of it")
    if not view.nbytes:
        raise ValueError(f"{what} has no bytes: its shape is {view.shape}")
    flat = view.cast("B")
    return Local(_address_of(flat), flat.nbytes, CPU, not flat.readonly, flat)


def _address_of(view: memoryview) -> int:
    if not view.readonly:
        return ctypes.addressof(ctypes.c_ubyte.from_buffer(view))
    import numpy as np  # weight: ctypes has no address of what may only be read

    return int(np.frombuffer(view, np.uint8).ctypes.data)
