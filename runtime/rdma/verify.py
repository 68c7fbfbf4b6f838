"""Verification of a transfer: read the bytes a second time and compare them.

A checksum by the owner would require its participation. So the process that moved the bytes reads them again from the
owner's memory, in small pieces, and compares: as certain as a checksum, for the price of a second read. It detects
writes to either side between the transfer and the second read, and bytes lost on the way. It does not detect later
writes by the owner.
"""

from __future__ import annotations

import ctypes

from meshbook.runtime.errors import ChecksumMismatch
from meshbook.runtime.memory.local import CPU, LocalMemory, local_memory
from meshbook.runtime.rdma.backends import Transfer, TransferJob

PIECE = 1 << 20  # bytes compared at a time: they stay in the CPU cache


def compare(job: TransferJob, backend: Transfer) -> None:
    """Raise ChecksumMismatch if the bytes of a finished transfer differ now."""
    again = local_memory(bytearray(min(PIECE, job.local.size)), "a piece")
    for start in range(0, job.local.size, PIECE):
        size = min(PIECE, job.local.size - start)
        piece = again.part(0, size)
        backend.read(TransferJob(job.handle, job.offset + start, piece, job.deadline))
        if not _is_same(piece, job.local.part(start, size)):
            raise ChecksumMismatch(_tell(job, start, size))


def _is_same(piece: LocalMemory, ours: LocalMemory) -> bool:
    if ours.device == CPU:
        return bool(_memcmp(piece.address, ours.address, piece.size) == 0)
    return bool(piece.view() == ours.tensor.cpu().numpy().data)  # on a GPU: copied to the CPU first


def _tell(job: TransferJob, start: int, size: int) -> str:
    first = job.offset + start
    return (
        f"bytes {first:,} to {first + size:,} of the buffer of {job.handle.actor} differ from those here: they were "
        "written to during the transfer. Synchronize the accesses, or try again"
    )


_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_memcmp.restype = ctypes.c_int
