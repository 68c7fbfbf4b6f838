"""The form of lent memory: the type and shape of its tensor or array, to make one again over other memory."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from meshbook.runtime.memory.local import LocalMemory


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
