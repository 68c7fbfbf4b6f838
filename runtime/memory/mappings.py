"""The receiving side of shared memory: segments of other processes, mapped here, and the views that values use.

A mapping is kept for the next message in the same segment, because its pages are already mapped. When the last view of
a message is gone, a word in the segment returns it to the sender. A forked child inherits the views as its own memory;
a segment that a child may see is never reused.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from meshbook.runtime.clock import monotonic
from meshbook.runtime.memory import process
from meshbook.runtime.memory.layout import (
    FREE,
    HEADER,
    SPOILT,
    SegmentReference,
    expect_token,
    map_file,
    starts_of,
    unmap,
    words_at,
)
from meshbook.runtime.memory.process_identity import own_mark
from meshbook.runtime.memory.segments import IDLE_SECONDS

MOST_IDLE = 64


class _Use:
    """One message that is being read, in shared memory or (at the address `private`) in a copy on write."""

    def __init__(self, mapping: _Mapping, reference: SegmentReference, private: int) -> None:
        self.mapping = mapping
        self.reference = reference
        self.private = private
        self._mapped = [private] if private else []
        self.pid = os.getpid()
        self._finalizer: Any = None
        self.has_children = False  # a child was forked meanwhile and may keep views forever

    def watch(self, made: Any) -> None:
        """End this use when `made`, the object under all views, is freed."""
        self._finalizer = weakref.finalize(made, self.end)
        # Not at the end of the process: values may be read until then, and the sender detects that end.
        self._finalizer.atexit = False

    @property
    def is_over(self) -> bool:
        return self._finalizer is not None and not self._finalizer.alive

    def end(self) -> None:
        """Return the segment: the last view is gone. A finalizer: takes no lock, and may run again after a Ctrl-C."""
        if os.getpid() != self.pid:
            return  # in a child: its parent still reads
        with contextlib.suppress(IndexError):
            unmap(self._mapped.pop(), self.reference.size)
        self.mapping.give_back(self.reference, FREE if not self.has_children else SPOILT)
        self.mapping.uses.pop(self.reference.ticket, None)  # until here it keeps the mapping alive
        if self.mapping.is_unwanted:
            self.mapping.let_go()

    def remap(self) -> None:
        """In a child: make writes from now on invisible to its parent."""
        if self.private:
            return
        with contextlib.suppress(OSError):  # the owner has ended; the parent sees this child's writes
            descriptor = _open(self.reference)
            try:
                address, size = self.mapping.address + HEADER, self.reference.size - HEADER
                map_file(descriptor, size, is_shared=False, at=address, offset=HEADER)
                self.private = address  # for children of this child
            finally:
                os.close(descriptor)


class _Mapping:
    """A segment of another process, mapped here."""

    def __init__(self, reference: SegmentReference, descriptor: int) -> None:
        self.size = reference.size
        self.address = map_file(descriptor, self.size, is_shared=True)
        self.uses: dict[int, _Use] = {}  # by ticket
        self.used_at = 0.0
        self.is_unwanted = False  # `Mappings.close` ran: it is unmapped with the last view
        self._words = words_at(self.address)
        self._mapped = [self.address]

    def accept(self, reference: SegmentReference) -> None:
        """Accept the message. Raises OSError if the sender has withdrawn it, since it was for another process."""
        if self._words[reference.word] != reference.ticket:
            raise OSError(errno.ESTALE, "its sender has withdrawn it")
        self._words[reference.word] = reference.ticket + 1
        self.used_at = monotonic()

    def give_back(self, reference: SegmentReference, word: int) -> None:
        if self._words[reference.word] == reference.ticket + 1:
            self._words[reference.word] = word

    def let_go(self) -> None:
        """Unmap it once, unless it is being read."""
        with contextlib.suppress(IndexError):
            if not self.uses:
                unmap(self._mapped.pop(), self.size)


class Mappings:
    """The mapped segments of other processes. The caller runs `trim` repeatedly while it returns True."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards these
        self._closed = False
        self._mappings: dict[tuple[Any, ...], _Mapping] = {}
        self._own = own_mark()
        _all.add(self)

    def can_open(self, reference: SegmentReference) -> str:
        """Return why this process cannot read that process's segments; empty if it can."""
        if reference.owner.system != self._own.system:
            return "it is in another pid namespace"
        try:
            os.close(_open(reference))
        except OSError as error:
            return str(error)
        return ""

    def open(self, reference: SegmentReference, lengths: Sequence[int]) -> list[memoryview]:
        """Return the parts of a message as writable views, without a copy. Raises OSError if they cannot be reached."""
        if reference.reader != self._own:
            raise OSError(errno.ESTALE, "it was sent to an earlier process")
        try:
            view = self._view(reference)
        except OSError as error:
            view = _read_over(reference, lengths, error)
        return [view[start : start + length] for start, length in zip(starts_of(lengths), lengths, strict=False)]

    def trim(self) -> bool:
        """Unmap segments that have been idle for long; return whether mappings are left."""
        now = monotonic()
        with self._lock:
            for use in self._uses():
                if use.is_over:
                    use.mapping.used_at = now  # delays the unmapping: another thread may be ending the same use
                    use.end()
            idle = sorted(
                (each for each in self._mappings.items() if not each[1].uses), key=lambda each: each[1].used_at
            )
            for number, (key, mapping) in enumerate(idle):
                if now - mapping.used_at >= IDLE_SECONDS or number < len(idle) - MOST_IDLE:
                    del self._mappings[key]
                    mapping.let_go()
            return bool(self._mappings)

    def close(self) -> None:
        """Unmap all but what values use; that is unmapped with the values."""
        with self._lock:
            self._closed = True
            for mapping in self._mappings.values():
                mapping.is_unwanted = True  # set first: the last view may be freed meanwhile
                mapping.let_go()

    def before_fork(self) -> None:
        for use in self._uses():
            use.has_children = True

    def after_fork(self) -> None:
        """Remap in the child. No lock: the child has one thread, and the lock's holder may not exist in it."""
        for use in self._uses():
            use.remap()

    def _uses(self) -> list[_Use]:
        return [use for mapping in list(self._mappings.values()) for use in list(mapping.uses.values())]

    def _view(self, reference: SegmentReference) -> memoryview:
        private = 0
        with self._lock:
            if self._closed:
                raise OSError(errno.ESHUTDOWN, "this process's runtime was shut down")
            mapping = self._find(reference)
            if not reference.is_shared:
                private = _map(reference, is_shared=False)
            mapping.accept(reference)
            use = mapping.uses[reference.ticket] = _Use(mapping, reference, private)
        room = reference.size - HEADER
        made = _array(room).from_address((private or mapping.address) + HEADER)
        use.watch(made)
        return memoryview(made).cast("B")

    def _find(self, reference: SegmentReference) -> _Mapping:
        key = reference.owner, reference.descriptor, reference.token
        if (mapping := self._mappings.get(key)) is None:
            descriptor = _open(reference)
            try:
                mapping = self._mappings[key] = _Mapping(reference, descriptor)
            finally:
                os.close(descriptor)
        return mapping


