"""The active transfers of each process, published to owners on this host: one mapped page per process.

A mark on the page means "this process uses the memory of that lease". A process writes the mark before it checks the
lease. An owner changes the lease's word first and then reads the pages: so either the owner sees the mark, or the
process sees the changed word. The page of an ended process is ignored. A mark is one word, so no reader sees half of
it.

Pages lie in a folder of the owner's run and host, which the lease names. If no page can be made there (a full disk,
another user's folder), another backend moves the data.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import queue
import secrets
import threading
from pathlib import Path

from meshbook.runtime.errors import TransferError, TransferTimeout
from meshbook.runtime.memory.process_identity import has_ended, is_used, own_mark
from meshbook.runtime.rdma.backends import Lease

FOLDER = "moving"  # in the folder of the run
SIZE = 4096
_WORD = 8
_HEAD = 2  # words: the pid of the writing process, and its start time
PLACES = SIZE // _WORD - _HEAD
_NO_MARKS = bytes(PLACES * _WORD)


class ActiveTransfers:
    """The pages of this process, one per folder; nearly always that is one."""

    def __init__(self, node: str) -> None:
        """Makes no file: the first transfer does."""
        self._node = node
        self._lock = threading.Lock()  # guards the making of pages
        self._pages: dict[str, _Page] = {}
        self._closed = False

    def at(self, lease: Lease, seconds: float) -> TransferMark:
        """Return a mark for a `with` block: if a later check finds the lease valid, the owner keeps its memory.

        If all places of the page are taken, entering waits up to `seconds` for one. Raises OSError if there can be no
        page.
        """
        return TransferMark(self._pages.get(lease.folder) or self._open(lease.folder), lease.number, seconds)

    def _open(self, folder: str) -> _Page:
        with self._lock:
            if self._closed:
                raise TransferError("this process has left the run and moves no more data")
            if (page := self._pages.get(folder)) is None:
                page = self._pages[folder] = _Page(Path(folder), self._node)
            return page

    def close(self) -> None:
        with self._lock:
            self._closed = True
            pages, self._pages = self._pages, {}
        for page in pages.values():
            page.close()


class TransferMark:
    """One transfer's word on the page, while it is entered. A class, since a generator would cost twice as much.

    A Ctrl-C may interrupt entering or leaving: a caller that must not leave the mark behind also calls `end`.
    """

    __slots__ = ("_number", "_page", "_place", "_seconds")

    def __init__(self, page: _Page, number: int, seconds: float) -> None:
        self._page, self._number, self._seconds = page, number, seconds
        self._place = 0  # none

    def __enter__(self) -> None:
        try:
            self._place = self._page.places.get(timeout=self._seconds)
        except queue.Empty:
            raise TransferTimeout(f"{PLACES} other transfers were under way for {self._seconds:.3g} s") from None
        self._page.words[self._place] = self._number

    def __exit__(self, *raised: object) -> None:
        self.end()

    def end(self) -> None:
        """Remove the mark. Idempotent."""
        if place := self._place:
            self._page.words[place] = 0
            self._place = 0
            self._page.places.put(place)


class _Page:
    """A mapped file of words."""

    def __init__(self, folder: Path, node: str) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        # Never reuse a file name: another process may be this node by now, while transfers of this one continue.
        self._path = folder / f"{node}.{secrets.token_hex(4)}"
        self.words = memoryview(_map(self._path)).cast("Q")
        mark = own_mark()
        # Written first: a page whose start time does not match its pid would be removed.
        self.words[1] = mark.started
        self.words[0] = mark.pid
        self.places: queue.SimpleQueue[int] = queue.SimpleQueue()
        for place in range(_HEAD, _HEAD + PLACES):
            self.places.put(place)

    def close(self) -> None:
        """Remove the file, unless a transfer is still under way: its mark stays until this process has ended."""
        if self.places.qsize() == PLACES:
            self._path.unlink(missing_ok=True)


def _map(path: Path) -> mmap.mmap:
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(file, 0, SIZE)  # a full disk raises here; later it would be a SIGBUS
        return mmap.mmap(file, SIZE)
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(file)


def leases_in_use(folder: Path) -> set[int]:
    """Return the lease numbers, of any owner, that running processes have marked in this folder."""
    found: set[int] = set()
    # Without a folder there has been no transfer.
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            found |= _marks_on(Path(entry.path))
    return found


def _marks_on(path: Path) -> set[int]:
    """Return the marks of a page. Removes the page of an ended process."""
    try:
        page = path.read_bytes()
    except FileNotFoundError:
        return set()
    head, marks = page[: _HEAD * _WORD], page[_HEAD * _WORD :]
    if len(page) != SIZE or not any(head):  # it is being made
        return set()
    pid, started = memoryview(head).cast("Q")
    is_empty = marks == _NO_MARKS
    if not is_used(pid) if is_empty else has_ended(pid, started):
        path.unlink(missing_ok=True)
        return set()
    return set() if is_empty else set(memoryview(marks).cast("Q")) - {0}
