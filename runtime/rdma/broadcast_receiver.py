"""What every process does in a broadcast: it fetches the bytes from where it is told to, and tells who fetches from it.

Who fetches from another copy asks it how far that is, and gets an answer as soon as it is further than he is. So bytes
go on while others still come, and each wait is a call that somebody answers, whoever dies. Where a copy fails, who
fetches from it goes on from the source.
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
from meshbook.runtime.memory.local import LocalMemory
from meshbook.runtime.node.call_table import PerRank, Target
from meshbook.runtime.rdma.backends import Deadline, TransferJob
from meshbook.runtime.rdma.copies import Copies, Copy, Source
from meshbook.runtime.rdma.copy_holders import NOWHERE, RECEIVER, CopyHolders
from meshbook.runtime.rdma.handle import BufferHandle
from meshbook.runtime.rdma.leases import LeaseTable
from meshbook.runtime.rdma.transfers import Transfers
from meshbook.runtime.wire.messages import Address

PIECE = 8 << 20  # bytes after which others are told; of a broadcast between hosts this much is on each way at a time
Part = tuple[int, int]  # of a broadcast: its number, drawn, and the place of a receiver in it


class BroadcastOrder(msgspec.Struct, frozen=True, array_like=True):
    """Fetch the bytes of this buffer."""

    part: Part
    source: BufferHandle
    seconds: float
    parent: tuple[Address, Part] | None  # whose copy is fetched; None: the source itself
    name: str = ""  # of the copy
    fresh: bool = False  # into new memory
    into: BufferHandle | None = None  # into this buffer of the receiver's, and no copy


class DataPlaneProtocol(Protocol):
    """What is needed of that of the process."""

    leases: LeaseTable
    transfers: Transfers
    copies: Copies

    @property
    def node(self) -> Any: ...
    def forget(self, source: Source) -> None: ...


class BroadcastProgress:
    """How far one broadcast has come here, and who waits for more of it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all of these
        self._reached = 0
        self._handle: BufferHandle | None = None  # of what is filled
        self._refusal: str = ""
        self._waiting: list[tuple[Port[Any], int]] = []

    def wait(self, port: Port[tuple[int, BufferHandle]], have: int) -> None:
        """Answer once there is more than this."""
        with self._lock:
            self._waiting.append((port, have))
        self._answer()

    def reach(self, handle: BufferHandle, count: int) -> None:
        """So many bytes are here."""
        with self._lock:
            self._handle, self._reached = handle, count
        self._answer()

    def refuse(self, why: str) -> None:
        """No more comes, or not soon: who waits is to fetch from elsewhere."""
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
    """Hosted inline; what waits is done on threads."""

    def __init__(self, station: DataPlaneProtocol, followers: CopyHolders) -> None:
        self._data_plane = station
        self._followers = followers
        self._lock = threading.Lock()  # guards the next
        self._arrivals: dict[Part, BroadcastProgress] = {}

    @endpoint(explicit_response_port=True)
    def receive(self, port: Port[BufferHandle], order: BroadcastOrder) -> None:
        """Answered with the handle of the copy once it is here."""
        arrival = self._arrival(order.part, order.seconds)
        self._on_a_thread(
            lambda: _answer(port, lambda: BroadcastReception(self._data_plane, order, arrival).carry_out())
        )

    @endpoint(explicit_response_port=True)
    def wait(self, port: Port[tuple[int, BufferHandle]], part: Part, have: int, seconds: float) -> None:
        """How many bytes of it are here, and where, as soon as there are more than `have`."""
        self._arrival(part, seconds).wait(port, have)

    @endpoint
    def forget(self, source: Source) -> None:
        """The buffer is lent no more."""
        self._data_plane.forget(source)

    @endpoint
    def follow(self, source: BufferHandle, receivers: list[Address]) -> None:
        """These processes are to be told when a buffer of this one is lent no more."""
        self._followers.add(source, receivers)

    def _arrival(self, part: Part, seconds: float) -> BroadcastProgress:
        """Made by whoever comes first, who receives or who asks; kept as long as anybody may ask."""
        with self._lock:
            arrival = self._arrivals.get(part)
            if arrival is None:
                arrival = self._arrivals[part] = BroadcastProgress()
                here = contextvars.copy_context()  # the clock has none, and ports are answered by somebody
                self._data_plane.node.loop.call_later(seconds + 1, lambda: here.run(self._over, part))
            return arrival

    def _over(self, part: Part) -> None:
        with self._lock:
            arrival = self._arrivals.pop(part)
        arrival.refuse("the time of the broadcast is over")

    def _on_a_thread(self, work: Callable[[], None]) -> None:
        here = contextvars.copy_context()
        threading.Thread(target=here.run, args=(work,), name="meshbook broadcast", daemon=True).start()


