"""Staging of GPU memory through pinned host memory, for backends that reach CPU memory only."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from meshbook.runtime.memory.local_memory import CPU, LocalMemory, local_memory
from meshbook.runtime.rdma.backends import Transfer, TransferJob

PIECE = 16 << 20  # bytes staged at a time
KEPT = 2  # pieces of pinned memory that are kept for the next transfer: pinning takes longer than filling


class Staging:
    """The pinned memory of one process. Safe from any thread."""

    def __init__(self, allocate: Callable[[int], LocalMemory] | None = None) -> None:
        """`allocate` makes memory that the GPU can access; by default pinned memory."""
        self._allocate = allocate or _allocate_pinned
        self._free: deque[LocalMemory] = deque(maxlen=KEPT)  # any thread appends and pops

    def transfer_by(self, backend: Transfer) -> Transfer:
        """Return a transfer by the same backend, for GPU memory of this process."""
        return StagedTransfer(self, backend)

    @contextlib.contextmanager
    def borrowed(self) -> Iterator[LocalMemory]:
        """Yield a piece of pinned memory."""
        try:
            found = self._free.pop()
        except IndexError:
            found = self._allocate(PIECE)
        try:
            yield found
        finally:
            self._free.append(found)


class StagedTransfer:
    """A backend for CPU memory, with staging of GPU memory."""

    is_immediate = False

    def __init__(self, staging: Staging, backend: Transfer) -> None:
        self.name = backend.name
        self._staging = staging
        self._backend = backend

    def read(self, job: TransferJob) -> None:
        if job.local.device == CPU:  # called by `transfers.compare`
            self._backend.read(job)
            return
        for ours, step in self._steps(job):
            self._backend.read(step)
            ours.tensor.copy_(step.local.tensor)

    def write(self, job: TransferJob) -> None:
        for ours, step in self._steps(job):
            step.local.tensor.copy_(ours.tensor)
            self._backend.write(step)

    def _steps(self, job: TransferJob) -> Iterator[tuple[LocalMemory, TransferJob]]:
        """Yield for each piece the memory here and the transfer of the pinned memory."""
        job.wait_ready()
        with self._staging.borrowed() as between:
            for start in range(0, job.local.size, PIECE):
                size = min(PIECE, job.local.size - start)
                step = TransferJob(job.handle, job.offset + start, between.part(0, size), job.deadline, job.moved)
                yield job.local.part(start, size), step


def _allocate_pinned(size: int) -> LocalMemory:
    import torch  # weight: a tensor of a GPU exists, so torch is loaded

    made: Any = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    return local_memory(made, "pinned memory")
