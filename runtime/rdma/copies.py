"""The copies of other processes' buffers that broadcasts made here; the next broadcast reuses their memory.

The owner of a buffer keeps a list of the processes that hold copies of it, and notifies them when its lease ends.
"""

from __future__ import annotations

import collections
import contextlib
import mmap
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from meshbook.runtime.memory import pages
from meshbook.runtime.memory.local_memory import LocalMemory, local_memory
from meshbook.runtime.rdma.backends import BufferHandle
from meshbook.runtime.rdma.leases import LeaseTable, LentMemory
from meshbook.runtime.threads import items_of
from meshbook.runtime.wire.messages import Address

RECEIVER = "rdma receiver"  # the actor of every process that fetches and drops copies (`broadcast_receiver`)
Lend = Callable[[LocalMemory, BufferHandle], BufferHandle]
Source = tuple[str, int, int]  # the owner's node, its incarnation, and the lease number


def source_of(handle: BufferHandle) -> Source:
    """Return the key that identifies a buffer in the whole run."""
    return handle.owner.node, handle.incarnation, handle.lease.number


@dataclass(slots=True)
class Copy:
    """Memory of this process, lent to others, with its contents."""

    local: LocalMemory
    handle: BufferHandle  # of the copy
    source: BufferHandle  # the buffer that it is a copy of
    is_whole: bool = False  # a broadcast has filled it, and none has failed since
    filling: threading.Lock = field(default_factory=threading.Lock)  # held by the broadcast that writes to it


class Copies:
    """The copies of one process: one per buffer, or one per name. Safe from any thread.

    Starting and ending a lease may take long and sends messages. Both happen outside the lock, because receiving
    threads may wait for it.
    """

    def __init__(self, lend: Lend, end: Callable[[int], object]) -> None:
        self._lend = lend
        self._end = end
        self._lock = threading.RLock()  # guards the next two; reentrant: a garbage collection may drop a buffer
        self._copies: dict[Any, Copy] = {}  # by name, else by source
        self._keys: dict[Source, Any] = {}
        self._dropped: collections.deque[Copy] = collections.deque()  # copies whose leases are still to be ended

    def take(self, source: BufferHandle, name: str, *, fresh: bool) -> Copy:
        """Return the copy that a broadcast of this buffer writes to. Reuses the last one of the same size.

        Raises MemoryError.
        """
        key = name or source_of(source)
        copy = None if fresh else self._use_again(key, source)
        if copy is None:
            local = local_memory(mmap.mmap(-1, source.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), "the copy")
            pages.want_large(local.address, local.size)
            made = Copy(local, self._lend(local, source), source)
            with self._lock:  # another thread may have made one in the meantime
                copy = None if fresh else self._use_again(key, source)
                if copy is not None:
                    self._dropped.append(made)
                else:
                    copy = made
                    self._leave_others(key, source)
                    self._drop(key)
                    self._copies[key], self._keys[source_of(source)] = made, key
        self._end_dropped()
        return copy

    def find(self, source: BufferHandle) -> Copy | None:
        """Return the copy of this buffer if it is complete."""
        with self._lock:
            copy = self._copies.get(self._keys.get(source_of(source)))
            return copy if copy is not None and copy.is_whole else None

    def forget(self, source: Source) -> None:
        """Drop the copies of a buffer whose lease has ended. A tensor that views a copy keeps its memory alive."""
        with self._lock:
            self._drop(self._keys.get(source))
        self._end_dropped()

    def let_go(self, numbers: Collection[int]) -> None:
        """Drop the copies whose own leases have these numbers."""
        with self._lock:
            for key, copy in items_of(self._copies):
                if copy.handle.lease.number in numbers:
                    self._drop(key)
        self._end_dropped()

    def _use_again(self, key: Any, source: BufferHandle) -> Copy | None:
        """Return the copy of this key, reassigned to this buffer, if its size matches."""
        with self._lock:
            copy = self._copies.get(key)
            if copy is None or copy.local.size != source.size:
                return None
            self._leave_others(key, source)
            if copy.source != source:
                self._keys.pop(source_of(copy.source), None)
                copy.source, copy.is_whole = source, False  # the contents are those of the previous buffer
            self._keys[source_of(source)] = key
            return copy

    def _leave_others(self, key: Any, source: BufferHandle) -> None:
        """Drop a copy of this buffer under another key: each buffer has one copy."""
        if (other := self._keys.get(source_of(source), key)) != key:
            self._drop(other)

    def _drop(self, key: Any) -> None:
        if (copy := self._copies.pop(key, None)) is not None:
            self._keys.pop(source_of(copy.source), None)
            self._dropped.append(copy)

    def _end_dropped(self) -> None:
        """End the leases of dropped copies, outside the lock. Reentrant: `_end` calls `let_go`, and that calls this."""
        with contextlib.suppress(IndexError):
            while True:
                self._end(self._dropped.popleft().handle.lease.number)


class CopyHolders:
    """The processes that hold copies of this process's buffers, by lease number. Safe from any thread."""

    def __init__(self, leases: LeaseTable, notify: Callable[[BufferHandle, list[Address]], object]) -> None:
        self._leases = leases
        self._notify = notify
        self._lock = threading.RLock()  # guards the next; reentrant: the garbage collector may drop a buffer under it
        self._receivers: dict[int, set[Address]] = {}

    def add(self, source: BufferHandle, receivers: Iterable[Address]) -> None:
        """Notify these processes when the lease of this buffer ends."""
        number = source.lease.number
        with self._lock:
            self._receivers.setdefault(number, set()).update(receivers)
        if self._leases.find(number) is None:  # dropped before this call, or during it
            self._end(source)

    def end(self, ended: Iterable[LentMemory]) -> None:
        """Notify the holders of these ended leases."""
        for lent in ended:
            if lent.handle is not None and lent.lease.number in self._receivers:
                self._end(lent.handle)

    def _end(self, source: BufferHandle) -> None:
        with self._lock:
            receivers = self._receivers.pop(source.lease.number, set())
        if receivers:
            self._notify(source, list(receivers))


def notify_dropped(node: Any, source: BufferHandle, receivers: list[Address]) -> None:
    """Send these processes a message to drop their copies of a buffer. Processes that have ended hold none."""
    for address in receivers:
        node.calls.notify(address, RECEIVER, "forget", source_of(source))


def register_holders(node: Any, source: BufferHandle, receivers: list[Address]) -> None:
    """Register these processes with the owner of a buffer, which notifies them when the lease ends."""
    node.calls.notify(source.owner, RECEIVER, "follow", source, receivers)
