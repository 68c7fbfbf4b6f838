"""GPUs as torch sees them: names that are valid in every process, and synchronization.

This module neither loads torch nor initializes a GPU: torch is loaded wherever GPU memory exists.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from meshbook.runtime.memory.local import LocalMemory

CUDA = "cuda:"


def is_in_use() -> bool:
    """Return whether this process uses a GPU. Initializing one costs half a second, and memory of the GPU."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def name_everywhere(device: str) -> str:
    """Return `cuda:<UUID>` for torch's `cuda:0`, whose number differs between processes. Return other names as is."""
    return f"{CUDA}{_uuid(int(device.removeprefix(CUDA)))}" if device.startswith(CUDA) else device


def number_here(name: str) -> int | None:
    """Return this process's number for a GPU with such a name; None if it is not visible (CUDA_VISIBLE_DEVICES)."""
    count = _torch().cuda.device_count()
    return next((number for number in range(count) if f"{CUDA}{_uuid(number)}" == name), None)


def settle(*memories: LocalMemory) -> None:
    """Wait for all queued work on these GPUs, on all streams: the stream that uses the memory is unknown."""
    for device in {each.device for each in memories}:
        if device.startswith(CUDA):
            _torch().cuda.synchronize(device)


@functools.cache
def _uuid(number: int) -> str:
    return str(_torch().cuda.get_device_properties(number).uuid)


def _torch() -> Any:
    return sys.modules["torch"]
