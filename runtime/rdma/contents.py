"""The bytes of a stretch of memory, on the CPU or a GPU, taken out and put in."""

from __future__ import annotations

from typing import Any

from meshbook.runtime.memory.local import CPU, Local


def bytes_of(local: Local) -> memoryview:
    """Its bytes: of the CPU's memory a view, of a GPU's a copy, for which this waits."""
    if local.device == CPU:
        return local.view()
    return memoryview(local.tensor.cpu().numpy())


def put_bytes(local: Local, data: Any) -> None:
    """Copy so many bytes as there are into it; of a GPU's memory this waits until they are there."""
    if local.device == CPU:
        local.view()[:] = data
        return
    import torch  # weight: there is a tensor of a GPU, so it is loaded

    local.tensor.copy_(torch.frombuffer(data, dtype=torch.uint8))
    torch.cuda.synchronize(local.tensor.device)
