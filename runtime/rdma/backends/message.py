"""The last resort: pieces as messages, which the owner's receiving thread answers. Not one-sided."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import OwnerGone, SupervisionError, TransferError
from meshbook.runtime.memory.local_memory import LocalMemory
from meshbook.runtime.node.node import Node
from meshbook.runtime.rdma.backends import BufferHandle, Lease, TransferJob
from meshbook.runtime.rdma.backends.process_memory import dropped
from meshbook.runtime.rdma.service import RDMA, parcel_of, put_bytes

PIECE = 4 << 20  # bytes of a message; fewer if messages have a lower limit
IN_FLIGHT = 3  # pieces that are requested and have not arrived
CHECK_SECONDS = 0.5  # between two checks for cancellation
Ask = Callable[[int, int], Future[Any]]  # requests the piece of that start and size
Take = Callable[[int, int, Any], None]  # takes the same, and the answer


class MessageBackend:
    """Transfers by calls to the owner's `RDMAService`. Reaches any memory, also that of a GPU."""

    name = "message"
    is_immediate = False

    def __init__(self, node: Node) -> None:
        self._node = node
        # The other half is for the rest of the message.
        self._piece = max(1, min(PIECE, node.settings.max_message_bytes // 2))

    def refusal(self, handle: BufferHandle, local: str | None) -> str:
        return ""

    def read(self, job: TransferJob) -> None:
        def ask(start: int, size: int) -> Future[Any]:
            return self._call(job, "read", job.offset + start, size)

        def take(start: int, size: int, answer: Any) -> None:
            if answer is None:
                raise dropped(job.handle)
            put_bytes(job.local.part(start, size), answer)

        self._move(job, ask, take)

    def write(self, job: TransferJob) -> None:
        def ask(start: int, size: int) -> Future[Any]:
            data = parcel_of(job.local.part(start, size))
            return self._call(job, "write", job.offset + start, data)

        def take(start: int, size: int, answer: Any) -> None:
            if answer != "ok":
                only_read = TransferError(f"the memory of {job.handle.actor} is read-only")
                raise dropped(job.handle) if answer == "dropped" else only_read

        self._move(job, ask, take)

    def _move(self, job: TransferJob, ask: Ask, take: Take) -> None:
        """Request a few pieces ahead, and take the answers in order."""
        pieces = ((start, min(self._piece, job.local.size - start)) for start in range(0, job.local.size, self._piece))
        asked: deque[tuple[int, int, Future[Any]]] = deque()
        done = 0
        for start, size in pieces:
            job.deadline.check(partial(_tell, job, done))  # a cancelled write must not start
            asked.append((start, size, ask(start, size)))
            if len(asked) == IN_FLIGHT:
                done += self._take_first(job, asked, take, done)
        while asked:
            done += self._take_first(job, asked, take, done)

    def _take_first(self, job: TransferJob, asked: deque[tuple[int, int, Future[Any]]], take: Take, done: int) -> int:
        start, size, future = asked.popleft()
        take(start, size, self._await(job, future, done))
        job.moved(size)
        return size

    def _await(self, job: TransferJob, future: Future[Any], done: int) -> Any:
        handle = job.handle
        try:
            while True:
                job.deadline.check(partial(_tell, job, done))
                if future.done():
                    return future.get()
                with contextlib.suppress(TimeoutError):
                    future.wait_here(min(CHECK_SECONDS, job.deadline.left))
        except SupervisionError as error:
            raise OwnerGone(f"{handle.actor} ({handle.owner.node}) no longer answers: {error}") from error

    def _call(self, job: TransferJob, endpoint: str, offset: int, what: Any) -> Future[Any]:
        return self._node.calls.ask(job.handle.owner, RDMA, endpoint, job.handle.lease.number, offset, what)

    def offer(self, local: LocalMemory, lease: Lease) -> bytes | None:
        return None

    def withdraw(self, handle: BufferHandle) -> None:
        return None

    def close(self) -> None:
        return None


def _tell(job: TransferJob, done: int) -> str:
    what = f"{job.local.size:,} bytes by messages from or to {job.handle.actor}"
    return f"moving {what}, whose process must answer ({done:,} done),"
