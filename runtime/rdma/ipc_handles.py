"""GPU memory of other processes that is open here, by CUDA IPC: opened once, and closed when nobody needs it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

Allocation = tuple[int, bytes]  # the GPU, and how its memory is opened
Buffer = tuple[str, int]  # the node of its owner, and the number of its lease


@dataclass(slots=True)
class _Opened:
    """An allocation: torch has many tensors in one."""

    address: int
    buffers: set[Buffer] = field(default_factory=set)  # in it that were moved from or to, and not dropped since
    users: int = 0  # transfers that are at it


class IpcHandles:
    """Those of one process. Safe from any thread."""

    def __init__(self, open_: Callable[[Allocation], int], close: Callable[[Allocation, int], object]) -> None:
        self._open = open_
        self._close = close
        self._lock = threading.Lock()  # guards the next
        self._opened: dict[Allocation, _Opened] = {}

    @contextlib.contextmanager
    def use(self, allocation: Allocation, buffer: Buffer) -> Iterator[tuple[int, bool]]:
        """The address of the allocation here, and whether this is the first use of the buffer."""
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
        """These buffers are lent no more."""
        with self._lock:
            for allocation, found in list(self._opened.items()):
                found.buffers = {buffer for buffer in found.buffers if not is_over(buffer)}
                self._close_unused(allocation, found)

    def _close_unused(self, allocation: Allocation, found: _Opened) -> None:
        if not found.buffers and not found.users and self._opened.get(allocation) is found:
            del self._opened[allocation]
            self._close(allocation, found.address)
