"""The bytes of a stretch of memory, on the CPU or a GPU, taken out and put in."""

from __future__ import annotations

import pickle
from typing import Any

from meshbook.runtime.memory.local import CPU, LocalMemory


def parcel_of(local: LocalMemory) -> pickle.PickleBuffer:
    """Its bytes, to be sent out of band.

    Not of a memoryview: with that in it a PickleBuffer ends Python (before 3.13) when the garbage collector finds both.
    """
    return pickle.PickleBuffer(local.array() if local.device == CPU else local.tensor.cpu().numpy())


def put_bytes(local: LocalMemory, data: Any) -> None:
    """Copy so many bytes as there are into it; of a GPU's memory this waits until they are there."""
    if local.device == CPU:
        local.view()[:] = data
        return
    import torch  # weight: there is a tensor of a GPU, so it is loaded

    source = torch.empty(local.size, dtype=torch.uint8)  # torch wants memory that may be written, and `data` may not be
    memoryview(source.numpy())[:] = data
    local.tensor.copy_(source)
    if local.tensor.is_cuda:  # others may read it by another stream, or from another process
        torch.cuda.synchronize(local.tensor.device)
