"""Memory of this process: a copy."""

from __future__ import annotations

import ctypes

from meshbook.runtime import devices
from meshbook.runtime.memory.local_memory import CPU, LocalMemory
from meshbook.runtime.rdma.backends import BufferHandle, Lease, TransferJob
from meshbook.runtime.rdma.backends.process_memory import dropped
from meshbook.runtime.rdma.leases import LeaseTable
from meshbook.runtime.wire.messages import Address

PIECE = 64 << 20  # bytes between two checks of the deadline


class SameProcessBackend:
    """Copies within this process, from memory that its own lease keeps."""

    name = "same process"
    is_immediate = True

    def __init__(self, own: Address, incarnation: int, leases: LeaseTable) -> None:
        self._own = own
        self._incarnation = incarnation
        self._leases = leases

    def refusal(self, handle: BufferHandle, local: str | None) -> str:
        return (
            ""
            if (handle.owner, handle.incarnation) == (self._own, self._incarnation)
            else "the owner is another process"
        )

    def read(self, job: TransferJob) -> None:
        self._move(job, is_write=False)

    def write(self, job: TransferJob) -> None:
        self._move(job, is_write=True)

    def _move(self, job: TransferJob, *, is_write: bool) -> None:
        lent = self._leases.find(job.handle.lease.number)
        if lent is None:
            raise dropped(job.handle)
        user = object()
        try:
            lent.users.add(user)
            if lent.is_over:
                raise dropped(job.handle)
            theirs = lent.local.part(job.offset, job.local.size)
            _copy(job, *((theirs, job.local) if is_write else (job.local, theirs)))
        finally:
            lent.users.discard(user)

    def offer(self, local: LocalMemory, lease: Lease) -> bytes | None:
        return None

    def withdraw(self, handle: BufferHandle) -> None:
        return None

    def close(self) -> None:
        return None


def _copy(job: TransferJob, to: LocalMemory, source: LocalMemory) -> None:
    if to.device != CPU or source.device != CPU:
        job.wait_ready()
        _copy_by_torch(to, source)
        job.moved(to.size)
        return
    starts = range(0, to.size, PIECE)
    # In overlapping memory, bytes that are still to be copied must not be overwritten; within a piece `memmove` sees to
    # that.
    for start in reversed(starts) if to.address > source.address else starts:
        job.deadline.check(lambda: f"a copy of {to.size:,} bytes within the process of {job.handle.actor}")
        size = min(PIECE, to.size - start)
        ctypes.memmove(to.address + start, source.address + start, size)
        job.moved(size)


def _copy_by_torch(to: LocalMemory, source: LocalMemory) -> None:
    import torch  # weight: a tensor of a GPU exists, so torch is loaded

    target, origin = (
        local.tensor if local.tensor is not None else torch.frombuffer(local.view(), dtype=torch.uint8)
        for local in (to, source)
    )
    target.copy_(origin)
    if to.device != CPU:
        devices.wait_for_stream(to.device)  # a copy between two GPUs does not wait
