"""The transfer backends, one file each. The interface is `TransferBackend`; `select_backend` tries the fastest first.

    same_process     the owner is this process                           a copy
    process_memory   memory of another process of this host              Cross Memory Attach
    cuda_ipc         GPU memory of another process of this host          CUDA IPC, a copy by the GPU
    nixl             another host, or GPU memory, where there is a NIC   NIXL (verbs)
    host_agent       another host: its agent reads the owner's memory    Cross Memory Attach there, then TCP
    message          nothing else works                                  the owner's receiving thread, by messages

The first five are one-sided: they go on while the owner holds the GIL, sleeps, or is stopped.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from meshbook.runtime.actor.future import check_timeout
from meshbook.runtime.errors import TransferTimeout
from meshbook.runtime.memory.local import LocalMemory
from meshbook.runtime.rdma.handle import BufferHandle, Lease

# Errors of the system that may be over soon: a want of descriptors, memory or room, a server that does not listen yet.
ROOM = errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ENOSPC, errno.EDQUOT, errno.EAGAIN
PASSING = frozenset({*ROOM, errno.ECONNREFUSED})


class Unsuitable(Exception):
    """A way does not lead there after all: the text says why. The next one is taken, from then on for this owner.

    What the system's `error` says may pass: then the way is tried again after a while.
    """

    def __init__(self, why: str, error: BaseException | None = None) -> None:
        super().__init__(why)
        self.may_pass = isinstance(error, OSError) and error.errno in PASSING


class Deadline:
    """Until when a transfer must be done, unless it is cancelled before. Ways look at it between two pieces."""

    __slots__ = ("_end", "_why", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds
        self._why: BaseException | None = None

    @property
    def left(self) -> float:
        """Seconds; 0 when it has passed."""
        return max(0.0, self._end - time.monotonic())

    def cancel(self, why: BaseException) -> None:
        """Nobody wants the transfer any more: `check` raises this, and nothing is left of the time."""
        self._why, self._end = why, 0.0

    def check(self, what: Callable[[], str]) -> None:
        """TransferTimeout once it has passed, or why it was cancelled."""
        if time.monotonic() >= self._end:
            raise self._why or TransferTimeout(f"{what()} was not done after {self.seconds:g} s")


def deadline_in(timeout: float) -> Deadline:
    """So many seconds from now. TypeError or ValueError for what is no time limit: each transfer has one."""
    if timeout is None:
        raise TypeError("a transfer needs a time limit: timeout is a number of seconds")
    check_timeout(timeout)
    return Deadline(timeout)


def _unnoticed(count: int) -> None:
    """Nobody follows the transfer."""


@dataclass(slots=True)
class TransferJob:
    """One transfer: `local.size` bytes between here and the buffer, from its byte `offset` on.

    Whoever made it has checked that they are inside both. `moved` is told of bytes as they are moved.
    """

    handle: BufferHandle
    offset: int
    local: LocalMemory
    deadline: Deadline
    moved: Callable[[int], object] = field(default=_unnoticed)

    @property
    def address(self) -> int:
        """Where it begins, in the owner's memory."""
        return self.handle.address + self.offset


class Transfer(Protocol):
    """What moves data by one way. Its methods are called on any thread, several at a time, and wait.

    One that `is_immediate` copies memory and waits for nobody: short transfers are made by whoever asks for
    them, be it on an event loop.

    `read` and `write` move all bytes, and see that the lease held before and after. They raise BufferDropped,
    OwnerGone, TransferTimeout or another TransferError, and Unsuitable where this way does not lead there.
    """

    name: str  # as in `Settings.rdma_ways`
    is_immediate: bool

    def read(self, job: TransferJob) -> None:
        """From the buffer to here."""
        ...

    def write(self, job: TransferJob) -> None:
        """From here to the buffer."""
        ...


class TransferBackend(Transfer, Protocol):
    """A way for data."""

    def refusal(self, handle: BufferHandle, local: str | None) -> str:
        """Why it does not lead to this buffer, in a few words; empty where it may. Quick; what is probed is kept.

        `local` is the device of the memory here; None where it is not known yet.
        """
        ...

    def offer(self, local: LocalMemory, lease: Lease) -> bytes | None:
        """What the handle of memory of this process carries for this way (`BufferHandle.offers`); None: nothing."""
        ...

    def withdraw(self, handle: BufferHandle) -> None:
        """A buffer of this process is dropped, and nothing is moved from or to it any more."""
        ...

    def close(self) -> None:
        """The process is about to leave."""
        ...
