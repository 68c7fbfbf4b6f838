"""GPU memory of another process of this host, by CUDA IPC. The GPU copies, and the owner takes no part.

Work that the owner queued on its GPU before it made the buffer is complete. Later work that the owner has not waited
for may or may not be visible: as with any one-sided transfer, both sides must agree on turns.

An allocation of another process is opened once, and closed when it is unused.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import msgspec

from meshbook.runtime import devices
from meshbook.runtime.errors import TransferError
from meshbook.runtime.memory.cuda import CudaError, Driver, driver
from meshbook.runtime.memory.local_memory import LocalMemory
from meshbook.runtime.memory.process_identity import own_mark
from meshbook.runtime.rdma.backends import BufferHandle, Lease, TransferJob, Unsuitable
from meshbook.runtime.rdma.backends.process_memory import ProcessMemoryBackend

logger = logging.getLogger(__name__)

PIECE = 256 << 20  # bytes between two checks of the lease and the deadline
# Registers this process with the owner, which notifies it when the buffer is dropped.
Follow = Callable[[BufferHandle], object]
Allocation = tuple[int, bytes]  # the GPU, and the handle that opens its memory
Buffer = tuple[str, int]  # the owner's node, and the lease number


class CudaIpcOffer(msgspec.Struct, frozen=True, array_like=True):
    """How other processes open this GPU memory; or why they cannot."""

    allocation: bytes = b""
    offset: int = 0  # in the allocation, bytes
    why_not: str = ""


class CudaIpcBackend:
    """The CUDA IPC backend of one process. `memory` reads the words of leases."""

    name = "cuda ipc"
    is_immediate = False

    def __init__(
        self, memory: ProcessMemoryBackend, follow: Follow, find_driver: Callable[[], Driver] = driver
    ) -> None:
        self._memory = memory
        self._follow = follow
        self._driver = find_driver
        self._system = own_mark().system
        self._imports = IpcHandles(self._open, self._close)

    def refusal(self, handle: BufferHandle, local: str | None) -> str:
        if not handle.device.startswith(devices.CUDA):
            return "the memory is not on a GPU"
        if handle.process.system != self._system:
            return "the owner is on another host, or in another pid namespace"
        if handle.process.pid == os.getpid():
            return "the owner is this process, and CUDA IPC works only between processes"
        offer = _unpack(handle)
        if offer.why_not:
            return offer.why_not
        if not devices.is_in_use():
            return "this process has not used a GPU yet"
        if devices.number_here(handle.device) is None:
            return "that GPU is not visible to this process (CUDA_VISIBLE_DEVICES)"
        return ""

    # -- the owner's side ------------------------------------------------------------------

    def offer(self, local: LocalMemory, lease: Lease) -> bytes | None:
        if not local.device.startswith(devices.CUDA):
            return None
        self._memory.offer(local, lease)  # lets other processes read the lease's word
        try:
            offer = CudaIpcOffer(*self._driver().export(int(local.device.removeprefix(devices.CUDA)), local.address))
        except CudaError as error:
            offer = CudaIpcOffer(
                why_not=f"the owner cannot share it ({error}); check whether torch uses expandable_segments there"
            )
        return msgspec.msgpack.encode(offer)

    def withdraw(self, handle: BufferHandle) -> None:
        return None  # the owner notifies the processes that have opened it, and they close it

    # -- moving ----------------------------------------------------------------------------

    def read(self, job: TransferJob) -> None:
        self._move(job, is_write=False)

    def write(self, job: TransferJob) -> None:
        self._move(job, is_write=True)

    def _move(self, job: TransferJob, *, is_write: bool) -> None:
        number = devices.number_here(job.handle.device)
        assert number is not None, "refused before"
        job.wait_ready()
        with self._memory.at(job), self._opened(job.handle, number) as base:
            there = base + _unpack(job.handle).offset + job.offset
            for start in range(0, job.local.size, PIECE):
                job.deadline.check(partial(_format_progress, job, start))
                size = min(PIECE, job.local.size - start)
                theirs, ours = there + start, job.local.address + start
                to, source = (theirs, ours) if is_write else (ours, theirs)
                self._copy(job, number, to, source, size)
                self._memory.check(job.handle)
                job.moved(size)

    def _copy(self, job: TransferJob, number: int, to: int, source: int, size: int) -> None:
        try:
            self._driver().copy(number, to, source, size)
        except CudaError as error:
            self._memory.check(job.handle)  # report a drop rather than its consequence
            raise TransferError(f"the GPU failed to copy {size:,} bytes of {job.handle.actor}: {error}") from error

    @contextlib.contextmanager
    def _opened(self, handle: BufferHandle, number: int) -> Iterator[int]:
        """Yield the address here of the buffer's allocation, after a check of the lease. It stays open meanwhile."""
        self._memory.check(handle)
        allocation, buffer = (number, _unpack(handle).allocation), (handle.owner.node, handle.lease.number)
        with contextlib.ExitStack() as stack:
            try:
                base, is_first = stack.enter_context(self._imports.use(allocation, buffer))
            except CudaError as error:
                raise Unsuitable(f"CUDA cannot open the owner's memory here ({error})") from error
            if is_first:
                self._follow(handle)
            yield base

    def forget(self, node: str, number: int | None = None) -> None:
        """Close unused allocations, after one lease of this node has ended, or all of them (None)."""
        self._imports.forget(lambda buffer: buffer[0] == node and number in (None, buffer[1]))

    def close(self) -> None:
        self._imports.forget(lambda buffer: True)

    def _open(self, allocation: Allocation) -> int:
        return self._driver().open(*allocation)

    def _close(self, allocation: Allocation, address: int) -> None:
        try:
            self._driver().close(allocation[0], address)
        except CudaError as error:  # no caller waits for this
            logger.warning("GPU memory of another process could not be closed: %s", error)


def _unpack(handle: BufferHandle) -> CudaIpcOffer:
    packed = handle.offers.get(CudaIpcBackend.name)
    return CudaIpcOffer(why_not="the owner offers no CUDA IPC handle") if packed is None else _decoder.decode(packed)


_decoder = msgspec.msgpack.Decoder(CudaIpcOffer)


def _format_progress(job: TransferJob, done: int) -> str:
    return f"moving {job.local.size:,} bytes from or to {job.handle.actor} by CUDA IPC ({done:,} done)"


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
