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
from typing import Any, Protocol

import msgspec

from meshbook.runtime import devices
from meshbook.runtime.actor.future import check_timeout
from meshbook.runtime.errors import TransferTimeout
from meshbook.runtime.memory.local_memory import CPU, LocalMemory, TensorForm
from meshbook.runtime.memory.process_identity import ProcessMark
from meshbook.runtime.wire.messages import Address

# Errors of the system that may pass soon: a lack of descriptors, memory or space, a server that does not listen yet.
ROOM = errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ENOSPC, errno.EDQUOT, errno.EAGAIN
PASSING = frozenset({*ROOM, errno.ECONNREFUSED})


class Lease(msgspec.Struct, frozen=True, array_like=True):
    """Memory is lent while the word at this address, in the owner's memory, holds this number."""

    word: int  # its address: eight bytes, never freed
    number: int  # random, never used again
    # On the owner's host: processes that use the memory are marked there (`progress`).
    folder: str = ""


class BufferHandle(msgspec.Struct, frozen=True, array_like=True):
    """A memory range of some process: the picklable part of a buffer."""

    owner: Address  # the node
    incarnation: int  # of that node
    actor: str  # the owner's full name, for errors
    process: ProcessMark
    agent: Address | None  # of the owner's host; None if there is none
    lease: Lease
    address: int
    size: int  # bytes
    device: str = CPU  # or "cuda:<UUID>": the number of a GPU differs between processes
    offers: dict[str, bytes] = {}  # by backend name: what backends need beyond an address
    is_writable: bool = True  # False if the owner's data is read-only: `bytes`, arrays with that flag
    form: TensorForm | None = None  # of the tensor or array that it is; None: bytes
    run: str = ""  # the owner's run: a handle pickled to a file may be loaded in another one

    @property
    def is_on_gpu(self) -> bool:
        return self.device != CPU


class Unsuitable(Exception):
    """This backend does not reach the buffer; the text says why. Later transfers to this owner use the next backend.

    If the system's `error` may pass, the backend is tried again later.
    """

    def __init__(self, why: str, error: BaseException | None = None) -> None:
        super().__init__(why)
        self.may_pass = isinstance(error, OSError) and error.errno in PASSING


class Deadline:
    """The deadline of a transfer, unless it is cancelled before. Backends check it between two pieces."""

    __slots__ = ("_end", "_why", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds
        self._why: BaseException | None = None

    @property
    def left(self) -> float:
        """Seconds; 0 after the deadline."""
        return max(0.0, self._end - time.monotonic())

    def cancel(self, why: BaseException) -> None:
        """Set the remaining time to zero; `check` then raises `why`."""
        self._why, self._end = why, 0.0

    def check(self, what: Callable[[], str]) -> None:
        """Raise TransferTimeout after the deadline, or the reason of a cancellation."""
        if time.monotonic() >= self._end:
            raise self._why or TransferTimeout(f"{what()} was not done after {self.seconds:g} s")


def deadline_in(timeout: float) -> Deadline:
    """Return the deadline in `timeout` seconds. Raises TypeError or ValueError for an invalid one, such as None."""
    if timeout is None:
        raise TypeError("timeout must be a number of seconds, not None")
    check_timeout(timeout)
    return Deadline(timeout)


def _unnoticed(count: int) -> None:
    """Ignore progress."""


@dataclass(slots=True)
class TransferJob:
    """One transfer: `local.size` bytes between here and the buffer, from its byte `offset` on.

    The caller has checked that the bytes are inside both. `moved` is called with each number of bytes moved. On a GPU,
    the transfer comes after the work on the current stream of the thread that makes the job.
    """

    handle: BufferHandle
    offset: int
    local: LocalMemory
    deadline: Deadline
    moved: Callable[[int], object] = field(default=_unnoticed)
    _ready: Any = field(init=False, default=None)  # an event of the caller's stream

    def __post_init__(self) -> None:
        if self.is_on_gpu:
            self._ready = devices.record_event(None if self.local.device == CPU else self.local.device)

    def wait_ready(self) -> None:
        """Wait until the work before this job, if it is one of a GPU, has filled the memory and no longer reads it."""
        if self._ready is not None:
            self._ready.synchronize()

    @property
    def is_on_gpu(self) -> bool:
        """Whether the memory here or the buffer is."""
        return self.local.device != CPU or self.handle.is_on_gpu

    @property
    def address(self) -> int:
        """The address of the first byte, in the owner's memory."""
        return self.handle.address + self.offset


class Transfer(Protocol):
    """An object that moves data by one mechanism. Its blocking methods may be called from several threads at once.

    An `is_immediate` one copies memory and waits for no other process: callers run short transfers on their own thread,
    even on an event loop.

    `read` and `write` move all bytes, and check the lease before and after. They raise BufferDropped, OwnerGone,
    TransferTimeout or another TransferError, and Unsuitable if this backend does not reach the buffer.
    """

    name: str  # as in `Settings.rdma_backends`
    is_immediate: bool

    def read(self, job: TransferJob) -> None:
        """Copy from the buffer to here."""
        ...

    def write(self, job: TransferJob) -> None:
        """Copy from here to the buffer."""
        ...


class TransferBackend(Transfer, Protocol):
    """A transfer backend."""

    def refusal(self, handle: BufferHandle, local: str | None) -> str:
        """Return in a few words why it does not reach this buffer; empty if it may. Quick: probe results are cached.

        `local` is the device of the memory here; None if it is not known yet.
        """
        ...

    def offer(self, local: LocalMemory, lease: Lease) -> bytes | None:
        """Return the backend's entry in `BufferHandle.offers` for memory of this process; None: no entry."""
        ...

    def withdraw(self, handle: BufferHandle) -> None:
        """Release a dropped buffer of this process. No transfer uses it any more."""
        ...

    def close(self) -> None:
        """Release everything: the process is about to leave its run."""
        ...
