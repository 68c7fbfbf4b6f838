"""Shape, strides and dtype of tensors that are elsewhere, and the inference of those of an operator's outputs.

The inference runs the operator on torch's meta device, where tensors have no data. It costs 50 to 160 µs, so its
results are cached (`operators.Cache`). Meta tensors cannot tell the outcome of operators whose output depends on the
data.

A controller may have no GPU where the ranks have one. torch ends the process when autograd meets a device that is not
there, so the tensors here are on `STAND_IN` then: for torch a device like any other, which always exists.
"""

from __future__ import annotations

import functools
import math
import threading
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch.utils._pytree import tree_map_only

from meshbook.runtime import devices

Key = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, int, torch.device, bool, bool, bool]
META = torch.device("meta")
GPU = torch.device("cuda")
STAND_IN = torch.device("cpu:0")  # tensors of the CPU are on "cpu", without a number


class Meta:
    """The metadata of a tensor. Equal ones are the same object, so that they compare and hash by identity."""

    __slots__ = (
        *("__weakref__", "device", "dtype", "has_bits", "here", "is_conj", "is_constant", "is_neg", "offset"),
        *("shape", "stride"),
    )

    _known: ClassVar[weakref.WeakValueDictionary[Key, Meta]] = weakref.WeakValueDictionary()
    _making: ClassVar[threading.RLock] = threading.RLock()  # guards additions; a finalizer may need metadata meanwhile
    has_stand_in: ClassVar[bool] = False  # whether `STAND_IN` has been used: only then it means a GPU

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    offset: int  # in elements, from the beginning of the storage
    device: torch.device  # on the ranks
    here: torch.device  # of the tensor in this process
    is_constant: bool  # the controller has the value as well: a number that all ranks share
    is_conj: bool  # torch's bits for values that are read as their conjugate, or negated
    is_neg: bool
    has_bits: bool  # one of them

    @classmethod
    def make(
        cls,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        dtype: torch.dtype,
        offset: int,
        device: torch.device,
        is_constant: bool = False,
        is_conj: bool = False,
        is_neg: bool = False,
    ) -> Meta:
        key = (shape, stride, dtype, offset, device, is_constant, is_conj, is_neg)
        found = cls._known.get(key)
        if found is None:
            made = cls.__new__(cls)
            made.shape, made.stride, made.dtype, made.offset, made.device = key[:5]
            made.is_constant, made.is_conj, made.is_neg = key[5:]
            made.here = device_here(device)
            made.has_bits = is_conj or is_neg
            with cls._making:
                found = cls._known.setdefault(key, made)
        return found

    @classmethod
    def of(cls, tensor: torch.Tensor, device: torch.device | None = None) -> Meta:
        """Return the metadata of a real or meta tensor, on another device if one is given.

        A device has no index: on several GPUs each rank has another one, and the tensors are those of one operation.
        """
        if tensor.layout is not torch.strided:
            raise NotImplementedError(f"tensors of a mesh must be dense, but this one has the layout {tensor.layout}")
        place = torch.device(device_on_ranks(tensor.device).type) if device is None else device
        layout = tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.storage_offset()
        return cls.make(*layout, place, False, tensor.is_conj(), tensor.is_neg())

    def as_constant(self, is_constant: bool) -> Meta:
        return Meta.make(*self._key[:5], is_constant, self.is_conj, self.is_neg)

    @property
    def _key(self) -> Key:
        layout = self.shape, self.stride, self.dtype, self.offset, self.device
        return *layout, self.is_constant, self.is_conj, self.is_neg

    def make_tensor(self) -> torch.Tensor:
        """Return a new meta tensor."""
        if self.offset:  # the storage has room for the offset: operators check that
            reach = sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True)) + 1
            whole = torch.empty(self.offset + max(reach, 0), dtype=self.dtype, device=META)
            tensor = whole.as_strided(self.shape, self.stride, self.offset)
        else:
            tensor = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=META)
        return self.set_bits(tensor) if self.has_bits else tensor

    def make_zeros(self) -> torch.Tensor:
        """Return a real tensor like this one."""
        return torch.zeros_like(self.make_tensor(), device=self.device)

    def set_bits(self, tensor: torch.Tensor) -> torch.Tensor:
        """Give a tensor the bits of this metadata."""
        torch._C._set_conj(tensor, self.is_conj)
        torch._C._set_neg(tensor, self.is_neg)
        return tensor

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * int(self.dtype.itemsize)

    def __reduce__(self) -> tuple[Any, ...]:
        return Meta.make, self._key

    def __repr__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


def device_here(device: torch.device) -> torch.device:
    """Return the device of tensors in this process whose values are on this device of the ranks."""
    if device.type != GPU.type or _has_gpu():
        return device
    Meta.has_stand_in = True
    return STAND_IN


@functools.cache
def _has_gpu() -> bool:
    return devices.count() > 0  # until CUDA is initialized, torch asks the driver each time


def device_on_ranks(device: torch.device) -> torch.device:
    """Return the device of the ranks that a device of this process stands for."""
    return GPU if Meta.has_stand_in and device == STAND_IN else device


def names_here(args: Any, kwargs: Any) -> Any:
    """Return the arguments of a call with devices that exist in this process."""

    def convert(value: Any) -> Any:
        is_gpu = isinstance(value, (str, torch.device)) and str(value).partition(":")[0] == GPU.type
        return device_here(torch.device(value)) if is_gpu else value

    return tuple(map(convert, args)), {name: convert(value) for name, value in kwargs.items()}


class Unknown(Exception):
    """The metadata of the outputs cannot be inferred without data."""


class ShapeRefused(Unknown):
    """Torch's rule for the shapes refuses the arguments with this error. Its kernel may take them."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def infer(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Return the result of an operator on meta tensors; `device=` arguments become the meta device.

    Raises Unknown for operators without a meta kernel, and ShapeRefused for arguments that do not fit.
    """
    with torch._C._DisableTorchDispatch():
        # A device among the arguments without a name: `full(size, value, None, None, device)`.
        places = tree_map_only(torch.device, lambda _: META, (args, kwargs))
        try:
            return func(*places[0], **places[1])
        except NotImplementedError as error:
            raise Unknown from error
        except RuntimeError as error:
            if "meta tensor" in str(error).lower():  # it needs the data
                raise Unknown from error
            raise ShapeRefused(error) from error
        except (TypeError, ValueError, IndexError) as error:
            raise ShapeRefused(error) from error


def target_device(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[Meta]) -> torch.device:
    """Return the device of the outputs: the named one, else that of the inputs; numbers may be on any device."""
    for index, argument in enumerate(func._schema.arguments):
        if argument.name == "device":
            named = args[index] if index < len(args) else kwargs.get("device")
            if named is not None:
                return torch.device(named)
    wide = next((meta for meta in inputs if meta.shape), inputs[0] if inputs else None)
    return torch.device("cpu") if wide is None else wide.device
