"""Whether the bytes here are those over there: they are read a second time, and compared.

A sum that the owner had made would need him to be awake. So whoever moved the bytes reads them again from the owner's
memory, in small pieces, and compares each with what he has: as certain as a checksum can be, for the price of
another reading. What it tells is that nobody wrote to either side between the transfer and the second look, and that
nothing was lost on the way. What is written over there afterwards, it cannot tell.
"""

from __future__ import annotations

import ctypes

from meshbook.runtime.errors import ChecksumMismatch
from meshbook.runtime.memory.local import CPU, LocalMemory, local_memory
from meshbook.runtime.rdma.backends import Transfer, TransferJob

PIECE = 1 << 20  # bytes that are compared at a time: they stay in the processor's cache


def compare(job: TransferJob, way: Transfer) -> None:
    """ChecksumMismatch where the bytes of a transfer that was carried out differ by now."""
    again = local_memory(bytearray(min(PIECE, job.local.size)), "a piece")
    for start in range(0, job.local.size, PIECE):
        size = min(PIECE, job.local.size - start)
        piece = again.part(0, size)
        way.read(TransferJob(job.handle, job.offset + start, piece, job.deadline))
        if not _is_same(piece, job.local.part(start, size)):
            raise ChecksumMismatch(_tell(job, start, size))


def _is_same(piece: LocalMemory, ours: LocalMemory) -> bool:
    if ours.device == CPU:
        return bool(_memcmp(piece.address, ours.address, piece.size) == 0)
    return bool(piece.view() == ours.tensor.cpu().numpy().data)  # of a GPU: it comes here first


def _tell(job: TransferJob, start: int, size: int) -> str:
    first = job.offset + start
    return (
        f"bytes {first:,} to {first + size:,} of the buffer of {job.handle.actor} are not those here: somebody wrote "
        f"to them meanwhile. Agree on turns, or do it again"
    )


_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_memcmp.restype = ctypes.c_int
