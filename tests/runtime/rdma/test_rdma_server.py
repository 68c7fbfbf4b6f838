"""An agent's memory server and its clients, in one process: what they do when something is wrong."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import BufferDropped, CallCancelled, OwnerGone, TransferError, TransferTimeout
from meshbook.runtime.memory.local_memory import local_memory
from meshbook.runtime.memory.process_identity import own_mark
from meshbook.runtime.rdma import connection_pool, memory_server, pieces
from meshbook.runtime.rdma import memory_protocol as protocol
from meshbook.runtime.rdma.backends import BufferHandle, Deadline, Lease, TransferJob, Unsuitable
from meshbook.runtime.rdma.backends.host_agent import HostAgentBackend
from meshbook.runtime.rdma.connection import DataConnection, be_admitted
from meshbook.runtime.rdma.memory_server import MEMORY, MemoryServer, MemoryServerAddress
from meshbook.runtime.wire.messages import Address
from tests.support import PATIENCE

PIECE = 1 << 18  # smaller than it is, so that several are little
SIZE = 5 * PIECE + 3
ANSWER_BYTES = protocol.LENGTH_BYTES + protocol.TAG + 1 + protocol.TAG  # of one that goes well
AGENT = Address("agent", "memory://agent")
OWNER = Address("procs-1.0", "memory://procs-1.0")


class Memory:
    """Stands in for Cross Memory Attach: a way to one array, which may fail from a piece on."""

    def __init__(self) -> None:
        self.data = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8)
        self.why_not = ""
        self.pieces = 0
        self.before: Callable[[int], None] = lambda piece: (
            None
        )  # called with the number of each piece before it is moved

    def refusal(self, handle: BufferHandle, local: str | None) -> str:
        return self.why_not

    def read(self, job: TransferJob) -> None:
        job.local.view()[:] = self._part(job)

    def write(self, job: TransferJob) -> None:
        self._part(job)[:] = job.local.view()

    def _part(self, job: TransferJob) -> Any:
        self.pieces += 1
        self.before(self.pieces)
        return memoryview(self.data)[job.offset : job.offset + job.local.size]

    def handle(self) -> BufferHandle:
        return BufferHandle(OWNER, 0, "<root>.<Owner o{}>", own_mark(), AGENT, Lease(8, 5, "folder"), 4096, SIZE)


class Client:
    """A process that knows the agent, and its server."""

    def __init__(self, serve: Callable[[Address], MemoryServerAddress]) -> None:
        self.server: MemoryServerAddress = serve(OWNER)
        self.peers = self.calls = self.loop = self  # as much of each as is needed here
        self.when_down: list[Any] = []
        self.due: list[Any] = []
        self.report: Any = None
        self.address = OWNER
        self.reply: Callable[[], Future[Any]] = lambda: Future.completed(self.server)

    def ask(self, to: Address, actor: str, endpoint: str, *arguments: Any) -> Future[Any]:
        assert (to, actor, endpoint) == (AGENT, MEMORY, "address")
        return self.reply()

    def report_of(self, node: str) -> Any:
        return self.report

    def call_later(self, seconds: float, callback: Any) -> None:
        self.due.append(callback)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    monkeypatch.setattr(pieces, "PIECE", PIECE)
    return Memory()


@pytest.fixture
def serving(memory: Memory) -> Iterator[MemoryServer]:
    backend: Any = memory
    made = MemoryServer(backend, "folder", lambda mark: True)
    yield made
    made.close()


@pytest.fixture
def client(serving: MemoryServer) -> Client:
    return Client(lambda reply_handler: serving.open("127.0.0.1"))


@pytest.fixture
def backend(client: Client) -> Iterator[HostAgentBackend]:
    node: Any = client
    made = HostAgentBackend(node)
    yield made
    made.close()


def job(memory: Memory, data: Any, offset: int = 0, seconds: float = PATIENCE) -> TransferJob:
    return TransferJob(memory.handle(), offset, local_memory(data, "data"), Deadline(seconds))


def connect(server: MemoryServerAddress) -> DataConnection:
    return DataConnection(socket.create_connection((server.ip, server.port), PATIENCE))


# -- what goes well --------------------------------------------------------------------------


def test_reads_and_writes_of_any_size(memory: Memory, backend: HostAgentBackend) -> None:
    for offset, size in [(0, SIZE), (1, 1), (SIZE - 1, 1), (3, PIECE), (0, PIECE + 1), (7, 3 * PIECE)]:
        target = np.zeros(size, np.uint8)
        moved: list[int] = []
        reading = job(memory, target, offset)
        reading.moved = moved.append
        backend.read(reading)
        assert (target == memory.data[offset : offset + size]).all()
        assert sum(moved) == size
        source = np.random.default_rng(size).integers(0, 256, size, np.uint8)
        expected = memory.data.copy()
        expected[offset : offset + size] = source
        backend.write(job(memory, source, offset))
        assert (memory.data == expected).all()


def test_a_connection_is_used_again_and_one_that_was_closed_is_not_missed(
    memory: Memory, backend: HostAgentBackend, serving: MemoryServer
) -> None:
    target = np.zeros(10, np.uint8)
    backend.read(job(memory, target))
    [connection] = serving._connections
    backend.write(job(memory, target))
    assert list(serving._connections) == [connection]
    connection.interrupt()
    while serving._connections:
        pass
    backend.write(job(memory, target))  # a write is sent once: that the connection is closed is seen before


def test_an_idle_connection_is_closed_after_its_time(
    memory: Memory, backend: HostAgentBackend, client: Client, serving: MemoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        backend.read(job(memory, np.zeros(10, np.uint8)))
    [look] = client.due  # one, however often it was used
    look()
    assert len(serving._connections) == 1
    monkeypatch.setattr(connection_pool, "IDLE_SECONDS", 0.0)
    client.due.pop()()
    while serving._connections:
        pass
    assert len(client.due) == 1, "once there is none, nobody looks for idle ones"


# -- clients outside the run -------------------------------------------------------------------


@pytest.mark.parametrize("says", [b"GET / HTTP/1.1\r\n\r\n" * 10, bytes(64), b""], ids=["garbage", "zeros", "nothing"])
def test_a_stranger_is_refused_and_counted(serving: MemoryServer, says: bytes) -> None:
    connection = connect(serving.open("127.0.0.1"))
    connection.receive(protocol.GREETING_BYTES, Deadline(PATIENCE))
    if says:
        connection.send(says, Deadline(PATIENCE))
        with pytest.raises(ConnectionError):
            connection.receive(1, Deadline(PATIENCE))
    connection.close()
    while not serving.rejected.count:
        pass
    assert serving.rejected.count == 1


def test_a_silent_client_is_disconnected_after_the_limit(
    serving: MemoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_server, "HANDSHAKE_SECONDS", 0.05)
    connection = connect(serving.open("127.0.0.1"))
    with pytest.raises(ConnectionError):
        connection.receive(protocol.GREETING_BYTES + 1, Deadline(PATIENCE))
    connection.close()


def test_a_proof_of_one_connection_is_invalid_on_another(serving: MemoryServer) -> None:
    server = serving.open("127.0.0.1")
    connections = [connect(server) for _ in range(2)]
    asked = [bytes(connection.receive(protocol.GREETING_BYTES, Deadline(PATIENCE))) for connection in connections]
    proof = protocol.prove(server.key, "process", protocol.unpack_greeting(asked[0]), bytes(protocol.NONCE))
    connections[1].send(bytes(protocol.NONCE) + proof, Deadline(PATIENCE))
    with pytest.raises(ConnectionError):
        connections[1].receive(1, Deadline(PATIENCE))
    for connection in connections:
        connection.close()


def test_an_agent_that_does_not_know_the_key_is_not_believed(
    memory: Memory, client: Client, backend: HostAgentBackend
) -> None:
    client.server = MemoryServerAddress(client.server.ip, client.server.port, bytes(32))
    with pytest.raises(ConnectionError):  # over there they see first that the keys differ
        be_admitted(connect(client.server), client.server.key, Deadline(PATIENCE))
    with socket.create_server(("127.0.0.1", 0)) as false:

        def answer() -> None:
            with contextlib.suppress(OSError):
                other, _ = false.accept()
                other.sendall(protocol.pack_greeting(bytes(32)))
                other.recv(64, socket.MSG_WAITALL)
                other.sendall(bytes(32))
                other.close()

        thread = threading.Thread(target=answer)
        thread.start()
        client.server = MemoryServerAddress("127.0.0.1", false.getsockname()[1], client.server.key)
        with pytest.raises(Unsuitable, match="does not have the key"):
            backend.read(job(memory, np.zeros(1, np.uint8)))
        thread.join()


def test_a_writer_that_sends_no_data_is_disconnected_after_its_own_limit(serving: MemoryServer, memory: Memory) -> None:
    server = serving.open("127.0.0.1")
    connection = connect(server)
    be_admitted(connection, server.key, Deadline(PATIENCE))
    request = protocol.TransferRequest(memory.handle(), 0, SIZE, is_write=True, seconds=0.05)
    connection.send_message(protocol.pack_request(request), Deadline(PATIENCE))
    with pytest.raises(ConnectionError):
        connection.receive(1, Deadline(PATIENCE))
    connection.close()


def test_a_request_that_comes_again_is_refused(serving: MemoryServer, memory: Memory) -> None:
    server = serving.open("127.0.0.1")
    connection = connect(server)
    be_admitted(connection, server.key, Deadline(PATIENCE))
    request = protocol.pack_request(protocol.TransferRequest(memory.handle(), 0, 1, is_write=False, seconds=PATIENCE))
    message = connection._seal(protocol.pack_length(len(request))) + connection._seal(request)
    for _ in range(2):
        connection.send(message, Deadline(PATIENCE))
    connection.receive(ANSWER_BYTES + 1 + protocol.TAG, Deadline(PATIENCE))
    with pytest.raises(ConnectionError):
        connection.receive(1, Deadline(PATIENCE))
    connection.close()
    assert serving.rejected.count == 1


# A change that CRC-32 does not detect: its polynomial, the first bit in the lowest one.
UNSEEN = (0xEDB88320 << 1 | 1).to_bytes(5, "little")


class Relay:
    """Stands between a process and a memory server, and changes what goes to one of them.

    `at` is the byte, counted from the handshake of the first connection on; None: in each piece that is received.
    The bits of `change` are flipped from there on.
    """

    def __init__(
        self, server: MemoryServerAddress, *, to_server: bool, at: int | None, change: bytes = b"\x01"
    ) -> None:
        self._there = server
        self._flips = {to_server: at}
        self._change = change
        self.connections = 0
        # The handshake is none of it.
        self._passed = {
            True: -protocol.NONCE - protocol.PROOF,
            False: -protocol.GREETING_BYTES - protocol.PROOF,
        }
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.server = MemoryServerAddress("127.0.0.1", self._listening.getsockname()[1], server.key)
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            there = socket.create_connection((self._there.ip, self._there.port), PATIENCE)
            for source, target, to_server in ((here, there, True), (there, here, False)):
                self._threads.append(threading.Thread(target=self._pass_on, args=(source, target, to_server)))
                self._threads[-1].start()

    def _pass_on(self, source: socket.socket, target: socket.socket, to_server: bool) -> None:
        with contextlib.suppress(OSError):
            while data := bytearray(source.recv(1 << 16)):
                target.sendall(self._pass_through(data, to_server))
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _pass_through(self, data: bytearray, to_server: bool) -> bytearray:
        before = self._passed[to_server]
        self._passed[to_server] += len(data)
        if to_server not in self._flips or before < 0:
            return data
        at = self._flips[to_server]
        for place, bits in enumerate(self._change, len(data) - 1 if at is None else at - before):
            if 0 <= place < len(data):
                data[place] ^= bits
        return data

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join(PATIENCE)


class Rewriting(Relay):
    """Collects so many bytes of what the server sends on the first connection, and passes on what `rewrite` returns.

    That gets all that was collected so far.
    """

    def __init__(self, server: MemoryServerAddress, *, block: int, rewrite: Callable[[list[bytes]], bytes]) -> None:
        self._block = block
        self._rewrite = rewrite
        self._held = bytearray()
        self._blocks: list[bytes] = []
        super().__init__(server, to_server=False, at=0)

    def _pass_through(self, data: bytearray, to_server: bool) -> bytearray:
        before = self._passed[to_server]
        self._passed[to_server] += len(data)
        if to_server or before < 0 or self.connections > 1:
            return data
        self._held += data
        changed = bytearray()
        while len(self._held) >= self._block:
            self._blocks.append(bytes(self._held[: self._block]))
            del self._held[: self._block]
            changed += self._rewrite(self._blocks)
        return changed


@pytest.fixture
def relayed(client: Client, backend: HostAgentBackend) -> Iterator[Callable[..., Relay]]:
    relays: list[Relay] = []

    def relay(kind: type[Relay] = Relay, **changes: Any) -> Relay:
        relays.append(kind(client.server, **changes))
        client.server = relays[-1].server
        return relays[-1]

    yield relay
    backend.close()
    for each in relays:
        each.close()


@pytest.mark.parametrize("at", [0, 10, 30, 40, 2 * PIECE])
def test_a_read_is_repeated_where_a_bit_has_flipped(
    memory: Memory, backend: HostAgentBackend, relayed: Any, at: int
) -> None:
    relayed(to_server=False, at=at)
    data = np.zeros(SIZE, np.uint8)
    backend.read(job(memory, data))
    assert (data == memory.data).all()


def test_a_read_is_repeated_where_data_was_changed_so_that_a_crc_stays_the_same(
    memory: Memory, backend: HostAgentBackend, relayed: Any
) -> None:
    changed = bytes(data ^ change for data, change in zip(b"12345", UNSEEN, strict=True))
    assert zlib.crc32(changed) == zlib.crc32(b"12345")
    relay = relayed(to_server=False, at=2 * PIECE, change=UNSEEN)
    data = np.zeros(SIZE, np.uint8)
    backend.read(job(memory, data))
    assert (data == memory.data).all()
    assert relay.connections == 2


SEALED = PIECE + protocol.TAG


@pytest.mark.parametrize(
    "rearrange",
    [
        lambda first, second: second + first,
        lambda first, second: first + first,
        lambda first, second: second,
        lambda first, second: first[100:] + second,
    ],
    ids=["swapped", "replayed", "left out", "cut"],
)
def test_a_read_whose_pieces_were_rearranged_is_repeated(
    memory: Memory, backend: HostAgentBackend, relayed: Any, rearrange: Callable[[bytes, bytes], bytes]
) -> None:
    def rewrite(blocks: list[bytes]) -> bytes:
        answer, both = blocks[0][:ANSWER_BYTES], blocks[0][ANSWER_BYTES:]
        return answer + rearrange(both[:SEALED], both[SEALED:])

    relay = relayed(Rewriting, block=ANSWER_BYTES + 2 * SEALED, rewrite=rewrite)
    data = np.zeros(2 * PIECE, np.uint8)
    backend.read(job(memory, data))
    assert (data == memory.data[: 2 * PIECE]).all()
    assert relay.connections == 2


def test_an_old_answer_is_not_mistaken_for_a_new_one(memory: Memory, backend: HostAgentBackend, relayed: Any) -> None:
    relay = relayed(Rewriting, block=ANSWER_BYTES + SEALED, rewrite=lambda blocks: blocks[0])
    data = np.zeros(PIECE, np.uint8)
    for _ in range(2):
        backend.read(job(memory, data))
        assert (data == memory.data[:PIECE]).all()
        memory.data[:] = 7
    assert relay.connections == 2


def test_nothing_on_the_way_is_readable(memory: Memory, backend: HostAgentBackend, relayed: Any) -> None:
    seen: list[bytes] = []

    def look(blocks: list[bytes]) -> bytes:
        seen.append(blocks[-1])
        return blocks[-1]

    relayed(Rewriting, block=1, rewrite=look)
    memory.data[:100] = 7
    backend.read(job(memory, np.zeros(100, np.uint8)))
    assert len(seen) == ANSWER_BYTES + 100 + protocol.TAG
    assert bytes([7] * 10) not in b"".join(seen)


def test_a_process_without_the_package_that_encrypts_goes_another_way(
    memory: Memory, backend: HostAgentBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an interpreter with packages of its own may be."""
    real = protocol.Seal

    def seal(key: bytes, who: str, nonces: bytes) -> protocol.Seal:
        if threading.current_thread() is threading.main_thread():
            raise ModuleNotFoundError("No module named 'cryptography'")
        return real(key, who, nonces)

    monkeypatch.setattr(protocol, "Seal", seal)
    with pytest.raises(Unsuitable, match="lacks a package: No module named 'cryptography'"):
        backend.read(job(memory, np.zeros(1, np.uint8)))
    assert "lacks a package" in backend.refusal(memory.handle(), None)


