"""One transfer by NIXL, from the first check of its lease to the last, as a generator for the scheduler.

The waiting thread may receive the outcome before the transfer ends: NIXL continues, and memory must stay until then.

`NixlOffer` is NIXL's part of a handle; `NixlPeer` is the recorded state of another process's agent.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import msgspec

from meshbook.runtime.errors import TransferError
from meshbook.runtime.rdma.backends import BufferHandle, Deadline, TransferJob, Unsuitable
from meshbook.runtime.rdma.backends.process_memory import dropped, gone
from meshbook.runtime.rdma.nixl.nixl_agent import MemoryRange, NixlAgent, NixlError
from meshbook.runtime.rdma.nixl.registration import STAGED, RegisteredMemory, RegistrationTable
from meshbook.runtime.rdma.nixl.scheduler import Steps, settle

PIECE = 64 << 20  # bytes of one request, and between two checks of the lease
# Seconds for the first reply of a peer: NIXL waits forever for a peer that it cannot reach.
FIRST_REPLY_SECONDS = 10.0
ATTEMPTS = 3
# Seconds until the end of an owner is reported, after the connection to it has broken.
END_REPORT_SECONDS = 2.0
CHECK_SECONDS = 0.05  # seconds between two checks of whether an owner has ended


@dataclass(frozen=True, slots=True)
class TransferContext:
    """The parts of this process that transfers use. `has_ended` returns whether a buffer's owner has ended."""

    agent: NixlAgent
    registered: RegistrationTable
    peers: dict[str, NixlPeer]
    has_ended: Callable[[BufferHandle], bool]

    def move(self, job: TransferJob, offer: NixlOffer, outcome: Future[None], *, is_write: bool) -> Steps:
        """Try several times: other transfers or an outdated offer may have broken the connection."""
        peer, why = self.peers.setdefault(offer.agent, NixlPeer()), ""
        transfer = _NixlTransfer(self, job, offer, peer, outcome, is_write)
        for _ in range(ATTEMPTS):
            if self.has_ended(job.handle):
                raise gone(job.handle)
            try:
                return (yield from transfer.run())
            except NixlError as error:
                peer.is_broken, why = True, str(error)
        yield from self._wait_for_news(job)
        raise Unsuitable(f"NIXL {'no longer reaches' if peer.has_answered else 'does not reach'} the owner: {why}")

    def _wait_for_news(self, job: TransferJob) -> Steps:
        patience = Deadline(min(END_REPORT_SECONDS, job.deadline.left))
        while patience.left:
            if self.has_ended(job.handle):
                raise gone(job.handle)
            yield False


