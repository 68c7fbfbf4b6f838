"""What is lent out from this process: a word for each lease, where others can read it, and what keeps the memory.

Words lie in memory that is not freed or moved while the node is there. Numbers are drawn: who reads a word too late
does not find the one that he looks for.
"""

from __future__ import annotations

import ctypes
import secrets
import threading
from dataclasses import dataclass
from typing import Any

from meshbook.runtime.memory.local import Local
from meshbook.runtime.rdma.handle import Handle, Lease

WORDS_A_BLOCK = 512


@dataclass(slots=True)
class Lent:
    """A lease as its owner sees it."""

    local: Local
    actor: str  # the key of the actor that lent it
    handle: Handle | None = None  # once it is made


class Leases:
    """The leases of one node. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all of these
        self._blocks: list[Any] = []  # the memory of the words
        self._free: list[Any] = []  # words that are not in use
        self._words: dict[int, Any] = {}
        self._lent: dict[int, Lent] = {}

    def lend(self, local: Local, actor: str) -> Lease:
        """Keep this memory, and say so in a word, until `end`."""
        with self._lock:
            if not self._free:
                block = (ctypes.c_uint64 * WORDS_A_BLOCK)()
                self._blocks.append(block)
                self._free = [ctypes.c_uint64.from_buffer(block, 8 * index) for index in range(WORDS_A_BLOCK)]
            word, number = self._free.pop(), secrets.randbits(63) | 1
            word.value = number
            self._words[number], self._lent[number] = word, Lent(local, actor)
            return Lease(ctypes.addressof(word), number)

    def end(self, number: int) -> Lent | None:
        """Lend it no more; what was lent, which the caller keeps until nobody moves data there any more."""
        with self._lock:
            lent = self._lent.pop(number, None)
            if lent is not None:
                word = self._words.pop(number)
                word.value = 0
                self._free.append(word)
            return lent

    def find(self, number: int) -> Lent | None:
        """What is lent under this number."""
        return self._lent.get(number)

    def block_of(self, lease: Lease) -> tuple[int, int]:
        """Address and bytes of the memory in which its word lies, with others; it is never freed.

        For ways that have memory registered before others reach it.
        """
        with self._lock:
            blocks = [(ctypes.addressof(block), ctypes.sizeof(block)) for block in self._blocks]
        return next((start, size) for start, size in blocks if start <= lease.word < start + size)

    def of_actor(self, actor: str) -> list[int]:
        """What this actor has lent."""
        with self._lock:
            return [number for number, lent in self._lent.items() if lent.actor == actor]

    def all(self) -> list[int]:
        with self._lock:
            return list(self._lent)
