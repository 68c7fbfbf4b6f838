"""Memory of another host, or of a GPU there, by NIXL (verbs), where there is a NIC.

NIXL reports success even after the owner has withdrawn its memory. So the lease decides here, too: its word is read
before and after each piece, by NIXL itself. One thread makes all calls; threads that move data wait for it.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future

from meshbook.runtime.errors import TransferError, TransferTimeout
from meshbook.runtime.memory.local_memory import CPU, LocalMemory
from meshbook.runtime.node.node import Node
from meshbook.runtime.rdma.backends import BufferHandle, Lease, TransferJob, Unsuitable
from meshbook.runtime.rdma.hardware import why_no_ibverbs
from meshbook.runtime.rdma.leases import LeaseTable
from meshbook.runtime.rdma.nixl.nixl_agent import MemoryRange, NixlAgent, NixlError, is_guarded, is_installed
from meshbook.runtime.rdma.nixl.registration import RegistrationTable
from meshbook.runtime.rdma.nixl.scheduler import Steps, TransferScheduler
from meshbook.runtime.rdma.nixl.transfer import NixlOffer, TransferContext, format_transfer, unpack

REGISTER_SECONDS = 30.0  # seconds that registration may take; large memory on hosts with slow kernels takes seconds
# Seconds to keep dropped memory that no NIC guards: transfers under way need no key for it.
KEPT = 5.0


class NixlBackend:
    """The NIXL backend of one process. `is_worker`: it may start NIXL, which kernels and agents never do.

    `is_forced`: it is used even without a NIC.
    """

    name = "nixl"
    is_immediate = False

    def __init__(self, node: Node, leases: LeaseTable, *, is_worker: bool, is_forced: bool) -> None:
        self._node = node
        self._leases = leases
        self._is_worker = is_worker
        self._is_forced = is_forced
        self._scheduler = TransferScheduler("meshbook nixl")
        self._lock = threading.RLock()  # guards the next two; reentrant: a garbage collection may drop a buffer
        self._why_not: str | None = None  # None: not checked yet
        self._lent: dict[int, LocalMemory] = {}  # by lease number
        self._context: TransferContext | None = None  # for the NIXL thread only, with all its parts

    # -- availability ----------------------------------------------------------------------

    def refusal(self, handle: BufferHandle, local: str | None) -> str:
        if why := self.why_not():
            return why
        if (handle.owner, handle.incarnation) == (self._node.address, self._node.incarnation):
            return "the owner is this process"
        if local is not None and not _is_reached(local):
            return f"NIXL does not reach memory of {local}"
        if (packed := handle.offers.get(self.name)) is None:
            return "the owner does not offer it: it is not a worker, or has no RDMA NIC or no NIXL (meshbook[rdma])"
        return unpack(packed).why

    def why_not(self) -> str:
        """Return why this process does not use NIXL at all; empty if it does."""
        with self._lock:
            if self._why_not is None:
                self._why_not = self._find_obstacle()
            return self._why_not

    def _find_obstacle(self) -> str:
        if not self._is_worker:
            return "only workers use NIXL"
        if not self._is_forced:
            return why_no_ibverbs()
        return "" if is_installed() else "NIXL is not installed here: pip install 'meshbook[rdma]'"

    # -- the owner's side ------------------------------------------------------------------

    def offer(self, local: LocalMemory, lease: Lease) -> bytes | None:
        if self.why_not() or not _is_reached(local.device):
            return None
        offer: Future[NixlOffer] = Future()
        try:
            self._scheduler.start(self._offering(MemoryRange.of(local), lease, offer), offer)
            packed = offer.result(REGISTER_SECONDS).pack()
        except (NixlError, TransferError, TimeoutError) as error:
            why = str(error) or f"it was not done after {REGISTER_SECONDS:g} s"
            return NixlOffer(why=f"the owner cannot use NIXL: {why}").pack()
        with self._lock:
            self._lent[lease.number] = local
        return packed

    def _offering(self, memory: MemoryRange, lease: Lease, offer: Future[NixlOffer]) -> Steps:
        context = self._start()
        agent, block = context.agent, MemoryRange(*self._leases.block_of(lease))
        context.registered.hold_for_good(block)
        number = context.registered.hold(memory)
        offer.set_result(NixlOffer(agent.name, number, memory.gpu, agent.describe(memory), agent.describe(block)))
        yield True

    def withdraw(self, handle: BufferHandle) -> None:
        with self._lock:
            local = self._lent.pop(handle.lease.number, None)
        if local is not None:
            self._scheduler.start(self._withdrawing(local), Future())
            if not is_guarded():
                self._node.loop.call_later(KEPT, lambda: local)

    def _withdrawing(self, local: LocalMemory) -> Steps:
        self._start().registered.let_go(MemoryRange.of(local))
        yield True

    # -- moving ----------------------------------------------------------------------------

    def read(self, job: TransferJob) -> None:
        self._move(job, is_write=False)

    def write(self, job: TransferJob) -> None:
        self._move(job, is_write=True)

    def _move(self, job: TransferJob, *, is_write: bool) -> None:
        job.wait_ready()
        outcome: Future[None] = Future()
        self._scheduler.start(self._moving(job, outcome, is_write=is_write), outcome)
        try:
            outcome.result(job.deadline.left)
        except TimeoutError as error:
            job.deadline.check(lambda: format_transfer(job))
            raise TransferTimeout(f"{format_transfer(job)} was not done in time") from error

    def _moving(self, job: TransferJob, outcome: Future[None], *, is_write: bool) -> Steps:
        offer = unpack(job.handle.offers[self.name])
        try:
            context = self._start()
        except NixlError as error:
            raise Unsuitable(str(error)) from error
        yield from context.move(job, offer, outcome, is_write=is_write)

    def _start(self) -> TransferContext:
        """Return the context, made on first use. Raises NixlError if NIXL cannot start; it is not tried again."""
        if self._context is None:
            if why := self.why_not():
                raise NixlError(why)
            try:
                agent = NixlAgent(f"{self._node.run}/{self._node.address.node}/{self._node.incarnation}")
            except NixlError as error:
                why = f"NIXL failed to start here ({error}; set UCX_LOG_LEVEL=info for details)"
                with self._lock:
                    self._why_not = why
                raise NixlError(why) from error
            self._context = TransferContext(agent, RegistrationTable(agent), {}, self._has_ended)
        return self._context

    def _has_ended(self, handle: BufferHandle) -> bool:
        node = handle.owner.node
        return (
            self._node.peers.report_of(node) is not None
            or self._node.routes.incarnations().get(node, handle.incarnation) > handle.incarnation
        )

    def close(self) -> None:
        self._scheduler.close()


def _is_reached(device: str) -> bool:
    return device == CPU or device.startswith("cuda")
