"""Pieces of memory on their way between a process and a socket: two threads, so that the one copies while the other
sends. Buffers stay in the processor's cache, where the second copy finds what the first one has left.
"""

from __future__ import annotations

import ctypes
import mmap
import queue
import threading
from collections.abc import Callable, Iterator

from meshbook.runtime.memory.local import CPU, Local

PIECE = 512 << 10  # bytes: measured, from 128 KiB to 4 MiB
BUFFERS = 3  # of one transfer: one is filled, one is emptied, and one is ready
KEPT = 12  # buffers that are kept for the next transfers

Handle = Callable[[int, Local], object]  # told where the piece begins, and the buffer


class Buffers:
    """The buffers of a server. The last that was given back is the next that is taken: it is the warmest."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the next
        self._free: list[Local] = []

    def take(self) -> Local:
        with self._lock:
            if self._free:
                return self._free.pop()
        memory = mmap.mmap(-1, PIECE)
        address = ctypes.addressof(ctypes.c_ubyte.from_buffer(memory))
        return Local(address, PIECE, CPU, True, memory)

    def give(self, buffer: Local) -> None:
        with self._lock:
            if len(self._free) < KEPT:
                self._free.append(buffer)


def pass_on(buffers: Buffers, size: int, fill: Handle, empty: Handle) -> None:
    """Fill a buffer with each piece, and empty it, in order; more than one piece are filled on a thread of its own.

    What either raises is raised here, once nobody touches a buffer any more.
    """
    if size <= PIECE:
        _pass_one(buffers, size, fill, empty)
        return
    free: queue.SimpleQueue[Local | None] = queue.SimpleQueue()
    full: queue.SimpleQueue[tuple[int, Local] | BaseException] = queue.SimpleQueue()
    taken = [buffers.take() for _ in range(BUFFERS)]
    for buffer in taken:
        free.put(buffer)
    thread = threading.Thread(target=_fill_all, args=(size, fill, free, full), name="meshbook pieces", daemon=True)
    thread.start()
    try:
        for _ in _starts(size):
            filled = full.get()
            if isinstance(filled, BaseException):
                raise filled
            start, buffer = filled
            empty(start, buffer.part(0, min(PIECE, size - start)))
            free.put(buffer)
    finally:
        free.put(None)
        thread.join()
        for buffer in taken:
            buffers.give(buffer)


def _pass_one(buffers: Buffers, size: int, fill: Handle, empty: Handle) -> None:
    buffer = buffers.take()
    try:
        part = buffer.part(0, size)
        fill(0, part)
        empty(0, part)
    finally:
        buffers.give(buffer)


def _fill_all(
    size: int,
    fill: Handle,
    free: queue.SimpleQueue[Local | None],
    full: queue.SimpleQueue[tuple[int, Local] | BaseException],
) -> None:
    try:
        for start in _starts(size):
            if (buffer := free.get()) is None:  # who empties them has stopped
                return
            fill(start, buffer.part(0, min(PIECE, size - start)))
            full.put((start, buffer))
    except BaseException as error:
        full.put(error)


def _starts(size: int) -> Iterator[int]:
    return iter(range(0, size, PIECE))
