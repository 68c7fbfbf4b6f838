"""Pieces of memory between a process and a socket, and the buffers that they pass through.

One thread seals a piece into a buffer and sends it from there. The socket buffers a whole piece, so it drains while the
next one is sealed. A second thread that copies meanwhile gains nothing: measured in turns at 64 MiB on two free cores,
writes went from 0.78-0.87 of a plain socket to 0.77-0.92, reads from 1.05-1.31 to 0.90-1.14.

A plain socket copies twice, this copies three times, and each side encrypts or decrypts: that is the remaining
difference. Tried at 64 MiB on two busy cores without gain: pieces of 256 KiB (they stay in the nearer cache, but calls
and wake-ups cost the server more than a third as much again), small socket buffers, fewer wake-ups (SO_RCVLOWAT), and
lending pages to the socket (vmsplice), which costs the sender more than copying them.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator

from meshbook.runtime.memory.local_memory import CPU, LocalMemory, MemoryPool
from meshbook.runtime.memory.pages import want_large
from meshbook.runtime.rdma.memory_protocol import TAG

PIECE = 4 << 20  # bytes; fastest of 256 KiB to 8 MiB: fits in a socket's buffer and in the CPU cache
ALIGNMENT = 2 << 20  # of large pages
KEPT = 8  # buffers that are kept for the next transfers


def make_buffers() -> MemoryPool:
    """Return buffers for sealed pieces."""
    return MemoryPool(_make_buffer, KEPT)


def cut(size: int) -> Iterator[tuple[int, int]]:
    """Yield the start and the size of each piece of `size` bytes."""
    most = PIECE
    return ((start, min(most, size - start)) for start in range(0, size, most))


def _make_buffer() -> LocalMemory:
    # Private: copying into pages that could be shared takes half as long again.
    memory = mmap.mmap(-1, PIECE + ALIGNMENT, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = ctypes.addressof(ctypes.c_ubyte.from_buffer(memory))
    address = -(-start // ALIGNMENT) * ALIGNMENT
    want_large(address, PIECE)
    return LocalMemory(address, PIECE + TAG, CPU, True, memory)  # at least one page remains behind the piece
