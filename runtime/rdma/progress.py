"""What is being moved from here, for owners on this host to see: a page, a file in the run's folder, for each process.

A mark on it says "I am at the memory of that process under that lease". It is written before the lease is looked at. An
owner changes the lease's word first, and then looks at the pages: so either he sees the mark, or who wrote it sees the
word changed. A page of a process that has ended counts for nothing.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

from meshbook.runtime.memory.identity import own_mark, started_at
from meshbook.runtime.rdma.handle import Handle

SUFFIX = ".moving"
SIZE = 4096
_HEAD = struct.Struct("=qq")  # the pid of who writes it, and when that began
_MARK = struct.Struct("=qQ")  # the pid of the owner, and the number of the lease
PLACES = SIZE // _MARK.size - 1


class InProgress:
    """The page of this process. More transfers at once than it has places wait for one."""

    def __init__(self, folder: Path, node: str) -> None:
        """Makes no file yet: that is for the first transfer."""
        self._path = folder / f"{node}{SUFFIX}"
        self._page: mmap.mmap | None = None
        self._changed = threading.Condition()  # guards the page and its free places
        self._free: list[int] = []

    @contextlib.contextmanager
    def at(self, handle: Handle) -> Iterator[None]:
        """While this lasts the owner keeps the memory of this lease, if it is lent when one looks at its word next."""
        place = self._take(handle.process.pid, handle.lease.number)
        try:
            yield
        finally:
            self._give(place)

    def _take(self, pid: int, number: int) -> int:
        with self._changed:
            if self._page is None:
                self._page = _make(self._path)
                self._free = list(range(1, PLACES + 1))
            while not self._free:
                self._changed.wait()
            place = self._free.pop()
            _MARK.pack_into(self._page, place * _MARK.size, pid, number)
            return place

    def _give(self, place: int) -> None:
        with self._changed:
            if self._page is not None:
                _MARK.pack_into(self._page, place * _MARK.size, 0, 0)
            self._free.append(place)
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            if self._page is not None:
                self._page.close()
                self._page = None
                self._path.unlink(missing_ok=True)


def _make(path: Path) -> mmap.mmap:
    path.unlink(missing_ok=True)  # of a life before
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(file, 0, SIZE)  # a full disk is told here; later it would be a SIGBUS
        page = mmap.mmap(file, SIZE)
    finally:
        os.close(file)
    mark = own_mark()
    _HEAD.pack_into(page, 0, mark.pid, mark.started)
    return page


def is_at(folder: Path, pid: int, number: int) -> bool:
    """Whether any living process of this host is at memory that this one has lent under this number."""
    return any(_says(path, pid, number) for path in folder.glob(f"*{SUFFIX}"))


def _says(path: Path, pid: int, number: int) -> bool:
    try:
        page = path.read_bytes()
    except FileNotFoundError:
        return False
    if len(page) != SIZE or (pid, number) not in set(_MARK.iter_unpack(page[_MARK.size :])):
        return False
    writer, started = _HEAD.unpack_from(page)
    return bool(started_at(writer) == started)
