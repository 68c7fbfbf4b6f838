"""Who has copies of buffers of this process, or has opened one: they are told when it is lent no more."""

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

RECEIVER = "rdma receiver"  # the actor of every process that fetches and drops copies (`receiving`)
NOWHERE = Extent((), ())


class CopyHolders:
    """By the number of the lease. Safe from any thread."""

    def __init__(self, leases: LeaseTable, tell: Callable[[BufferHandle, list[Address]], object]) -> None:
        self._leases = leases
        self._tell = tell
        self._lock = threading.RLock()  # guards the next; under it, garbage may drop a buffer
        self._receivers: dict[int, set[Address]] = {}

    def add(self, source: BufferHandle, receivers: Iterable[Address]) -> None:
        """These processes are to be told of its end."""
        number = source.lease.number
        with self._lock:
            self._receivers.setdefault(number, set()).update(receivers)
        if self._leases.find(number) is None:  # it was dropped meanwhile, or before
            self._end(source)

    def end(self, ended: Iterable[LentMemory]) -> None:
        """These are lent no more."""
        for lent in ended:
            if lent.handle is not None and lent.lease.number in self._receivers:
                self._end(lent.handle)

    def _end(self, source: BufferHandle) -> None:
        with self._lock:
            receivers = self._receivers.pop(source.lease.number, set())
        if receivers:
            self._tell(source, list(receivers))


def notify_dropped(node: Any, source: BufferHandle, receivers: list[Address]) -> None:
    """Let these processes drop their copies of a buffer. Those that have ended have none."""
    for address in receivers:
        node.calls.send([Target(address, RECEIVER)], "forget", ((source_of(source),), {}), NOWHERE, None)


def ask_to_be_told(node: Any, source: BufferHandle, receivers: list[Address]) -> None:
    """Let the owner of a buffer tell these processes when it is lent no more."""
    node.calls.send([Target(source.owner, RECEIVER)], "follow", ((source, receivers), {}), NOWHERE, None)
