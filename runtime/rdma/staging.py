"""Staging of GPU memory through pinned host memory, for backends that reach CPU memory only."""

from __future__ import annotations

from collections.abc import Iterator

from meshbook.runtime.memory import pinned
from meshbook.runtime.memory.local_memory import CPU, LocalMemory
from meshbook.runtime.rdma.backends import Transfer, TransferJob


class StagedTransfer:
    """A backend for CPU memory, with staging of GPU memory."""

    is_immediate = False

    def __init__(self, pieces: pinned.PinnedPieces, backend: Transfer) -> None:
        self.name = backend.name
        self._pieces = pieces
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
        with self._pieces.borrowed() as between:
            for start in range(0, job.local.size, pinned.PIECE):
                size = min(pinned.PIECE, job.local.size - start)
                step = TransferJob(job.handle, job.offset + start, between.part(0, size), job.deadline, job.moved)
                yield job.local.part(start, size), step