def test_a_read_over_a_network_that_damages_everything_fails(
    memory: Memory, backend: HostAgentBackend, relayed: Any
) -> None:
    relayed(to_server=False, at=None)
    with pytest.raises(TransferError, match="failed 3 times: "):
        backend.read(job(memory, np.zeros(SIZE, np.uint8)))


@pytest.mark.parametrize("at", [10, 60, 2 * PIECE])
def test_a_write_in_which_a_bit_has_flipped_fails(
    memory: Memory, backend: HostAgentBackend, serving: MemoryServer, relayed: Any, at: int
) -> None:
    relayed(to_server=True, at=at)
    before, data = memory.data.copy(), np.zeros(SIZE, np.uint8)
    with pytest.raises(TransferError):
        backend.write(job(memory, data))
    pieces_kept = [start for start in range(0, SIZE, PIECE) if not (memory.data[start : start + PIECE] == 0).all()]
    assert pieces_kept, "what was damaged was not written"
    assert all((memory.data[start : start + PIECE] == before[start : start + PIECE]).all() for start in pieces_kept)


@pytest.mark.parametrize("parts", [[struct.pack("<I", 1 << 31)], [struct.pack("<I", 7), b"garbage"]], ids=len)
def test_a_request_that_is_none_ends_the_connection(serving: MemoryServer, parts: list[bytes]) -> None:
    server = serving.open("127.0.0.1")
    connection = connect(server)
    be_admitted(connection, server.key, Deadline(PATIENCE))
    connection.send(b"".join(map(connection._seal, parts)), Deadline(PATIENCE))
    with pytest.raises(ConnectionError):
        connection.receive(1, Deadline(PATIENCE))
    assert serving.rejected.count == 1
    connection.close()


