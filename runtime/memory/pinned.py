"""Pinned memory of the CPU, and copies between the CPU and GPUs through it.

A GPU copies to and from pinned memory at the full speed of its bus, and meanwhile the CPU copies the other piece. From
memory that is not pinned, torch copies at a fraction of that, and pinning takes longer than filling.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from meshbook.runtime import devices
from meshbook.runtime.memory.local_memory import LocalMemory, MemoryPool, local_memory

PIECE = 16 << 20  # bytes copied at a time
KEPT = 2  # pieces that are kept for the next copy
LEAST = 1 << 20  # bytes of a tensor that goes through pieces


def allocate(size: int) -> LocalMemory:
    """Return pinned memory."""
    import torch  # weight: a tensor of a GPU exists, so torch is loaded

    made: Any = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    return local_memory(made, "pinned memory")


class PinnedPieces:
    """Pieces of memory that GPUs can access. Safe from any thread."""

    def __init__(self, allocate: Callable[[int], LocalMemory] = allocate) -> None:
        self._pool = MemoryPool(lambda: allocate(PIECE), KEPT)
        self.borrowed = self._pool.borrowed

    def download(self, source: Any, to: Any, gpu: Any) -> None:
        """Copy bytes of this GPU to memory of the CPU; both are flat tensors. Waits for this thread's stream only."""
        arriving: tuple[Any, Any, Any] | None = None
        for between, part in self._cut(source):
            between.copy_(source[part], non_blocking=True)
            event = devices.record_event(gpu)
            if arriving is not None:
                _land(*arriving)
            arriving = event, between, to[part]
        if arriving is not None:
            _land(*arriving)

    def upload(self, source: Any, to: Any, gpu: Any) -> None:
        """Copy bytes of the CPU to memory of this GPU; both are flat tensors. Waits for this thread's stream only."""
        leaving: deque[Any] = deque()  # events of the copies from the two pieces
        for between, part in self._cut(source):
            if len(leaving) == 2:
                leaving.popleft().synchronize()
            between.copy_(source[part])
            to[part].copy_(between, non_blocking=True)
            leaving.append(devices.record_event(gpu))
        for event in leaving:
            event.synchronize()

    def _cut(self, source: Any) -> Iterator[tuple[Any, slice]]:
        """Yield each part of a flat tensor with memory for it, which is one of two pieces in turn."""
        size = source.numel()
        with self.borrowed() as one, self.borrowed() as other:
            for piece, start in zip(itertools.cycle((one, other)), range(0, size, PIECE), strict=False):
                part = slice(start, min(size, start + PIECE))
                yield piece.tensor[: part.stop - start], part


def _land(event: Any, between: Any, to: Any) -> None:
    event.synchronize()
    to.copy_(between)


PIECES = PinnedPieces()  # of this process


def move(tensor: Any, device: str) -> Any:
    """Return a tensor on the CPU or on the current GPU; a large dense one goes through pinned memory."""
    import torch  # weight, as above

    is_dense = tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized
    crosses = {tensor.device.type, device} == {"cpu", "cuda"}
    if not crosses or not is_dense or tensor.nbytes < LEAST or devices.is_capturing(None):
        return tensor.to(device)
    flat = tensor.resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)
    made = torch.empty(flat.shape, dtype=torch.uint8, device=device)
    if device == "cpu":
        PIECES.download(flat, made, flat.device)
    else:
        PIECES.upload(flat, made, made.device)
    return made.view(tensor.dtype).view(tensor.shape)
