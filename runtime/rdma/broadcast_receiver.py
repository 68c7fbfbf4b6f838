"""The receiver of broadcasts in every process: fetches the bytes as ordered, and serves its copy to other receivers.

A receiver that fetches from another copy calls its `wait`, which replies as soon as more bytes are there. So transfers
overlap along the chain. Each wait is a call, so it is answered even if a process ends. If a copy fails, its receivers
continue from the source.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.actor.ports import Port
from meshbook.runtime.errors import BufferDropped, OwnerGone, TransferError, TransferTimeout
from meshbook.runtime.memory.local_memory import LocalMemory
from meshbook.runtime.rdma.backends import BufferHandle, Deadline, TransferJob
from meshbook.runtime.rdma.copies import RECEIVER, Copies, Copy, CopyHolders, Source
from meshbook.runtime.rdma.leases import LeaseTable
from meshbook.runtime.rdma.transfers import Transfers
from meshbook.runtime.wire.messages import Address

# Bytes between two progress replies; in a broadcast between hosts, each link carries this much at a time.
PIECE = 8 << 20
# A receiver's part of a broadcast: the random number of the broadcast, and the receiver's index in it.
Part = tuple[int, int]


class BroadcastOrder(msgspec.Struct, frozen=True, array_like=True):
    """An order to fetch the bytes of this buffer."""

    part: Part
    source: BufferHandle
    seconds: float
    parent: tuple[Address, Part] | None  # the copy to fetch from; None: the source itself
    name: str = ""  # of the copy
    fresh: bool = False  # into new memory
    into: BufferHandle | None = None  # into this buffer of the receiver, instead of a copy


class DataPlaneProtocol(Protocol):
    """The parts of the process's data plane that the receiver needs."""

    leases: LeaseTable
    transfers: Transfers
    copies: Copies

    @property
    def node(self) -> Any: ...
    def forget(self, source: Source) -> None: ...


