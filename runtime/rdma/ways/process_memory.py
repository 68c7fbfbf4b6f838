"""Memory of another process of this host: Cross Memory Attach. One call reads lease, data and lease, in this order."""

from __future__ import annotations

import ctypes
import errno
import threading

from meshbook.runtime.errors import BufferDropped, OwnerGone, TransferError
from meshbook.runtime.memory import process
from meshbook.runtime.memory.identity import Lifetime, ProcessMark, own_mark
from meshbook.runtime.memory.local import CPU, Local
from meshbook.runtime.rdma.handle import Handle, Lease
from meshbook.runtime.rdma.progress import InProgress
from meshbook.runtime.rdma.ways import Job, Unsuitable

PIECE = 64 << 20  # bytes of one call, and between two looks at the deadline
_WORD = 8


class ProcessMemory:
    """Cross Memory Attach, for this process or as an agent for others."""

    name = "process memory"

    def __init__(self, in_progress: InProgress) -> None:
        self._in_progress = in_progress
        self._system = own_mark().system
        self._lock = threading.Lock()  # guards the next
        self._lifetimes: dict[ProcessMark, Lifetime] = {}

    def refusal(self, handle: Handle, local: str | None) -> str:
        if not process.is_available():
            return "this system has no Cross Memory Attach"
        if handle.process.system != self._system:
            return "the owner is on another host, or in another namespace of processes"
        return "the memory is that of a GPU" if handle.is_on_gpu or local not in (None, CPU) else ""

    def read(self, job: Job) -> None:
        self._move(job, is_write=False)

    def write(self, job: Job) -> None:
        self._move(job, is_write=True)

    def _move(self, job: Job, *, is_write: bool) -> None:
        handle, size = job.handle, job.local.size
        try:
            lifetime = self._lifetime(handle.process)
            with self._in_progress.at(handle):
                for start in range(0, size, PIECE):
                    job.deadline.check(lambda: f"moving {size:,} bytes from or to {handle.actor}")
                    self._move_piece(job, start, min(PIECE, size - start), is_write=is_write)
        except ProcessLookupError:
            raise gone(handle) from None
        except PermissionError as error:
            raise Unsuitable(f"ptrace is not allowed here ({error.strerror})") from error
        if lifetime.has_ended():
            raise gone(handle)

    def _move_piece(self, job: Job, start: int, size: int, *, is_write: bool) -> None:
        handle, words = job.handle, (ctypes.c_uint64 * 2)()
        before, after = ((ctypes.addressof(words) + at * _WORD, handle.lease.word, _WORD) for at in range(2))
        piece = job.local.address + start, job.address + start, size
        pid = handle.process.pid
        try:
            if is_write:
                process.read(pid, [before])
                check_lease(handle, words[0])
                process.write(pid, [piece])
                process.read(pid, [after])
            else:
                process.read(pid, [before, piece, after])
        except OSError as error:
            if error.errno != errno.EFAULT:
                raise
            check_lease(handle, words[0])
            raise TransferError(
                f"the memory of {handle.actor} at {handle.address:#x} is not mapped there (any more): {error.strerror}"
            ) from error
        for word in words:
            check_lease(handle, word)
        job.moved(size)

    def _lifetime(self, mark: ProcessMark) -> Lifetime:
        with self._lock:
            if (found := self._lifetimes.get(mark)) is None:
                found = self._lifetimes[mark] = Lifetime(mark)
            return found

    def offer(self, local: Local, lease: Lease) -> bytes | None:
        process.allow_everyone()
        return None

    def withdraw(self, handle: Handle) -> None:
        return None

    def close(self) -> None:
        with self._lock:
            for lifetime in self._lifetimes.values():
                lifetime.close()
            self._lifetimes.clear()


def check_lease(handle: Handle, word: int) -> None:
    """BufferDropped unless this is the number of its lease."""
    if word != handle.lease.number:
        raise BufferDropped(f"the buffer of {handle.actor} was dropped, or its actor has ended: ask for a new handle")


def gone(handle: Handle) -> OwnerGone:
    """The owner's process has ended."""
    owner = f"{handle.actor} ({handle.owner.node}, pid {handle.process.pid})"
    return OwnerGone(f"{owner} has ended, and the memory of the buffer with it")
