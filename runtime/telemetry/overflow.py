"""An unbounded queue of text: part of it is in memory, the rest in an unnamed file.

For a producer that must not wait and a consumer that may stall for an hour. Not for several threads at once.
"""

from __future__ import annotations

import collections
import pickle
import struct
import tempfile
from typing import IO, Generic, TypeVar

T = TypeVar("T")
MEMORY_CHARACTERS = 8 << 20
_LENGTHS = struct.Struct("<QQ")  # bytes of the pickle in the file, and characters of its text


class Overflow(Generic[T]):
    """A FIFO queue. `lost` counts items dropped because the disk was full; `why` is the reason."""

    def __init__(self, memory: int | None = None) -> None:
        self._memory = MEMORY_CHARACTERS if memory is None else memory
        self._items: collections.deque[T] = collections.deque()  # the oldest items
        self._size = 0  # characters in _items
        self._file: IO[bytes] | None = None  # all later items
        self._read, self._end = 0, 0  # where the next item begins in the file, and where the next one will be written
        self.lost = 0
        self.why = ""

    def __bool__(self) -> bool:
        return bool(self._items)

    def put(self, item: T, size: int) -> None:
        """Add an item of `size` characters; never waits for the consumer."""
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
        """Return the oldest items, about as much as fits in memory; empty if there are none."""
        items, self._items, self._size = list(self._items), collections.deque(), 0
        while self._read < self._end and self._size < self._memory:
            self._items.append(self._read_next())
        if self._read == self._end and self._file is not None:
            self._file.close()  # this frees its space
            self._file, self._read, self._end = None, 0, 0
        return items

    def _write(self, data: bytes, size: int) -> None:
        if self._file is None:
            # Unbuffered, so that a full disk raises here and not later.
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # closed once it has been read
        self._file.seek(self._end)
        left = memoryview(_LENGTHS.pack(len(data), size) + data)
        while left:
            left = left[self._file.write(left) :]
        self._end = self._file.tell()  # only now: an item written in part is overwritten

    def _read_next(self) -> T:
        assert self._file is not None
        self._file.seek(self._read)
        length, size = _LENGTHS.unpack(self._file.read(_LENGTHS.size))
        item: T = pickle.loads(self._file.read(length))
        self._read = self._file.tell()
        self._size += size
        return item