class BroadcastProgress:
    """The progress of one broadcast in this process, and the calls that wait for more of it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all of these
        self._reached = 0
        self._handle: BufferHandle | None = None  # of the memory that is filled
        self._refusal: str = ""
        self._waiting: list[tuple[Port[Any], int]] = []

    def wait(self, port: Port[tuple[int, BufferHandle]], have: int) -> None:
        """Reply once more than `have` bytes are here."""
        with self._lock:
            self._waiting.append((port, have))
        self._answer()

    def reach(self, handle: BufferHandle, count: int) -> None:
        """Record that `count` bytes are here, and reply to waiting calls."""
        with self._lock:
            self._handle, self._reached = handle, count
        self._answer()

    def refuse(self, why: str) -> None:
        """Fail all waiting calls: no more bytes come, or not soon. The callers fetch from the source instead."""
        with self._lock:
            self._refusal = why
        self._answer()

    def _answer(self) -> None:
        with self._lock:
            handle, reached, refusal = self._handle, self._reached, self._refusal
            ready = [each for each in self._waiting if refusal or each[1] < reached]
            self._waiting = [each for each in self._waiting if each not in ready]
        for port, have in ready:
            if have < reached:
                port.send((reached, handle))
            else:
                port.exception(TransferError(refusal))


class Receiver(Actor):
    """Carries out broadcast orders. Hosted inline; blocking work runs on threads."""

    def __init__(self, data_plane: DataPlaneProtocol, followers: CopyHolders) -> None:
        self._data_plane = data_plane
        self._followers = followers
        self._lock = threading.Lock()  # guards the next
        self._progress_of: dict[Part, BroadcastProgress] = {}

    @endpoint(explicit_response_port=True)
    def receive(self, port: Port[BufferHandle], order: BroadcastOrder) -> None:
        """Fetch the bytes, and reply with the handle of the copy once it is complete."""
        progress = self._progress(order.part, order.seconds)
        reception, here = BroadcastReception(self._data_plane, order, progress), contextvars.copy_context()
        work = (_answer, port, reception.carry_out)
        threading.Thread(target=here.run, args=work, name="meshbook broadcast", daemon=True).start()

    @endpoint(explicit_response_port=True)
    def wait(self, port: Port[tuple[int, BufferHandle]], part: Part, have: int, seconds: float) -> None:
        """Reply with the number of bytes that are here and their handle, as soon as there are more than `have`."""
        self._progress(part, seconds).wait(port, have)

    @endpoint
    def forget(self, source: Source) -> None:
        """Drop the copies of a buffer whose lease has ended."""
        self._data_plane.forget(source)

    @endpoint
    def follow(self, source: BufferHandle, receivers: list[Address]) -> None:
        """Register these processes to be notified when the lease of a buffer of this process ends."""
        self._followers.add(source, receivers)

    def _progress(self, part: Part, seconds: float) -> BroadcastProgress:
        """Return the progress of this part. The first `receive` or `wait` call makes it; a timer removes it."""
        with self._lock:
            progress = self._progress_of.get(part)
            if progress is None:
                progress = self._progress_of[part] = BroadcastProgress()
                here = contextvars.copy_context()  # timers run without a context, and replies through ports need one
                self._data_plane.node.loop.call_later(seconds + 1, lambda: here.run(self._over, part))
            return progress

    def _over(self, part: Part) -> None:
        with self._lock:
            progress = self._progress_of.pop(part)
        progress.refuse("the broadcast timed out")


def _answer(port: Port[BufferHandle], work: Callable[[], BufferHandle]) -> None:
    try:
        handle = work()
    except Exception as error:  # the receiver passes any error to the caller
        port.exception(error)
    else:
        port.send(handle)


class BroadcastReception:
    """The execution of one order."""

    def __init__(self, data_plane: DataPlaneProtocol, order: BroadcastOrder, progress: BroadcastProgress) -> None:
        self._data_plane = data_plane
        self._order = order
        self._progress = progress
        self._deadline = Deadline(order.seconds)

    def carry_out(self) -> BufferHandle:
        """Fetch the bytes, and return the handle of the memory that holds them."""
        source, node = self._order.source, self._data_plane.node
        try:
            if self._order.into is not None:
                return self._fill_buffer(self._order.into)
            if (source.owner, source.incarnation) == (node.address, node.incarnation):
                return source  # the owner already has the bytes
            return self._fill_copy(self._data_plane.copies.take(source, self._order.name, fresh=self._order.fresh))
        except BaseException as error:
            self._progress.refuse(str(error))
            raise

    def _fill_buffer(self, into: BufferHandle) -> BufferHandle:
        lent, user = self._data_plane.leases.find(into.lease.number), object()
        try:
            if lent is not None:
                lent.users.add(user)  # `drop` waits for this transfer
            if lent is None or lent.is_over:
                raise BufferDropped(f"the buffer of {into.actor} was dropped, or its actor has ended")
            return self._fill(lent.local.part(0, self._order.source.size), into)
        finally:
            if lent is not None:
                lent.users.discard(user)

    def _fill_copy(self, copy: Copy) -> BufferHandle:
        if not copy.filling.acquire(blocking=False):
            # A broadcast that waited here, while the other one waits for a third, could deadlock in a ring.
            self._progress.refuse("another broadcast is filling it")
            if not copy.filling.acquire(timeout=self._deadline.left):
                raise TransferTimeout(f"another broadcast was still filling the copy after {self._order.seconds:g} s")
        was_whole = copy.is_whole
        try:
            copy.is_whole = False
            self._fill(copy.local, copy.handle)
            copy.is_whole = copy.source == self._order.source  # otherwise the next broadcast has taken it already
        except OwnerGone:
            if copy.source == self._order.source and not was_whole:  # it can never be completed
                self._data_plane.copies.let_go([copy.handle.lease.number])
            raise
        finally:
            copy.filling.release()
        return copy.handle

    def _fill(self, local: LocalMemory, handle: BufferHandle) -> BufferHandle:
        have = self._follow(local, handle) if self._order.parent is not None else 0
        while have < local.size:
            have = self._read(self._order.source, local, have, min(have + PIECE, local.size))
            self._progress.reach(handle, have)
        return handle

    def _follow(self, local: LocalMemory, handle: BufferHandle) -> int:
        """Fetch from the parent's copy as far as possible; return how many bytes are here then."""
        have = 0
        try:
            while have < local.size:
                reached, there = self._ask(have)
                have = self._read(there, local, have, reached)
                self._progress.reach(handle, have)
        except Exception:  # whatever the error: the rest comes from the source
            self._deadline.check(lambda: f"fetching {local.size:,} bytes")
        return have

    def _ask(self, have: int) -> tuple[int, BufferHandle]:
        assert self._order.parent is not None
        address, part = self._order.parent
        within = self._deadline.left / 2  # the rest of the time is for the source, if this copy does not reply
        asked = self._data_plane.node.calls.ask(address, RECEIVER, "wait", part, have, self._deadline.left)
        answer: tuple[int, BufferHandle] = asked.get(within)
        return answer

    def _read(self, there: BufferHandle, local: LocalMemory, start: int, end: int) -> int:
        job = TransferJob(there, start, local.part(start, end - start), self._deadline)
        self._data_plane.transfers.move(job, is_write=False)
        return end
