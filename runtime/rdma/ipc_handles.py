"""GPU memory of other processes that is open here by CUDA IPC: opened once, and closed when it is unused."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

Allocation = tuple[int, bytes]  # the GPU, and the handle that opens its memory
Buffer = tuple[str, int]  # the owner's node, and the lease number


@dataclass(slots=True)
class _Opened:
    """An open allocation: torch places many tensors in one."""

    address: int
    buffers: set[Buffer] = field(default_factory=set)  # those in it that transfers have used and that are not dropped
    users: int = 0  # transfers under way


class IpcHandles:
    """The open allocations of one process. Safe from any thread."""

    def __init__(self, open_: Callable[[Allocation], int], close: Callable[[Allocation, int], object]) -> None:
        self._open = open_
        self._close = close
        self._lock = threading.Lock()  # guards the next
        self._opened: dict[Allocation, _Opened] = {}

    @contextlib.contextmanager
    def use(self, allocation: Allocation, buffer: Buffer) -> Iterator[tuple[int, bool]]:
        """Yield the address of the allocation here, and whether this is the first use of the buffer."""
        with self._lock:
            if (found := self._opened.get(allocation)) is None:
                found = self._opened[allocation] = _Opened(self._open(allocation))
            is_first = buffer not in found.buffers
            found.buffers.add(buffer)
            found.users += 1
        try:
            yield found.address, is_first
        finally:
            with self._lock:
                found.users -= 1
                self._close_unused(allocation, found)

    def forget(self, is_over: Callable[[Buffer], bool]) -> None:
        """Close allocations that are unused now that the leases of these buffers have ended."""
        with self._lock:
            for allocation, found in list(self._opened.items()):
                found.buffers = {buffer for buffer in found.buffers if not is_over(buffer)}
                self._close_unused(allocation, found)

    def _close_unused(self, allocation: Allocation, found: _Opened) -> None:
        if not found.buffers and not found.users and self._opened.get(allocation) is found:
            del self._opened[allocation]
            self._close(allocation, found.address)
