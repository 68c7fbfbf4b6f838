"""The sending side of shared memory: segments that are filled for a message, and reused once it has been read.

A segment is a memfd. It has its full size from the start and never shrinks, so no process gets a SIGBUS; and it is not
limited by /dev/shm, which has 64 MB in containers. Its first use costs ten times what a later one does: hence the pool.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import secrets
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from meshbook.runtime.clock import monotonic, sleep
from meshbook.runtime.memory.layout import (
    FIRST_WORD,
    FREE,
    HEADER,
    MOST_READERS,
    SPOILT,
    TOKEN,
    SegmentReference,
    give_pages_back,
    map_file,
    starts_of,
    unmap,
    want_huge_pages,
    words_at,
)
from meshbook.runtime.memory.process_identity import ProcessMark, has_ended, own_mark

Part = bytes | bytearray | memoryview
_HAS_MEMFD = hasattr(os, "memfd_create")


class SharedSegment:
    """A shared memory segment and its current readers."""

    def __init__(self, room: int) -> None:
        """Raises OSError if memory or descriptors are lacking."""
        if not _HAS_MEMFD:
            raise OSError(errno.ENOSYS, "this system has no memfd")
        self.room = room
        self.size = HEADER + room
        self.token = secrets.randbits(63) | 1
        self.descriptor = os.memfd_create("meshbook", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            self._prepare()
        except OSError:
            os.close(self.descriptor)
            raise
        self.readers: dict[int, tuple[int, ProcessMark]] = {}  # by word: the ticket and its reader
        # While a message is sent: an object of the sending thread. If it is gone, the thread was interrupted.
        self.sender: weakref.ref[object] | None = None
        self.is_spoilt = False  # an unknown process may see it: a child of a reader
        self.idle_since = 0.0

    def _prepare(self) -> None:
        if is_too_near(self.descriptor, resource.getrlimit(resource.RLIMIT_NOFILE)[0]):
            raise OSError(errno.EMFILE, "too few descriptors are left")
        os.ftruncate(self.descriptor, self.size)
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self._address = map_file(self.descriptor, self.size, is_shared=True)
        want_huge_pages(self._address, self.size)
        self._words = words_at(self._address)
        self._words[TOKEN] = self.token

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # it was never made
            self.close(is_read=True)

    @property
    def is_being_sent(self) -> bool:
        """Whether readers may be added."""
        return self.sender is not None and self.sender() is not None

    @property
    def address(self) -> int:
        """The address of its data."""
        return self._address + HEADER

    def fill(self, parts: Sequence[Part]) -> None:
        """Copy these parts in, one after the other."""
        views = [memoryview(part).cast("B") for part in parts]
        for view, start in zip(views, starts_of([view.nbytes for view in views]), strict=False):
            address = self.address + start
            if view.nbytes and not view.readonly:
                # Releases the GIL meanwhile.
                ctypes.memmove(address, ctypes.addressof(ctypes.c_ubyte.from_buffer(view)), view.nbytes)
            elif view.nbytes:
                memoryview((ctypes.c_ubyte * view.nbytes).from_address(address)).cast("B")[:] = view

    def lend(self, owner: ProcessMark, reader: ProcessMark, ticket: int, *, is_shared: bool) -> SegmentReference | None:
        """Return a reference that lets this process read it; None if there is no word left."""
        word = FIRST_WORD + len(self.readers)
        if len(self.readers) == MOST_READERS:
            return None
        self.readers[word] = ticket, reader
        self._words[word] = ticket
        where = owner, self.descriptor, self.token, self.size, self.address
        return SegmentReference(*where, reader, word, ticket, is_shared)

    def take_back(self, word: int, ticket: int) -> None:
        """Withdraw a reference that was not opened."""
        if self._words[word] == ticket:
            self._words[word] = FREE

    def is_free(self) -> bool:
        """Return whether all readers have returned it."""
        if self.is_being_sent:
            return False
        for word in list(self.readers):
            if (said := self._words[word]) in (FREE, SPOILT):
                self.is_spoilt = self.is_spoilt or said == SPOILT
                del self.readers[word]
        return not self.readers

    def unopened(self) -> list[ProcessMark]:
        """Return the readers that have not opened it yet."""
        return [reader for word, (ticket, reader) in list(self.readers.items()) if self._words[word] == ticket]

    def forget_ended(self) -> None:
        """Clear the words of readers that have ended."""
        for word, (_, reader) in list(self.readers.items()):
            if self._words[word] != FREE and has_ended(reader.pid, reader.started):
                self._words[word] = FREE

    def close(self, *, is_read: bool = False) -> None:
        """Unmap the segment, once. With `is_read`, readers keep it; else the memory is freed now."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor < 0:
            return
        if not (is_read or self.is_spoilt):
            give_pages_back(self.address, self.room)
        unmap(self._address, self.size)
        os.close(descriptor)


