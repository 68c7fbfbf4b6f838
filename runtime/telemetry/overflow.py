"""A queue of text that may grow as long as it likes: so much of it is in memory, the rest in an unnamed file.

For one side that must not wait and another that may not take anything for an hour. Not for several threads at once.
"""

from __future__ import annotations

import collections
import pickle
import struct
import tempfile
from typing import IO, Generic, TypeVar

T = TypeVar("T")
MEMORY_CHARACTERS = 8 << 20
_LENGTHS = struct.Struct("<QQ")  # of the pickle in the file, and of the text in it


class Overflow(Generic[T]):
    """First in, first out. `lost` counts what found no place, since the disk was full; `why` says so."""

    def __init__(self, memory: int | None = None) -> None:
        self._memory = MEMORY_CHARACTERS if memory is None else memory
        self._items: collections.deque[T] = collections.deque()  # the oldest
        self._size = 0  # of these
        self._file: IO[bytes] | None = None  # all others
        self._read, self._end = 0, 0  # where the next one begins in the file, and the one that is still to come
        self.lost = 0
        self.why = ""

    def __bool__(self) -> bool:
        return bool(self._items)

    def put(self, item: T, size: int) -> None:
        """Add an item with so many characters; never waits for whoever takes."""
        if self._read == self._end and (not self._items or self._size + size <= self._memory):
            self._items.append(item)
            self._size += size
            return
        try:
            self._write(pickle.dumps(item, 5), size)
        except OSError as error:
            self.lost += 1
            self.why = f"{error.strerror} in {tempfile.gettempdir()}"

    def take(self) -> list[T]:
        """The oldest, about as much as there is memory for; empty where there is nothing."""
        items, self._items, self._size = list(self._items), collections.deque(), 0
        while self._read < self._end and self._size < self._memory:
            self._items.append(self._read_next())
        if self._read == self._end and self._file is not None:
            self._file.close()  # its room is given back
            self._file, self._read, self._end = None, 0, 0
        return items

    def _write(self, data: bytes, size: int) -> None:
        if self._file is None:
            # Unbuffered, so that a full disk is felt here and not later.
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # closed once it has been read
        self._file.seek(self._end)
        left = memoryview(_LENGTHS.pack(len(data), size) + data)
        while left:
            left = left[self._file.write(left) :]
        self._end = self._file.tell()  # only now: what was written in part is written over

    def _read_next(self) -> T:
        assert self._file is not None
        self._file.seek(self._read)
        length, size = _LENGTHS.unpack(self._file.read(_LENGTHS.size))
        item: T = pickle.loads(self._file.read(length))
        self._read = self._file.tell()
        self._size += size
        return item