@dataclass(slots=True)
class _NixlTransfer:
    """One transfer; each `run` is an attempt, which continues where the last one failed."""

    context: TransferContext
    job: TransferJob
    offer: NixlOffer
    peer: NixlPeer
    outcome: Future[None]  # settled early if the transfer cannot succeed any more
    is_write: bool
    done: int = 0  # bytes

    def run(self) -> Steps:
        yield from self._meet()
        local = self.job.local
        with self.context.registered.place() as place, self.context.registered.reachable(local) as is_direct:
            yield from self._check_lease(place)
            most = PIECE if is_direct else STAGED
            while self.done < local.size:
                size = min(most, local.size - self.done)
                here = MemoryRange.of(local.part(self.done, size)) if is_direct else place.for_data(size)
                yield from self._move_piece(here, place, is_staged=not is_direct)
                self.done += size
                self.job.moved(size)

    def _meet(self) -> Steps:
        """Load the owner's offer.

        NIXL finds keys by address, and may find a withdrawn key of memory that was there before. A NIC refuses that
        key, which breaks the connection; over the next connection only current offers are known.
        """
        peer, agent = self.peer, self.context.agent
        if peer.knows(self.offer):
            return
        while peer.is_to_be_forgotten:
            if not peer.under_way:
                agent.forget(self.offer.agent)
                peer.forget()
                break
            self.job.deadline.check(lambda: format_transfer(self.job))
            yield False
        agent.meet(self.offer.words)
        agent.meet(self.offer.memory)
        peer.known.add(self.offer.registration)

    def _check_lease(self, place: RegisteredMemory) -> Steps:
        lease = self.job.handle.lease
        yield from self._request(place.for_word, MemoryRange(lease.word, place.for_word.size), is_write=False)
        if place.word != lease.number:
            raise dropped(self.job.handle)

    def _move_piece(self, here: MemoryRange, place: RegisteredMemory, *, is_staged: bool) -> Steps:
        ours = self.job.local.address + self.done
        if is_staged and self.is_write:
            ctypes.memmove(here.address, ours, here.size)
        there = MemoryRange(self.job.address + self.done, here.size, self.offer.gpu)
        yield from self._request(here, there, is_write=self.is_write)
        yield from self._check_lease(place)
        if is_staged and not self.is_write:
            ctypes.memmove(ours, here.address, here.size)

    def _request(self, here: MemoryRange, there: MemoryRange, *, is_write: bool) -> Steps:
        """Run one request to its very end: until then bytes may arrive, whether or not a thread waits for them."""
        self.job.deadline.check(lambda: format_transfer(self.job))
        if self.outcome.done():
            raise TransferError("its caller no longer waits for it")
        agent, first = self.context.agent, Deadline(min(FIRST_REPLY_SECONDS, self.job.deadline.left / 2))
        request = agent.begin(self.offer.agent, here, there, is_write=is_write)
        self.peer.under_way += 1
        try:
            yield True
            next_check = Deadline(CHECK_SECONDS)
            while not agent.is_done(request):
                if not next_check.left:
                    self._fail_early(first)
                    next_check = Deadline(CHECK_SECONDS)
                yield False
            self.peer.has_answered = True
        finally:
            self.peer.under_way -= 1
            agent.release(request)

    def _fail_early(self, first: Deadline) -> None:
        """Settle the outcome early if the deadline has passed, the owner has ended, or the peer does not reply."""
        try:
            self.job.deadline.check(lambda: format_transfer(self.job))
        except Exception as error:  # the deadline has passed, or the reason of a cancellation
            settle(self.outcome, error)
        if self.context.has_ended(self.job.handle):
            settle(self.outcome, gone(self.job.handle))
        elif not self.peer.has_answered and not first.left:
            settle(self.outcome, Unsuitable(f"NIXL got no answer from the owner within {first.seconds:.1f} s"))


def format_transfer(job: TransferJob) -> str:
    """Return a description of the transfer, for errors."""
    return f"moving {job.local.size:,} bytes from or to {job.handle.actor} by NIXL"


# Offers of a peer that are kept, of half a kilobyte each; beyond that the peer is forgotten and met again.
MOST_KNOWN = 16_384


class NixlOffer(msgspec.Struct, frozen=True, array_like=True):
    """NIXL's part of a handle. Only `why` is set if the owner could not register the memory."""

    agent: str = ""
    registration: int = 0  # number of the registration: memory at the same address may be registered again later
    gpu: int | None = None  # its number there
    memory: bytes = b""  # NIXL's description of it
    words: bytes = b""  # the same for the block that holds the lease's word
    why: str = ""

    def pack(self) -> bytes:
        return msgspec.msgpack.encode(self)


unpack = msgspec.msgpack.Decoder(NixlOffer).decode


@dataclass(slots=True)
class NixlPeer:
    """The recorded state of another process's agent."""

    known: set[int] = field(default_factory=set)  # registrations that NIXL has loaded
    under_way: int = 0  # requests
    is_broken: bool = False  # it has to be met again
    has_answered: bool = False

    def knows(self, offer: NixlOffer) -> bool:
        return offer.registration in self.known and not self.is_broken

    @property
    def is_to_be_forgotten(self) -> bool:
        """Whether it has to be met again. Rare: each new connection leaves two descriptors open on either side."""
        return self.is_broken or len(self.known) >= MOST_KNOWN

    def forget(self) -> None:
        self.known.clear()
        self.is_broken = False