def _open(reference: SegmentReference) -> int:
    descriptor = os.open(reference.path, os.O_RDWR | os.O_CLOEXEC)
    try:
        expect_token(descriptor, reference.token)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _map(reference: SegmentReference, *, is_shared: bool) -> int:
    descriptor = _open(reference)
    try:
        return map_file(descriptor, reference.size, is_shared=is_shared)
    finally:
        os.close(descriptor)


def _read_over(reference: SegmentReference, lengths: Sequence[int], error: OSError) -> memoryview:
    """Copy the data from the owner's memory: no descriptors or mappings are left."""
    if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        raise error
    owner, size = reference.owner.pid, starts_of(lengths)[-1]
    there = reference.address - HEADER + 8 * reference.word
    word, made = ctypes.c_uint64(), (ctypes.c_ubyte * size)()
    process.read(owner, [(ctypes.addressof(word), there, 8)])
    if word.value != reference.ticket:
        raise error
    for start in range(0, size, process.MOST_BYTES):
        length = min(process.MOST_BYTES, size - start)
        process.read(owner, [(ctypes.addressof(made) + start, reference.address + start, length)])
    word.value = FREE
    process.write(owner, [(ctypes.addressof(word), there, 8)])
    return memoryview(made).cast("B")


@functools.cache
def _array(room: int) -> Any:
    return ctypes.c_ubyte * room


_all: weakref.WeakSet[Mappings] = weakref.WeakSet()  # affected by a fork


def _before_fork() -> None:
    for mappings in list(_all):
        mappings.before_fork()


def _after_fork() -> None:
    for mappings in list(_all):
        mappings.after_fork()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