# -- what goes wrong --------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [BufferDropped("x"), OwnerGone("x"), Unsuitable("x"), TransferError("x")], ids=repr)
@pytest.mark.parametrize("piece", [1, 3])
def test_an_error_reaches_the_caller_wherever_it_is_found(
    memory: Memory, backend: HostAgentBackend, error: Exception, piece: int
) -> None:
    def fail(number: int) -> None:
        if number >= piece:
            raise error

    data = np.zeros(SIZE, np.uint8)
    memory.before = fail
    for move in (backend.read, backend.write):
        memory.pieces = 0
        with pytest.raises(type(error), match=r"^x(\n|$)"):
            move(job(memory, data))
    memory.before = lambda number: None
    backend.read(job(memory, data))
    assert (data == memory.data).all()


def test_a_read_goes_on_where_its_connection_broke(
    memory: Memory, backend: HostAgentBackend, serving: MemoryServer
) -> None:
    def cut(number: int) -> None:
        if number == 3:
            next(iter(serving._connections)).interrupt()

    memory.before = cut
    data, moved = np.zeros(SIZE, np.uint8), []
    reading = job(memory, data)
    reading.moved = moved.append
    backend.read(reading)
    assert (data == memory.data).all()
    assert sum(moved) == SIZE


def test_a_write_whose_connection_breaks_fails(
    memory: Memory, backend: HostAgentBackend, serving: MemoryServer
) -> None:
    memory.before = lambda number: next(iter(serving._connections)).interrupt()
    with pytest.raises(TransferError, match="failed during a write"):
        backend.write(job(memory, np.zeros(SIZE, np.uint8)))


