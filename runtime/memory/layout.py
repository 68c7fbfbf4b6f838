"""How a segment lies in memory: a page of words, then the data. What its sender and its receivers both know.

A word for each receiver says what the message is to him, so that he gives it back without a message: its sender looks
there when he next wants a segment.

    free --the sender--> ticket --opened--> ticket + 1 --the last view is gone--> free, or spoilt: not to be used again
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Sequence
from typing import Any

import msgspec

from meshbook.runtime.memory.identity import ProcessMark

HEADER = mmap.PAGESIZE
TOKEN, FIRST_WORD, WORDS = 0, 8, 512  # of at least 4 KiB, by eights
MOST_READERS = WORDS - FIRST_WORD
FREE, SPOILT = 0, (1 << 64) - 1
ALIGNMENT = 64


class SegmentReference(msgspec.Struct, frozen=True, array_like=True):
    """Where the bytes of a message lie, and for whom. It is good once, in that process, while the word has its ticket.

    A tensor in it may be written to; where it `is_shared` with nobody else, that costs nothing.
    """

    owner: ProcessMark
    descriptor: int  # of the owner's
    token: int  # of the segment: a number that is used again is not taken for it
    size: int  # of the whole segment, in bytes
    address: int  # of the data, in the owner's memory
    reader: ProcessMark
    word: int
    ticket: int
    is_shared: bool

    @property
    def path(self) -> str:
        """By which other processes open it."""
        return f"/proc/{self.owner.pid}/fd/{self.descriptor}"


def starts_of(lengths: Sequence[int]) -> list[int]:
    """Where parts of these lengths lie in the data, one after the other; and where the last one ends."""
    starts, end = [], 0
    for length in lengths:
        start = -(-end // ALIGNMENT) * ALIGNMENT
        starts.append(start)
        end = start + length
    return [*starts, end]


# Not Python's own `mmap`: that keeps a descriptor of its own for each mapping, and processes run out of these.
_c = ctypes.CDLL(None, use_errno=True)
_c.mmap.restype = ctypes.c_void_p
_c.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_c.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_c.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED = ctypes.c_void_p(-1).value
_FIXED = 0x10
_REMOVE, _HUGE_PAGES = 9, 14


def map_file(descriptor: int, size: int, *, is_shared: bool, at: int = 0, offset: int = 0) -> int:
    """Map a file, readable and writable; its address. `at`: in the place of what is mapped there. OSError."""
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
    """Where the machine gives them to who asks (`shmem_enabled`)."""
    _c.madvise(address, size, _HUGE_PAGES)


def give_pages_back(address: int, size: int) -> None:
    """Let the machine have the memory at once, whoever has it mapped still; from then on there are zeros."""
    _c.madvise(address, size, _REMOVE)


def words_at(address: int) -> Any:
    """The words of the segment that is mapped there."""
    return (ctypes.c_uint64 * WORDS).from_address(address)


def expect_token(descriptor: int, token: int) -> None:
    """OSError where this file is not the segment of that token."""
    if os.pread(descriptor, 8, TOKEN) != token.to_bytes(8, "little"):
        raise OSError(errno.ESTALE, "another segment is there by now")