def _answer(port: Port[BufferHandle], work: Callable[[], BufferHandle]) -> None:
    try:
        handle = work()
    except Exception as error:  # whoever waits for the copy is told of anything
        port.exception(error)
    else:
        port.send(handle)


class BroadcastReception:
    """One order, as it is carried out."""

    def __init__(self, station: DataPlaneProtocol, order: BroadcastOrder, arrival: BroadcastProgress) -> None:
        self._data_plane = station
        self._order = order
        self._arrival = arrival
        self._deadline = Deadline(order.seconds)

    def carry_out(self) -> BufferHandle:
        """The handle of where the bytes are, now that they are there."""
        source, node = self._order.source, self._data_plane.node
        try:
            if self._order.into is not None:
                return self._fill_buffer(self._order.into)
            if (source.owner, source.incarnation) == (node.address, node.incarnation):
                return source  # the owner has it
            return self._fill_copy(self._data_plane.copies.take(source, self._order.name, fresh=self._order.fresh))
        except BaseException as error:
            self._arrival.refuse(str(error))
            raise

    def _fill_buffer(self, into: BufferHandle) -> BufferHandle:
        lent, user = self._data_plane.leases.find(into.lease.number), object()
        try:
            if lent is not None:
                lent.users.add(user)  # who drops it waits for this one
            if lent is None or lent.is_over:
                raise BufferDropped(f"the buffer of {into.actor} was dropped, or its actor has ended")
            return self._fill(lent.local.part(0, self._order.source.size), into)
        finally:
            if lent is not None:
                lent.users.discard(user)

    def _fill_copy(self, copy: Copy) -> BufferHandle:
        if not copy.filling.acquire(blocking=False):
            # Who waited for this while that one waits for another might wait in a ring.
            self._arrival.refuse("another broadcast is filling it")
            if not copy.filling.acquire(timeout=self._deadline.left):
                raise TransferTimeout(f"another broadcast was still filling the copy after {self._order.seconds:g} s")
        was_whole = copy.is_whole
        try:
            copy.is_whole = False
            self._fill(copy.local, copy.handle)
            copy.is_whole = copy.source == self._order.source  # else the next broadcast has it already
        except OwnerGone:
            if copy.source == self._order.source and not was_whole:  # it never will be
                self._data_plane.copies.let_go([copy.handle.lease.number])
            raise
        finally:
            copy.filling.release()
        return copy.handle

    def _fill(self, local: LocalMemory, handle: BufferHandle) -> BufferHandle:
        have = self._follow(local, handle) if self._order.parent is not None else 0
        while have < local.size:
            have = self._read(self._order.source, local, have, min(have + PIECE, local.size))
            self._arrival.reach(handle, have)
        return handle

    def _follow(self, local: LocalMemory, handle: BufferHandle) -> int:
        """Fetch from the copy that was named, as far as that goes; how many bytes are here then."""
        have = 0
        try:
            while have < local.size:
                reached, there = self._ask(have)
                have = self._read(there, local, have, reached)
                self._arrival.reach(handle, have)
        except Exception:  # the source has the rest, whatever keeps the other copy from giving it
            self._deadline.check(lambda: f"fetching {local.size:,} bytes")
        return have

    def _ask(self, have: int) -> tuple[int, BufferHandle]:
        assert self._order.parent is not None
        address, part = self._order.parent
        within = self._deadline.left / 2  # the rest is for the source, where this one does not answer
        reply_handler = PerRank(1)
        question: Any = (part, have, self._deadline.left), {}
        self._data_plane.node.calls.send([Target(address, RECEIVER)], "wait", question, NOWHERE, reply_handler)
        answer: tuple[int, BufferHandle] = reply_handler.futures[0].get(within)
        return answer

    def _read(self, there: BufferHandle, local: LocalMemory, start: int, end: int) -> int:
        job = TransferJob(there, start, local.part(start, end - start), self._deadline)
        self._data_plane.transfers.move(job, is_write=False)
        return end