def test_a_server_that_is_slower_than_the_deadline(memory: Memory, backend: HostAgentBackend) -> None:
    held = threading.Event()
    for move in (backend.read, backend.write):
        memory.before = lambda number: None
        backend.read(job(memory, np.zeros(1, np.uint8)))  # so that the connection is there
        memory.before, memory.pieces = (lambda number: None if number < 3 else _wait(held)), 0
        with pytest.raises(TransferTimeout, match="by its host agent"):
            move(job(memory, np.zeros(SIZE, np.uint8), seconds=0.1))
    held.set()


def test_a_transfer_that_is_cancelled_ends(memory: Memory, backend: HostAgentBackend) -> None:
    held, begun = threading.Event(), threading.Event()

    def hold(number: int) -> None:
        begun.set()
        _wait(held)

    memory.before = hold
    reading = job(memory, np.zeros(SIZE, np.uint8))
    failed: list[BaseException] = []

    def read() -> None:
        try:
            backend.read(reading)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    assert begun.wait(PATIENCE)
    reading.deadline.cancel(CallCancelled("enough"))
    thread.join(PATIENCE)
    held.set()
    assert [str(error) for error in failed] == ["enough"]


def test_an_agent_that_is_lost_ends_what_waits_for_it(
    memory: Memory, backend: HostAgentBackend, client: Client
) -> None:
    held = threading.Event()

    class Report:
        node, cause = AGENT.node, "its network was cut"

    def lose(number: int) -> None:
        client.report = Report
        for listener in client.when_down:
            listener(Report)
        _wait(held)

    memory.before = lose
    with pytest.raises(OwnerGone, match="its network was cut"):
        backend.read(job(memory, np.zeros(SIZE, np.uint8)))
    held.set()
    with pytest.raises(OwnerGone):
        backend.write(job(memory, np.zeros(1, np.uint8)))


