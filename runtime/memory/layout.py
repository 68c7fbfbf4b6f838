"""The memory layout of a segment, shared by its sender and its receivers: a page of words, then the data.

Each receiver has a word with the state of the message for it. A receiver returns the segment by a change of its word,
without a message: the sender checks the words when it next needs a segment.

    free --the sender--> ticket --opened--> ticket + 1 --the last view is gone--> free, or spoilt: not to be reused
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Sequence
from typing import Any

import msgspec

from meshbook.runtime.memory.process_identity import ProcessMark

HEADER = mmap.PAGESIZE
TOKEN, FIRST_WORD, WORDS = 0, 8, 512  # indices into the first 4 KiB, in words of 8 bytes
MOST_READERS = WORDS - FIRST_WORD
FREE, SPOILT = 0, (1 << 64) - 1
ALIGNMENT = 64


class SegmentReference(msgspec.Struct, frozen=True, array_like=True):
    """The location of a message's bytes, for one reader. Valid once, in that process, while the word holds the ticket.

    A tensor in it is writable; with `is_shared`, that needs no copy on write.
    """

    owner: ProcessMark
    descriptor: int  # of the owner
    token: int  # of the segment: detects a reused descriptor
    size: int  # of the whole segment, in bytes
    address: int  # of the data, in the owner's memory
    reader: ProcessMark
    word: int
    ticket: int
    is_shared: bool

    @property
    def path(self) -> str:
        """The path under which other processes open the segment."""
        return f"/proc/{self.owner.pid}/fd/{self.descriptor}"


def starts_of(lengths: Sequence[int]) -> list[int]:
    """Return the start of each part of these lengths in the data, one after the other, and the end of the last one."""
    starts, end = [], 0
    for length in lengths:
        start = -(-end // ALIGNMENT) * ALIGNMENT
        starts.append(start)
        end = start + length
    return [*starts, end]


# Not Python's `mmap`: it keeps a descriptor per mapping, and processes run out of these.
_c = ctypes.CDLL(None, use_errno=True)
_c.mmap.restype = ctypes.c_void_p
_c.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_c.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_c.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED = ctypes.c_void_p(-1).value
_FIXED = 0x10
_REMOVE, _HUGE_PAGES = 9, 14


def map_file(descriptor: int, size: int, *, is_shared: bool, at: int = 0, offset: int = 0) -> int:
    """Map a file readable and writable, and return its address. `at` replaces the mapping there. Raises OSError."""
    flags = (mmap.MAP_SHARED if is_shared else mmap.MAP_PRIVATE) | (_FIXED if at else 0)
    made = _c.mmap(at or None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, descriptor, offset)
    if made == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    assert isinstance(made, int)
    return made


def unmap(address: int, size: int) -> None:
    _c.munmap(address, size)


def want_huge_pages(address: int, size: int) -> None:
    """Request huge pages, where the system grants them on request (`shmem_enabled`)."""
    _c.madvise(address, size, _HUGE_PAGES)


def give_pages_back(address: int, size: int) -> None:
    """Free the memory at once, even if processes still map it; they then read zeros."""
    _c.madvise(address, size, _REMOVE)


def words_at(address: int) -> Any:
    """Return the words of the segment that is mapped at this address."""
    return (ctypes.c_uint64 * WORDS).from_address(address)


def expect_token(descriptor: int, token: int) -> None:
    """Raise OSError unless this file is the segment of that token."""
    if os.pread(descriptor, 8, TOKEN) != token.to_bytes(8, "little"):
        raise OSError(errno.ESTALE, "another segment has replaced it")
