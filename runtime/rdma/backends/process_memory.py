"""Memory of another process of this host, by Cross Memory Attach. One call reads lease, data and lease."""

from __future__ import annotations

import ctypes
import errno
from functools import partial

from meshbook.runtime.errors import BufferDropped, OwnerGone, TransferError
from meshbook.runtime.memory import process
from meshbook.runtime.memory.local_memory import CPU, LocalMemory
from meshbook.runtime.memory.process_identity import own_mark
from meshbook.runtime.rdma.backends import BufferHandle, Lease, TransferJob, Unsuitable
from meshbook.runtime.rdma.progress import ActiveTransfers, TransferMark

PIECE = 64 << 20  # bytes of one call, and between two checks of the lease
NOT_ALLOWED = errno.EPERM, errno.EACCES, errno.ENOSYS  # refused by ptrace's rules, or by a filter of system calls
_WORD = 8
_TWO_WORDS = ctypes.c_uint64 * 2


class ProcessMemoryBackend:
    """Cross Memory Attach, for this process, or in an agent for other hosts."""

    name = "process memory"
    is_immediate = True

    def __init__(self, in_progress: ActiveTransfers) -> None:
        self._in_progress = in_progress
        self._system = own_mark().system
        self._allows_everyone = False

    def refusal(self, handle: BufferHandle, local: str | None) -> str:
        if not process.is_available():
            return "this system has no Cross Memory Attach"
        if handle.process.system != self._system:
            return "the owner is on another host, or in another pid namespace"
        return "the memory is on a GPU" if handle.is_on_gpu or local not in (None, CPU) else ""

    def read(self, job: TransferJob) -> None:
        self._move(job, is_write=False)

    def write(self, job: TransferJob) -> None:
        self._move(job, is_write=True)

    def _move(self, job: TransferJob, *, is_write: bool) -> None:
        size, mark = job.local.size, self.at(job)
        try:
            with mark:
                for start in range(0, size, PIECE):
                    job.deadline.check(partial(_format_progress, job, start, is_write=is_write))
                    piece = min(PIECE, size - start)
                    _move_piece(job.handle, job.local.address + start, job.address + start, piece, is_write=is_write)
                    job.moved(piece)
        finally:
            # Normally done already; after a Ctrl-C in between, the owner would keep its memory until this process ends.
            mark.end()

    def at(self, job: TransferJob) -> TransferMark:
        """Mark the lease as in use in a `with` block: if a later check finds it valid, the owner keeps the memory.

        Raises Unsuitable.
        """
        lease = job.handle.lease
        try:
            return self._in_progress.at(lease, job.deadline.left)
        except OSError as error:
            why = f"cannot mark the transfer for the owner in {lease.folder} ({error.strerror})"
            raise Unsuitable(why, error) from error

    def check(self, handle: BufferHandle) -> None:
        """Raise BufferDropped or OwnerGone unless the lease is valid now; Unsuitable if its word cannot be read."""
        try:
            check_lease(handle, _read_word(handle))
        except OSError as error:
            raise _explain(handle, error) from None if isinstance(error, ProcessLookupError) else error

    def offer(self, local: LocalMemory, lease: Lease) -> bytes | None:
        if not self._allows_everyone:
            process.allow_everyone()
            self._allows_everyone = True
        return None

    def withdraw(self, handle: BufferHandle) -> None:
        return None

    def close(self) -> None:
        return None


def _move_piece(handle: BufferHandle, here: int, there: int, size: int, *, is_write: bool) -> None:
    try:
        (_write_piece if is_write else _read_piece)(handle, here, there, size)
    except OSError as error:
        raise _explain(handle, error) from None if isinstance(error, ProcessLookupError) else error


def _read_piece(handle: BufferHandle, here: int, there: int, size: int) -> None:
    # Preset to the valid number: if the system stops before the word, its error about the memory counts.
    words, word = _TWO_WORDS(handle.lease.number), handle.lease.word
    at = ctypes.addressof(words)
    try:
        process.read(handle.process.pid, ((at, word, _WORD), (here, there, size), (at + _WORD, word, _WORD)))
    except OSError:
        check_lease(handle, words[0])  # report a drop rather than its consequence
        raise
    check_lease(handle, words[0])
    check_lease(handle, words[1])


def _write_piece(handle: BufferHandle, here: int, there: int, size: int) -> None:
    check_lease(handle, _read_word(handle))
    process.write(handle.process.pid, ((here, there, size),))
    check_lease(handle, _read_word(handle))


def _read_word(handle: BufferHandle) -> int:
    word = ctypes.c_uint64()
    process.read(handle.process.pid, ((ctypes.addressof(word), handle.lease.word, _WORD),))
    return word.value


def _format_progress(job: TransferJob, done: int, *, is_write: bool) -> str:
    verb, prep = ("writing", "to") if is_write else ("reading", "from")
    return f"{verb} {job.local.size:,} bytes {prep} {job.handle.actor} by process memory ({done:,} done)"


def _explain(handle: BufferHandle, error: OSError) -> Exception:
    """Convert an error of the system into one of this package."""
    if isinstance(error, ProcessLookupError):
        return gone(handle)
    if error.errno in NOT_ALLOWED:
        return Unsuitable(f"this process is not permitted to access the owner's memory ({error.strerror})")
    if handle.process.has_ended:
        return gone(handle)
    if error.errno == errno.EFAULT:
        where = f"{handle.address:#x} in {handle.owner.node} (pid {handle.process.pid})"
        return TransferError(f"the memory of {handle.actor} at {where} is no longer mapped: {error.strerror}")
    return TransferError(f"the memory of {handle.actor} cannot be reached: {error}")


def check_lease(handle: BufferHandle, word: int) -> None:
    """Raise OwnerGone or BufferDropped unless `word` is the number of the lease."""
    if word != handle.lease.number:
        raise gone(handle) if handle.process.has_ended else dropped(handle)


def dropped(handle: BufferHandle) -> BufferDropped:
    """Return the error for an ended lease."""
    return BufferDropped(
        f"the buffer of {handle.size:,} bytes of {handle.actor} was dropped, or its actor has ended; "
        "get a new buffer from its owner"
    )


def gone(handle: BufferHandle) -> OwnerGone:
    """Return the error for an ended owner."""
    owner = f"{handle.actor} ({handle.owner.node}, pid {handle.process.pid})"
    return OwnerGone(f"{owner} has ended, and the memory of the buffer with it")
