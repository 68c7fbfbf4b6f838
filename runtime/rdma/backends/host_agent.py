"""Memory of another host: the owner's host agent reads and writes it there, and the bytes travel over TCP."""

from __future__ import annotations

import msgspec

from meshbook.runtime.errors import TransferError
from meshbook.runtime.memory.local_memory import CPU, LocalMemory, MemoryPool
from meshbook.runtime.node.node import Node
from meshbook.runtime.rdma import memory_protocol as protocol
from meshbook.runtime.rdma import pieces
from meshbook.runtime.rdma.backends import BufferHandle, Lease, TransferJob
from meshbook.runtime.rdma.connection import DataConnection
from meshbook.runtime.rdma.connection_pool import AgentConnections, ConnectionPool
from meshbook.runtime.rdma.memory_server import MOST_SECONDS

TRIES = 3  # attempts of a read whose connection breaks; each continues where the last one ended


class HostAgentBackend:
    """TCP to the memory server of the owner's host agent (`runtime.rdma.memory_server`)."""

    name = "host agent"
    is_immediate = False

    def __init__(self, node: Node) -> None:
        self._pool = ConnectionPool(node)
        self._buffers = pieces.make_buffers()

    def refusal(self, handle: BufferHandle, local: str | None) -> str:
        if handle.agent is None:
            return "the owner has no host agent"
        if handle.is_on_gpu or local not in (None, CPU):
            return "the memory is on a GPU"
        return self._pool.trouble(handle.agent)

    def read(self, job: TransferJob) -> None:
        transfer = self._begin(job, "reading", "from")
        last = ""
        for _ in range(TRIES):
            try:
                return transfer.read_rest()
            except ConnectionError as error:
                last = str(error)
                transfer.connections.check_agent()
        raise TransferError(f"the connection to the host agent of {job.handle.actor} failed {TRIES} times: {last}")

    def write(self, job: TransferJob) -> None:
        """Write without retries: bytes of a first attempt could reach the owner after those of a second."""
        transfer = self._begin(job, "writing", "to")
        try:
            transfer.write()
        except ConnectionError as error:
            transfer.connections.check_agent()
            where = f"to the host agent of {job.handle.actor}"
            raise TransferError(f"the connection {where} failed during a write: {error}") from error

    def _begin(self, job: TransferJob, verb: str, preposition: str) -> _AgentTransfer:
        assert job.handle.agent is not None
        return _AgentTransfer(self._pool.to(job.handle.agent), job, self._buffers, f"{verb} {{}} {preposition}")

    def offer(self, local: LocalMemory, lease: Lease) -> bytes | None:
        return None

    def withdraw(self, handle: BufferHandle) -> None:
        return None

    def close(self) -> None:
        self._pool.close()


class _AgentTransfer:
    """One job and its progress."""

    def __init__(self, connections: AgentConnections, job: TransferJob, buffers: MemoryPool, verb: str) -> None:
        self.connections = connections
        self._job = job
        self._buffers = buffers
        self._verb = verb
        self._done = 0  # bytes

    def read_rest(self) -> None:
        """Read the bytes that have not arrived yet. A retry does not request the others again."""
        job = self._job
        with (
            self.connections.borrowed(job.deadline, self._format_progress) as connection,
            self._buffers.borrowed() as sealed,
        ):
            connection.send_message(self._ask(is_write=False), job.deadline)
            trouble = self._receive_answer(connection)
            if trouble is None:
                rest = job.local.view()[self._done :]
                for start, size in pieces.cut(len(rest)):
                    connection.receive_piece(rest[start : start + size], sealed.view(), job.deadline)
                    self._moved(size)
        if trouble is not None:  # raised outside: the connection is still usable
            raise trouble

    def write(self) -> None:
        job = self._job
        with (
            self.connections.borrowed(job.deadline, self._format_progress) as connection,
            self._buffers.borrowed() as sealed,
        ):
            connection.send_message(self._ask(is_write=True), job.deadline)
            view = job.local.view()
            for start, size in pieces.cut(len(view)):
                if connection.has_something():  # an early answer reports an error, so the rest need not be sent
                    break
                connection.send_piece(view[start : start + size], sealed.view(), job.deadline)
                self._moved(size)
            if (trouble := self._receive_answer(connection)) is not None:
                raise trouble

    def _ask(self, *, is_write: bool) -> bytes:
        job, done = self._job, self._done
        handle = msgspec.structs.replace(job.handle, offers={})
        seconds = min(job.deadline.left, MOST_SECONDS)
        return protocol.pack_request(
            protocol.TransferRequest(handle, job.offset + done, job.local.size - done, is_write, seconds)
        )

    def _receive_answer(self, connection: DataConnection) -> Exception | None:
        """Return why the request was refused; None on success."""
        deadline = self._job.deadline
        return protocol.unpack_answer(connection.receive_message(connection.receive_length(deadline), deadline))

    def _moved(self, count: int) -> None:
        self._done += count
        self._job.moved(count)

    def _format_progress(self) -> str:
        what = self._verb.format(f"{self._job.local.size:,} bytes")
        return f"{what} {self._job.handle.actor} by its host agent ({self._done:,} done)"
