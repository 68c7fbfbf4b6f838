"""What is being moved from here, for owners on this host to see: a page, a file, for each process that moves data.

A mark on it says "I am at the memory of that lease". It is written before the lease is looked at. An owner changes the
lease's word first, and then looks at the pages: so either he sees the mark, or who wrote it sees the word changed. A
page of a process that has ended counts for nothing. What a page says is one word a mark, which is never seen in part.

Pages lie in a folder of the owner's run and host, which the lease names. Where no page can be made there (a full disk,
another user's folder) the data goes another way.
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
from meshbook.runtime.memory.identity import has_ended, is_used, own_mark
from meshbook.runtime.rdma.handle import Lease

FOLDER = "moving"  # in that of the run
SIZE = 4096
_WORD = 8
_HEAD = 2  # words: the pid of who writes the page, and when that began
PLACES = SIZE // _WORD - _HEAD
_NO_MARKS = bytes(PLACES * _WORD)


class ActiveTransfers:
    """The pages of this process, one in each folder: nearly always that is one."""

    def __init__(self, node: str) -> None:
        """Makes no file yet: that is for the first transfer."""
        self._node = node
        self._lock = threading.Lock()  # guards the making of pages
        self._pages: dict[str, _Page] = {}
        self._closed = False

    def at(self, lease: Lease, seconds: float) -> TransferMark:
        """`with` this, the owner keeps the memory of the lease, if it is lent when one looks at its word next.

        More at once than a page has places wait for one, so many seconds. OSError where there can be no page.
        """
        return TransferMark(self._pages.get(lease.folder) or self._open(lease.folder), lease.number, seconds)

    def _open(self, folder: str) -> _Page:
        with self._lock:
            if self._closed:
                raise TransferError("this process moves no data any more: its part in the run is over")
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

    A Ctrl-C may come in the very middle of entering or leaving it: who must not leave the mark behind calls `end`, too.
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
        """Take the mark away. Idempotent."""
        if place := self._place:
            self._page.words[place] = 0
            self._place = 0
            self._page.places.put(place)


class _Page:
    """A mapped file of words."""

    def __init__(self, folder: Path, node: str) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        # Never a name that was used before: somebody else may be this node by now, while we are still at it.
        self._path = folder / f"{node}.{secrets.token_hex(4)}"
        self.words = memoryview(_map(self._path)).cast("Q")
        mark = own_mark()
        self.words[1] = mark.started  # first: the page of a process that began at another time would be removed
        self.words[0] = mark.pid
        self.places: queue.SimpleQueue[int] = queue.SimpleQueue()
        for place in range(_HEAD, _HEAD + PLACES):
            self.places.put(place)

    def close(self) -> None:
        """Unless a transfer still is under way: its mark stays until this process has ended."""
        if self.places.qsize() == PLACES:
            self._path.unlink(missing_ok=True)


def _map(path: Path) -> mmap.mmap:
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(file, 0, SIZE)  # a full disk is told here; later it would be a SIGBUS
        return mmap.mmap(file, SIZE)
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(file)


def leases_in_use(folder: Path) -> set[int]:
    """The numbers of the leases, of any owner, that living processes say they are at, in this folder."""
    found: set[int] = set()
    # Where there is no folder, nobody has moved anything.
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            found |= _marks_on(Path(entry.path))
    return found


def _marks_on(path: Path) -> set[int]:
    """What a page says; one whose writer has ended says nothing any more, and is removed."""
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
