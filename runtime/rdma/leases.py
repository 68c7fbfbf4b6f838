"""The leases of this process: for each one a word that other processes can read, and the memory that it lends.

Words lie in memory that is neither freed nor moved while the node exists. Lease numbers are random: a process that
reads a reused word does not find the number of its lease.
"""

from __future__ import annotations

import ctypes
import secrets
import threading
from dataclasses import dataclass, field
from typing import Any

from meshbook.runtime.actor.context import Instance
from meshbook.runtime.memory.local_memory import LocalMemory
from meshbook.runtime.rdma.backends import BufferHandle, Lease
from meshbook.runtime.threads import items_of

WORDS_A_BLOCK = 512


@dataclass(slots=True)
class LentMemory:
    """A lease, as its owner sees it."""

    local: LocalMemory
    lender: Instance
    lease: Lease
    word: Any
    handle: BufferHandle | None = None  # set once it is made
    # Transfers of this process that use the memory. Like other processes, each one registers first and then checks the
    # lease. A set, because adding and discarding are single steps that no Ctrl-C can divide.
    users: set[object] = field(default_factory=set)
    is_over: bool = False  # the lease has ended


class LeaseTable:
    """The leases of one node. `folder` is where other processes mark the leases that they use. Safe from any thread."""

    def __init__(self, folder: str = "") -> None:
        self._folder = folder
        # Guards all of these. Reentrant: the garbage collector runs at any moment and may drop a buffer, so `end` may
        # run on this thread in the middle of any method here.
        self._lock = threading.RLock()
        self._blocks: list[Any] = []  # the memory of the words
        self._free: list[Any] = []  # words that are not in use
        self._lent: dict[int, LentMemory] = {}

    def lend(self, local: LocalMemory, lender: Instance) -> LentMemory:
        """Keep this memory and publish its lease in a word, until `end`."""
        with self._lock:
            if not self._free:
                block = (ctypes.c_uint64 * WORDS_A_BLOCK)()
                self._blocks.append(block)
                self._free.extend(ctypes.c_uint64.from_buffer(block, 8 * index) for index in range(WORDS_A_BLOCK))
            word, number = self._free.pop(), secrets.randbits(63) | 1
            word.value = number
            lent = LentMemory(local, lender, Lease(ctypes.addressof(word), number, self._folder), word)
            self._lent[number] = lent
            return lent

    def end(self, number: int) -> LentMemory | None:
        """End the lease and return what was lent. The caller keeps it until no transfer uses the memory."""
        with self._lock:
            lent = self._lent.pop(number, None)
            if lent is None:
                return None
            lent.is_over = True
            lent.word.value = 0
            self._free.append(lent.word)
            return lent

    def find(self, number: int) -> LentMemory | None:
        """Return the lease of this number. A transfer adds itself to `users` first and then checks `is_over`."""
        return self._lent.get(number)

    def block_of(self, lease: Lease) -> tuple[int, int]:
        """Return the address and size in bytes of the block that holds the lease's word. Blocks are never freed.

        Used by backends that must register memory before other processes can reach it.
        """
        with self._lock:
            blocks = [(ctypes.addressof(block), ctypes.sizeof(block)) for block in self._blocks]
        return next((start, size) for start, size in blocks if start <= lease.word < start + size)

    def of(self, lender: Instance) -> list[int]:
        """Return the lease numbers of this actor. O(n) in all leases; called when an actor ends."""
        return [number for number, lent in items_of(self._lent) if lent.lender == lender]

    def all(self) -> list[int]:
        with self._lock:
            return list(self._lent)
