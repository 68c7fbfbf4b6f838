"""Read and write the bytes of a memory range on the CPU or a GPU."""

from __future__ import annotations

import pickle
from typing import Any

from meshbook.runtime.memory.local import CPU, LocalMemory


def parcel_of(local: LocalMemory) -> pickle.PickleBuffer:
    """Return the bytes for sending out of band.

    Not made of a memoryview: a PickleBuffer of one crashes Python (before 3.13) when the garbage collector finds both.
    """
    return pickle.PickleBuffer(local.array() if local.device == CPU else local.tensor.cpu().numpy())


def put_bytes(local: LocalMemory, data: Any) -> None:
    """Copy `data` into the memory. For a GPU, wait until the copy is done."""
    if local.device == CPU:
        local.view()[:] = data
        return
    import torch  # weight: a tensor of a GPU exists, so torch is loaded

    source = torch.empty(local.size, dtype=torch.uint8)  # `data` may be read-only, which torch does not accept
    memoryview(source.numpy())[:] = data
    local.tensor.copy_(source)
    if local.tensor.is_cuda:  # another stream or another process may read it
        torch.cuda.synchronize(local.tensor.device)