def test_what_is_not_of_this_run_or_host_is_not_touched(memory: Memory, client: Client) -> None:
    server_way: Any = memory
    strict = MemoryServer(server_way, "folder", lambda mark: False)
    client.server = strict.open("127.0.0.1")
    node: Any = client
    backend = HostAgentBackend(node)
    with pytest.raises(Unsuitable, match="no process"):
        backend.read(job(memory, np.zeros(1, np.uint8)))
    elsewhere = MemoryServer(server_way, "another run's folder", lambda mark: True)
    client.server = elsewhere.open("127.0.0.1")
    other = HostAgentBackend(node)
    with pytest.raises(Unsuitable, match="no process"):
        other.write(job(memory, np.zeros(1, np.uint8)))
    other.close()
    elsewhere.close()
    memory.why_not = "the owner is on another host"
    with pytest.raises(Unsuitable, match="cannot reach it: the owner is on another host"):
        backend.write(job(memory, np.zeros(SIZE, np.uint8)))
    assert memory.pieces == 0
    backend.close()
    strict.close()


def test_where_no_connection_leads_there_is_another_way(
    memory: Memory, client: Client, backend: HostAgentBackend
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        client.server = MemoryServerAddress("127.0.0.1", unused.getsockname()[1], bytes(32))
        with pytest.raises(Unsuitable, match="cannot be reached"):
            backend.read(job(memory, np.zeros(1, np.uint8)))
    assert backend.refusal(memory.handle(), None) == "", "somebody may listen there soon"


def test_where_none_will_lead_it_is_not_tried_again(
    memory: Memory, client: Client, backend: HostAgentBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "create_connection", Mock(side_effect=OSError(errno.EHOSTUNREACH, "No route to host")))
    with pytest.raises(Unsuitable, match=r"No route to host.*check for a firewall"):
        backend.read(job(memory, np.zeros(1, np.uint8)))
    assert "cannot be reached" in backend.refusal(memory.handle(), None)


def test_an_agent_that_does_not_answer(memory: Memory, client: Client, backend: HostAgentBackend) -> None:
    client.reply = Future.pending
    with pytest.raises(TransferTimeout, match="did not answer"):
        backend.read(job(memory, np.zeros(1, np.uint8), seconds=0.05))


# -- many at once -----------------------------------------------------------------------------------------


def test_idle_connections_make_room_for_others(serving: MemoryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    serving._room = threading.Semaphore(2)
    server = serving.open("127.0.0.1")
    opened = []
    for _ in range(5):
        opened.append(connect(server))
        be_admitted(opened[-1], server.key, Deadline(PATIENCE))
    for connection in opened:
        connection.close()


def test_unauthenticated_connections_make_room_before_idle_ones(
    memory: Memory, backend: HostAgentBackend, serving: MemoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_server, "HANDSHAKE_SECONDS", 1000.0)
    monkeypatch.setattr(memory_server, "MOST_UNKNOWN", 1)
    serving._room = threading.Semaphore(3)
    server = serving.open("127.0.0.1")
    used = connect(server)
    be_admitted(used, server.key, Deadline(PATIENCE))
    request = protocol.pack_request(protocol.TransferRequest(memory.handle(), 0, 1, is_write=False, seconds=PATIENCE))

    def ask() -> None:
        used.send_message(request, Deadline(PATIENCE))
        used.receive_message(used.receive_length(Deadline(PATIENCE)), Deadline(PATIENCE))
        used.receive(1 + protocol.TAG, Deadline(PATIENCE))
        used.seal_in._next()

    ask()
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.callback(connect(server).close)
        backend.read(job(memory, data := np.zeros(SIZE, np.uint8)))
        assert (data == memory.data).all()
        ask()
    used.close()


def test_a_server_without_descriptors_says_so_and_goes_on(
    memory: Memory,
    backend: HostAgentBackend,
    client: Client,
    serving: MemoryServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: Any,
) -> None:
    """As while strangers hold all that it may have."""
    monkeypatch.setattr(memory_server, "PAUSE_SECONDS", 0.01)
    failures = [OSError(errno.EMFILE, "Too many open files")] * 3
    attend = serving._accept_one

    def attend_later(listening: socket.socket) -> None:
        if failures:
            raise failures.pop()
        attend(listening)

    monkeypatch.setattr(serving, "_accept_one", attend_later)
    connect(client.server).close()  # the server waited for this one before
    backend.read(job(memory, data := np.zeros(SIZE, np.uint8)))
    assert not failures
    assert (data == memory.data).all()
    assert "the memory server cannot accept a connection: [Errno 24] Too many open files" in caplog.text


def test_many_transfers_at_once(memory: Memory, backend: HostAgentBackend, serving: MemoryServer) -> None:
    wrong: list[int] = []

    def read(offset: int) -> None:
        for size in (10, PIECE + 10):
            target = np.zeros(size, np.uint8)
            backend.read(job(memory, target, offset))
            if (target != memory.data[offset : offset + size]).any():
                wrong.append(offset)

    threads = [threading.Thread(target=read, args=(number * 1000,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(serving._connections) <= 8


def test_a_closed_server_releases_all_clients(serving: MemoryServer, memory: Memory, client: Client) -> None:
    connection = connect(client.server)
    be_admitted(connection, client.server.key, Deadline(PATIENCE))
    serving.close()
    with pytest.raises(ConnectionError):
        connection.receive(1, Deadline(PATIENCE))
    with pytest.raises(OSError, match="closed"):
        serving.open("127.0.0.1")
    connection.close()


def _wait(event: threading.Event) -> None:
    event.wait(PATIENCE)
