"""The processes that hold copies of this process's buffers, or have opened them; notified when a lease ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from meshbook.runtime.geometry import Extent
from meshbook.runtime.node.call_table import Target
from meshbook.runtime.rdma.copies import source_of
from meshbook.runtime.rdma.handle import BufferHandle
from meshbook.runtime.rdma.leases import LeaseTable, LentMemory
from meshbook.runtime.wire.messages import Address

RECEIVER = "rdma receiver"  # the actor of every process that fetches and drops copies (`broadcast_receiver`)
NOWHERE = Extent((), ())


class CopyHolders:
    """The holders by lease number. Safe from any thread."""

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
        node.calls.send([Target(address, RECEIVER)], "forget", ((source_of(source),), {}), NOWHERE, None)


def register_holders(node: Any, source: BufferHandle, receivers: list[Address]) -> None:
    """Register these processes with the owner of a buffer, which notifies them when the lease ends."""
    node.calls.send([Target(source.owner, RECEIVER)], "follow", ((source, receivers), {}), NOWHERE, None)
