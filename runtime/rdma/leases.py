"""What is lent out from this process: a word for each lease, where others can read it, and what keeps the memory.

Words lie in memory that is not freed or moved while the node is there. Numbers are drawn: who reads a word too late
does not find the one that he looks for.
"""

from __future__ import annotations

import ctypes
import secrets
import threading
from dataclasses import dataclass, field
from typing import Any

from meshbook.runtime.actor.context import Instance
from meshbook.runtime.memory.local import LocalMemory
from meshbook.runtime.rdma.handle import BufferHandle, Lease
from meshbook.runtime.snapshots import items_of

WORDS_A_BLOCK = 512


@dataclass(slots=True)
class LentMemory:
    """A lease as its owner sees it."""

    local: LocalMemory
    lender: Instance
    lease: Lease
    word: Any
    handle: BufferHandle | None = None  # once it is made
    # Transfers of this very process that are at it. As with others each says so first, and then looks. A set, so that
    # it is said, and taken back, in one step, which no Ctrl-C divides.
    users: set[object] = field(default_factory=set)
    is_over: bool = False  # it is lent no more


class LeaseTable:
    """The leases of one node. `folder` is where others say that they are at them. Safe from any thread."""

    def __init__(self, folder: str = "") -> None:
        self._folder = folder
        # Guards all of these. Python collects garbage at any moment, and what is collected may drop a buffer: so it may
        # be taken again by the thread that has it, and whatever is done here may have an `end` in its middle.
        self._lock = threading.RLock()
        self._blocks: list[Any] = []  # the memory of the words
        self._free: list[Any] = []  # words that are not in use
        self._lent: dict[int, LentMemory] = {}

    def lend(self, local: LocalMemory, lender: Instance) -> LentMemory:
        """Keep this memory, and say so in a word, until `end`."""
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
        """Lend it no more; what was lent, which the caller keeps until nobody moves data there any more."""
        with self._lock:
            lent = self._lent.pop(number, None)
            if lent is None:
                return None
            lent.is_over = True
            lent.word.value = 0
            self._free.append(lent.word)
            return lent

    def find(self, number: int) -> LentMemory | None:
        """What is lent under this number. Who moves its bytes is one of its `users`, and sees then if it `is_over`."""
        return self._lent.get(number)

    def block_of(self, lease: Lease) -> tuple[int, int]:
        """Address and bytes of the memory in which its word lies, with others; it is never freed.

        For ways that have memory registered before others reach it.
        """
        with self._lock:
            blocks = [(ctypes.addressof(block), ctypes.sizeof(block)) for block in self._blocks]
        return next((start, size) for start, size in blocks if start <= lease.word < start + size)

    def of(self, lender: Instance) -> list[int]:
        """What this actor has lent. O(n) in all leases: asked when an actor ends."""
        return [number for number, lent in items_of(self._lent) if lent.lender == lender]

    def all(self) -> list[int]:
        with self._lock:
            return list(self._lent)
