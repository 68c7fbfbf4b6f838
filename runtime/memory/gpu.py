"""GPUs as torch knows them: which one that is, told so that other processes understand it, and waiting for them.

torch is loaded where there is memory of a GPU; nothing here loads it, or begins to use a GPU.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from meshbook.runtime.memory.local import LocalMemory

CUDA = "cuda:"


def is_in_use() -> bool:
    """Whether this process uses a GPU. To begin costs half a second, and memory of the GPU."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def name_everywhere(device: str) -> str:
    """`cuda:<UUID>` of torch's `cuda:0`, whose number differs between processes. Other devices keep their names."""
    return f"{CUDA}{_uuid(int(device.removeprefix(CUDA)))}" if device.startswith(CUDA) else device


def number_here(name: str) -> int | None:
    """Which GPU of this process that is, by such a name; None where it is not visible here (CUDA_VISIBLE_DEVICES)."""
    count = _torch().cuda.device_count()
    return next((number for number in range(count) if f"{CUDA}{_uuid(number)}" == name), None)


def settle(*memories: LocalMemory) -> None:
    """Wait until what these GPUs were told to do before is done: on all streams, since whose it is cannot be known."""
    for device in {each.device for each in memories}:
        if device.startswith(CUDA):
            _torch().cuda.synchronize(device)


@functools.cache
def _uuid(number: int) -> str:
    return str(_torch().cuda.get_device_properties(number).uuid)


def _torch() -> Any:
    return sys.modules["torch"]