class SegmentPool:
    """The segments of one process. The caller runs `trim` now and then while it returns True."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # guards all of these, but not the data of segments; taken by `_exclusively`
        self._owner = own_mark()
        self._busy: list[SharedSegment] = []
        self._idle: list[SharedSegment] = []
        self._ticket = 0
        self._closed = False

    def take(self, parts: Sequence[Part], size: int, sender: object) -> SharedSegment:
        """Return a segment with these parts in it, for `lend` and then `done`. Raises OSError if none is available.

        If `sender` is dropped before `done`, as its thread was interrupted, no more readers are added either.
        """
        with self._exclusively():
            segment = self._find(size)
            segment.sender = weakref.ref(sender)
            self._busy.append(segment)
        try:
            segment.fill(parts)
        except BaseException:
            self.done(segment)
            raise
        return segment

    def lend(self, segment: SharedSegment, reader: ProcessMark, *, is_shared: bool) -> SegmentReference | None:
        """Let this process read the segment. With `is_shared` it is the only reader, and maps the memory itself."""
        with self._exclusively():
            self._ticket += 2
            return segment.lend(self._owner, reader, self._ticket, is_shared=is_shared)

    def done(self, segment: SharedSegment) -> None:
        """Add no more readers: the segment is reused once all have read it."""
        with self._exclusively():
            segment.sender = None
            if self._closed:
                segment.close(is_read=True)

    def withdraw(self, segment: SharedSegment, lent: Mapping[int, int]) -> None:
        """Withdraw references, given by word and ticket, that were never sent."""
        with self._exclusively():
            for word, ticket in lent.items():
                segment.take_back(word, ticket)

    def parts_of(self, reference: SegmentReference, lengths: Sequence[int]) -> list[Part] | None:
        """Copy the parts of a message that its reader has not opened and will not open; None if they are not there."""
        with self._exclusively():
            segment = next((each for each in self._busy if each.token == reference.token), None)
            if segment is None:
                return None
            starts = starts_of(lengths)
            parts: list[Part] = [
                ctypes.string_at(segment.address + start, length)
                for start, length in zip(starts, lengths, strict=False)
            ]
            segment.take_back(reference.word, reference.ticket)
            return parts

    def trim(self) -> bool:
        """Free segments that were idle for long, or whose readers have ended; return whether segments are left."""
        with self._exclusively():
            for segment in self._busy:
                segment.forget_ended()
            self._sweep()
            self._let_go(monotonic())
            return bool(self._busy or self._idle)

    def close(self, seconds: float) -> None:
        """Wait at most this long until receivers have opened all messages, and free the segments. Idempotent."""
        end = monotonic() + seconds
        while monotonic() < end and self._is_awaited():
            sleep(0.002)  # polls: receivers only change a word in memory
        with self._exclusively():
            self._closed = True
            self._sweep()
            for segment in self._busy:
                if not segment.is_being_sent:  # otherwise another thread is filling it, and `done` closes it
                    segment.close(is_read=True)
            for segment in self._idle:
                segment.close()
            self._busy, self._idle = [], []

    def _exclusively(self) -> AbstractContextManager[bool]:
        """Return the lock, for a `with` statement. OSError in the thread that holds it, so that a finalizer that runs
        there uses another path.

        The lock's own methods are in C: a Ctrl-C within them would leave it locked otherwise.
        """
        # Not public: only `threading.Condition` uses it, whose own methods are in Python. A note of the owner that is
        # kept beside the lock would be wrong after a Ctrl-C between the two.
        if self._lock._is_owned():  # type: ignore[attr-defined]
            raise OSError(errno.EDEADLK, "a finalizer interrupts this thread while it takes shared memory")
        return self._lock

    def _is_awaited(self) -> bool:
        with self._exclusively():
            waiting = [reader for segment in self._busy for reader in segment.unopened()]
        return any(not has_ended(reader.pid, reader.started) for reader in waiting)

    def _find(self, size: int) -> SharedSegment:
        if self._closed:
            raise OSError(errno.ESHUTDOWN, "the pool is closed")
        if (segment := fitting(self._idle, size)) is None:
            self._sweep()
            segment = fitting(self._idle, size)
        if segment is None:
            return self._make(size)
        self._idle.remove(segment)
        return segment

    def _make(self, size: int) -> SharedSegment:
        most = most_segments(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        if len(self._busy) + len(self._idle) >= most and self._idle:
            oldest = min(self._idle, key=lambda each: each.idle_since)
            self._idle.remove(oldest)
            oldest.close()
        if len(self._busy) + len(self._idle) >= most:
            raise OSError(errno.EMFILE, f"{most} segments are in use")
        return SharedSegment(size_class(size))

    def _sweep(self) -> None:
        """Move the returned segments to the idle ones."""
        now = monotonic()
        free = [segment for segment in self._busy if segment.is_free()]
        self._busy = [segment for segment in self._busy if segment not in free]
        for segment in free:
            segment.idle_since = now
            if segment.is_spoilt:
                segment.close()
            else:
                self._idle.append(segment)
        if free:
            self._let_go(now)

    def _let_go(self, now: float) -> None:
        for segment in surplus(self._idle, now):
            self._idle.remove(segment)
            segment.close()


LEAST_BYTES = 1 << 20
IDLE_SECONDS = 10.0  # without use, after which the memory is freed
IDLE_BYTES = 512 << 20  # that one process keeps for its next messages
MOST_SEGMENTS = 256
RESERVE = 64  # descriptors that are left for other code


class IdleSegment(Protocol):
    """An unused segment: its capacity in bytes, and since when it is idle."""

    room: int
    idle_since: float


S = TypeVar("S", bound=IdleSegment)


def size_class(size: int) -> int:
    """Return the capacity of the segment for this many bytes: few sizes, so that segments can be reused.

    A larger segment costs nothing: untouched memory is not allocated.
    """
    return max(LEAST_BYTES, 1 << (size - 1).bit_length())


def fitting(idle: Iterable[S], size: int) -> S | None:
    """Return the last used segment of that size class: its memory is most likely cached."""
    fit = (each for each in idle if each.room == size_class(size))
    return max(fit, key=lambda each: each.idle_since, default=None)


def surplus(idle: Iterable[S], now: float) -> list[S]:
    """Return the segments to free: those idle for long, and the oldest beyond the limit."""
    gone, kept = [], 0
    for each in sorted(idle, key=lambda each: -each.idle_since):
        kept += each.room
        if now - each.idle_since >= IDLE_SECONDS or kept > IDLE_BYTES:
            gone.append(each)
            kept -= each.room
    return gone


def most_segments(soft_limit: int) -> int:
    """Return how many segments a process with this descriptor limit may have."""
    return min(MOST_SEGMENTS, soft_limit // 4)


def is_too_near(descriptor: int, soft_limit: int) -> bool:
    """Return whether too few descriptors remain above this one, the lowest free number."""
    return descriptor >= soft_limit - min(RESERVE, soft_limit // 4)
