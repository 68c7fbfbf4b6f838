"""The data plane of one process: its leases, its transfer backends, and its transfers."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import msgspec

from meshbook.runtime import devices
from meshbook.runtime.actor.context import Instance, context
from meshbook.runtime.actor.future import Future
from meshbook.runtime.memory import pages
from meshbook.runtime.memory.local_memory import CPU, LocalMemory, TensorForm
from meshbook.runtime.memory.process_identity import ProcessMark, own_mark
from meshbook.runtime.node.node import Node
from meshbook.runtime.rdma.backends import BufferHandle, TransferBackend, TransferJob
from meshbook.runtime.rdma.backends.cuda_ipc import CudaIpcBackend
from meshbook.runtime.rdma.backends.host_agent import HostAgentBackend
from meshbook.runtime.rdma.backends.message import MessageBackend
from meshbook.runtime.rdma.backends.nixl import NixlBackend
from meshbook.runtime.rdma.backends.process_memory import ProcessMemoryBackend
from meshbook.runtime.rdma.backends.same_process import SameProcessBackend
from meshbook.runtime.rdma.broadcast_receiver import Receiver
from meshbook.runtime.rdma.copies import RECEIVER, Copies, CopyHolders, Source, notify_dropped, register_holders
from meshbook.runtime.rdma.hardware import Fallback
from meshbook.runtime.rdma.leases import LeaseTable, LentMemory
from meshbook.runtime.rdma.memory_server import MEMORY, MemoryServer, MemoryServerActor
from meshbook.runtime.rdma.progress import FOLDER, ActiveTransfers, leases_in_use
from meshbook.runtime.rdma.retention import Retention
from meshbook.runtime.rdma.select_backend import BackendSelector, explain
from meshbook.runtime.rdma.service import RDMA, RDMAService
from meshbook.runtime.rdma.thread_pool import Threads
from meshbook.runtime.rdma.transfers import Transfers
from meshbook.runtime.telemetry.spans import CELLS
from meshbook.runtime.telemetry.traffic import Traffic
from meshbook.runtime.wire.messages import Address

# Seconds that other processes get to finish transfers from this process's memory when it leaves its run.
PATIENCE = 1.0


class DataPlane:
    """The data plane of a node. Made once by the code that starts the node; idle until the first lease or transfer."""

    def __init__(self, node: Node, folder: Path, agent: Address | None, *, is_worker: bool = False) -> None:
        """`is_worker`: the process is a worker only, and may load libraries that a kernel or an agent must not load."""
        self._node = node
        self._folder = folder / FOLDER
        self._agent = agent
        self.pid = os.getpid()
        self.leases = LeaseTable(str(self._folder))
        self.in_progress = ActiveTransfers(node.address.node)
        allowed = [name.strip() for name in node.settings.rdma_backends.split(",") if name.strip()]
        self._forgetters: list[Callable[[str, int], object]] = []  # of backends that keep state about buffers
        self.backends: list[TransferBackend] = self._make_backends(allowed, is_worker=is_worker)
        self._fallback = Fallback(lambda: self._process.system)
        self.selector = BackendSelector(self.backends, allowed, self._fallback.forbid, node.run)

        def later(seconds: float, callback: Callable[[], object]) -> None:
            node.loop.call_later(seconds, callback)  # looks up the timer when called: tests replace it

        self._retention = Retention(lambda: leases_in_use(self._folder), self._release, later)
        self.traffic = Traffic(node.address.node)
        # One thread of its own: this work takes seconds. It must not delay transfers, nor use more than one core.
        self._paging = Threads(1, "meshbook large pages")
        self.transfers = Transfers(self.selector, later, node.recorder, self._note)
        node.actors.when_ended.append(self._end_leases_of)
        self.copies = Copies(self._lend_copy, self.end)
        self._followers = CopyHolders(self.leases, lambda source, receivers: notify_dropped(node, source, receivers))
        node.actors.host_inline(RDMA, RDMAService(self))
        node.actors.host_inline(RECEIVER, Receiver(self, self._followers))
        self._server: MemoryServer | None = None  # of an agent

    def _make_backends(self, allowed: list[str], *, is_worker: bool) -> list[TransferBackend]:
        """Return the backends, fastest first."""
        memory = ProcessMemoryBackend(self.in_progress)
        cuda_ipc = CudaIpcBackend(memory, lambda handle: register_holders(self._node, handle, [self._node.address]))
        self._forgetters.append(cuda_ipc.forget)
        self._node.peers.when_down.append(lambda report: cuda_ipc.forget(report.node))
        return [
            SameProcessBackend(self._node.address, self._node.incarnation, self.leases),
            memory,
            cuda_ipc,
            NixlBackend(self._node, self.leases, is_worker=is_worker, is_forced=NixlBackend.name in allowed),
            HostAgentBackend(self._node),
            MessageBackend(self._node),
        ]

    def forget(self, source: Source) -> None:
        """Drop copies of this buffer of another process, and close its handles, because its lease has ended."""
        self.copies.forget(source)
        node, _, number = source
        for forget in self._forgetters:
            forget(node, number)

    def _note(self, job: TransferJob, backend: str, seconds: float, is_write: bool) -> None:
        """Record a finished transfer."""
        self._fallback.note(backend, job.handle)
        if job.local.device != CPU:
            self._fallback.note_gpu(backend, job.handle, is_write=is_write)
        self.traffic.note(job.handle.owner.node, job.local.size, backend, seconds, is_write=is_write)

    def serve_host(self, ip_towards: Callable[[Address], str], is_ours: Callable[[ProcessMark], bool]) -> None:
        """Start the memory server of a host agent, which serves this host's memory to other hosts.

        `ip_towards` returns the address of this host under which a node reaches it.
        """
        self._server = MemoryServer(ProcessMemoryBackend(self.in_progress), str(self._folder), is_ours)
        self._node.actors.host_inline(MEMORY, MemoryServerActor(self._server, ip_towards))

    # -- the owner's side ------------------------------------------------------------------

    @property
    def node(self) -> Node:
        return self._node

    def lend(self, local: LocalMemory, lender: Instance, form: TensorForm | None = None) -> BufferHandle:
        """Lend this memory to other processes until `end`, or until this actor ends."""
        if local.device != CPU:
            devices.wait_for_stream(local.device)  # finish the work that fills it before other processes read it
        lent = self.leases.lend(local, lender)
        number = lent.lease.number
        # The owner's name for errors. The actor that runs cells is not an actor to its user.
        owner = f"cells{lender.rank}" if lender.class_name == CELLS else str(lender)
        offers = {
            backend.name: offer for backend in self.backends if (offer := backend.offer(local, lent.lease)) is not None
        }
        lent.handle = BufferHandle(
            *(self._node.address, self._node.incarnation, owner, self._process, self._agent, lent.lease),
            *(local.address, local.size, devices.name_everywhere(local.device), offers, local.is_writable, form),
            self._node.run,
        )
        if local.device == CPU and local.size >= pages.LEAST:
            self._paging.do(lambda: pages.make_large(local.address, local.size, lambda: lent.word.value == number))
        return lent.handle

    def _lend_copy(self, local: LocalMemory, source: BufferHandle) -> BufferHandle:
        lent = self.lend(local, context().actor_instance, source.form)
        return msgspec.structs.replace(lent, actor=f"a copy of {source.actor}")

    @cached_property
    def _process(self) -> ProcessMark:
        return own_mark()

    def end(self, number: int) -> Future[None]:
        """End a lease: new transfers are refused. Ending an unknown or ended lease is no error.

        The future is done when no transfer uses the memory any more and this process has released it.
        """
        if (lent := self.leases.end(number)) is not None:
            return self._keep([lent])[0]
        return self._retention.released(number) or Future.completed(None)

    def _end_leases_of(self, lender: Instance) -> None:
        """End all leases of an actor that has ended."""
        ended = [lent for number in self.leases.of(lender) if (lent := self.leases.end(number)) is not None]
        if ended:
            self._keep(ended)

    def _keep(self, ended: list[LentMemory]) -> list[Future[None]]:
        """Keep the memory of these ended leases while transfers use it, and drop its copies."""
        self._followers.end(ended)
        self.copies.let_go([lent.lease.number for lent in ended])
        return self._retention.keep(ended)

    def _release(self, lent: LentMemory) -> None:
        if lent.handle is not None:
            for backend in self.backends:
                backend.withdraw(lent.handle)

    # -- leases of other processes -------------------------------------------------------------

    def find_here(self, handle: BufferHandle) -> LocalMemory | None:
        """Return the memory of this buffer in this process: the owner's own, or that of a copy."""
        if (handle.owner, handle.incarnation) == (self._node.address, self._node.incarnation):
            lent = self.leases.find(handle.lease.number)
            return None if lent is None else lent.local
        copy = self.copies.find(handle)
        return None if copy is None else copy.local

    def drop(self, handle: BufferHandle) -> Future[None]:
        """Let the owner end the lease. An owner that has ended lends nothing."""
        if (handle.owner, handle.incarnation) == (self._node.address, self._node.incarnation):
            return self.end(handle.lease.number)
        dropped: Future[None] = Future.pending()
        asked = self._node.calls.ask(handle.owner, RDMA, "drop", handle.lease.number)
        # Also done after an error: an owner that has ended has nothing to drop.
        asked.when_done(lambda: dropped.resolve(lambda: None))
        return dropped

    def explain(self, handle: BufferHandle) -> str:
        """Describe the backend that moves data between here and this buffer, and why the others are not used."""
        return explain(handle, self._where(handle), self.selector.explain(handle, None))

    def _where(self, handle: BufferHandle) -> str:
        if (handle.owner, handle.incarnation) == (self._node.address, self._node.incarnation):
            return "this process"
        if handle.run != self._node.run:
            return f"a process of another run ({handle.run}), which this run cannot reach"
        if handle.agent == self._agent:
            return (
                "a process of this host that has ended" if handle.process.has_ended else "another process of this host"
            )
        is_here = handle.process.system == self._process.system
        return "a process of another host of this run, on the same machine" if is_here else "a process of another host"

    def close(self, patience: float = PATIENCE) -> None:
        """End all leases and stop all transfers. Other processes get `patience` seconds to finish theirs from here."""
        if self._server is not None:
            self._server.close()
        self._paging.close()
        self.transfers.close()
        self._release_all(patience)
        for backend in self.backends:
            backend.close()
        self.in_progress.close()

    def _release_all(self, patience: float) -> None:
        ended = [lent for number in self.leases.all() if (lent := self.leases.end(number)) is not None]
        self._retention.keep(ended)
        for lent in self._retention.close(patience):
            # This process may keep running, as a notebook does after it detaches. So this memory is never freed.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(lent.local))


def own_data_plane() -> DataPlane:
    """Return the data plane of this process. Raises RuntimeError if it has none."""
    data_plane = context().actor_instance.node.data_plane
    if data_plane is None:
        raise RuntimeError("this process cannot use RDMA buffers: it is neither a worker nor a controller of a run")
    assert isinstance(data_plane, DataPlane)
    if data_plane.pid != os.getpid():
        raise RuntimeError("this process cannot use RDMA buffers: it was forked from a process of the run")
    return data_plane
