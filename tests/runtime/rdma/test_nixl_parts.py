"""What there is around NIXL, with another agent in its place, whose peers are this process as well."""

from __future__ import annotations

import ctypes
import types
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import msgspec
import numpy as np
import pytest

from meshbook.runtime.errors import BufferDropped, OwnerGone, TransferError, TransferTimeout
from meshbook.runtime.memory.local_memory import local_memory
from meshbook.runtime.memory.process_identity import ProcessMark
from meshbook.runtime.rdma.backends import BufferHandle, Deadline, Lease, TransferJob, Unsuitable, nixl
from meshbook.runtime.rdma.backends.nixl import NixlBackend
from meshbook.runtime.rdma.leases import LeaseTable
from meshbook.runtime.rdma.nixl import transfer
from meshbook.runtime.rdma.nixl.nixl_agent import MemoryRange, NixlError
from meshbook.runtime.rdma.nixl.registration import STAGED, RegistrationTable
from meshbook.runtime.rdma.nixl.scheduler import LONGEST_PAUSE, SPIN, RunningTransfer, TransferScheduler, pause_for
from meshbook.runtime.rdma.nixl.transfer import NixlOffer, TransferContext, unpack
from meshbook.runtime.wire.messages import Address


class FakeAgent:
    """Copies at once; what is to go wrong is in `before`, which is called with the number of each request."""

    name = "fake"

    def __init__(self) -> None:
        self.registered: list[MemoryRange] = []
        self.done: list[str] = []
        self.requests = 0
        self.never = False  # nothing is ever done
        self.before: Callable[[int], object] = lambda number: None

    def register(self, memory: MemoryRange) -> None:
        self.registered.append(memory)

    def deregister(self, memory: MemoryRange) -> None:
        self.registered.remove(memory)

    def meet(self, description: bytes) -> None:
        self.done.append(f"meet {description.decode()}")

    def forget(self, peer: str) -> None:
        self.done.append(f"forget {peer}")

    def begin(self, peer: str, here: MemoryRange, there: MemoryRange, *, is_write: bool) -> int:
        self.requests += 1
        self.before(self.requests)
        to, source = (there, here) if is_write else (here, there)
        if not self.never:
            ctypes.memmove(to.address, source.address, here.size)
        return self.requests

    def is_done(self, request: int) -> bool:
        return not self.never

    def release(self, request: int) -> None:
        self.done.append("release")


class World:
    """A buffer that is lent here, and the context of a process that reads it by NIXL."""

    def __init__(self, size: int) -> None:
        self.agent = FakeAgent()
        self.memory = np.arange(size, dtype=np.uint8)
        self.leases = LeaseTable()
        local = local_memory(self.memory, "memory")
        lender: Any = "the actor"
        lease = self.leases.lend(local, lender).lease
        self.handle = make_handle(lease, local.address, size)
        self.offer = NixlOffer("peer", 1, None, b"memory", b"words")
        self.ended = False
        agent: Any = self.agent
        self.context = TransferContext(agent, RegistrationTable(agent), {}, lambda handle: self.ended)

    def run(
        self,
        target: Any,
        *,
        is_write: bool = False,
        timeout: float = 60,
        moved: Callable[[int], object] = lambda count: None,
    ) -> Future[None]:
        """Run all steps of one transfer on this thread; raise the error that they raise."""
        outcome: Future[None] = Future()
        job = TransferJob(self.handle, 0, local_memory(target, "target"), Deadline(timeout), moved)
        for _ in self.context.move(job, self.offer, outcome, is_write=is_write):
            if outcome.done():
                self.agent.never = False  # what was asked of NIXL comes to its end some time
        return outcome


def make_handle(lease: Lease, address: int, size: int) -> BufferHandle:
    owner = Address("owner", "unix://nowhere/owner")
    return BufferHandle(owner, 0, "the actor", ProcessMark(1, 1, "elsewhere"), None, lease, address, size)


@pytest.mark.parametrize("size", [1, 100, STAGED, STAGED + 1])
def test_bytes_are_read_and_written_staged_or_directly(size: int) -> None:
    world = World(size)
    read = np.zeros(size, np.uint8)
    world.run(read)
    np.testing.assert_array_equal(read, world.memory)

    world.run(np.full(size, 7, np.uint8), is_write=True)
    assert (world.memory == 7).all()
    assert len(world.agent.registered) == 1, "only our own place stays registered"


def test_memory_that_cannot_be_registered_is_staged_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(2 * STAGED + 5)
    register = world.agent.register

    def refuse(memory: MemoryRange) -> None:
        if memory.size == len(world.memory):
            raise NixlError("it can only be read")
        register(memory)

    monkeypatch.setattr(world.agent, "register", refuse)
    read = np.zeros(len(world.memory), np.uint8)
    world.run(read)
    np.testing.assert_array_equal(read, world.memory)


def test_what_is_read_from_a_dropped_buffer_does_not_come_into_the_target() -> None:
    world = World(100)
    world.agent.before = lambda number: world.leases.end(world.handle.lease.number) if number == 3 else None
    read = np.zeros(100, np.uint8)
    with pytest.raises(BufferDropped):
        world.run(read)
    assert not read.any()


def test_nothing_is_written_to_a_dropped_buffer() -> None:
    world = World(100)
    world.leases.end(world.handle.lease.number)
    before = world.memory.copy()
    with pytest.raises(BufferDropped):
        world.run(np.full(100, 7, np.uint8), is_write=True)
    np.testing.assert_array_equal(world.memory, before)


def test_a_connection_that_broke_is_made_anew_once() -> None:
    world = World(100)

    def break_second(number: int) -> None:
        if number == 2:
            raise NixlError("the connection has ended")

    world.agent.before = break_second
    read = np.zeros(100, np.uint8)
    world.run(read)
    np.testing.assert_array_equal(read, world.memory)
    assert [done for done in world.agent.done if done != "release"] == [
        *("meet words", "meet memory", "forget peer", "meet words", "meet memory")
    ]


def test_a_transfer_goes_on_where_it_was_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "PIECE", STAGED + 1)
    world, moved = World(3 * STAGED), []

    def break_late(number: int) -> None:
        if number == 4:  # a word, a piece and a word have come
            raise NixlError("the connection has ended")

    world.agent.before = break_late
    read: Any = np.zeros(3 * STAGED, np.uint8)
    world.run(read, moved=moved.append)
    np.testing.assert_array_equal(read, world.memory)
    assert sum(moved) == 3 * STAGED


def fail(number: int) -> None:
    raise NixlError("no route")


def test_where_it_never_gets_another_way_is_to_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "END_REPORT_SECONDS", 0.01)
    world = World(100)
    world.agent.before = fail
    with pytest.raises(Unsuitable, match="no route"):
        world.run(np.zeros(100, np.uint8))


def test_where_it_gets_no_more_another_way_is_to_be_taken_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "END_REPORT_SECONDS", 0.01)
    world = World(100)
    world.run(np.zeros(100, np.uint8))
    world.agent.before = fail
    with pytest.raises(Unsuitable, match="no longer reaches the owner: no route"):
        world.run(np.zeros(100, np.uint8))


def test_the_end_of_the_owner_is_reported_as_such() -> None:
    world = World(100)

    def end(number: int) -> None:
        world.ended = True
        raise NixlError("the connection has ended")

    world.agent.before = end
    with pytest.raises(OwnerGone):
        world.run(np.zeros(100, np.uint8))


@pytest.mark.parametrize("ended", [True, False])
def test_a_hanging_transfer_is_reported_before_its_end_and_writes_nothing_afterwards(
    monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    """The owner ends, or the peer never answers. The request ends later, and so do its steps."""
    monkeypatch.setattr(transfer, "CHECK_SECONDS", 0.001)
    monkeypatch.setattr(transfer, "FIRST_REPLY_SECONDS", 0.01)
    world = World(100)

    def hang(number: int) -> None:
        world.agent.never, world.ended = True, ended

    world.agent.before = hang
    outcome: Future[None] = Future()
    job = TransferJob(world.handle, 0, local_memory(np.zeros(100, np.uint8), "target"), Deadline(60))
    steps = world.context.move(job, world.offer, outcome, is_write=False)
    while not outcome.done():
        next(steps)
    assert isinstance(outcome.exception(), OwnerGone if ended else Unsuitable)
    assert "release" not in world.agent.done
    world.agent.never = False
    with pytest.raises(TransferError):
        list(steps)
    assert world.agent.done[-1] == "release"


def test_nothing_more_is_asked_for_once_the_deadline_has_passed() -> None:
    world = World(100)
    with pytest.raises(TransferTimeout):
        world.run(np.zeros(100, np.uint8), timeout=0)
    assert world.agent.requests == 0


def test_a_range_is_registered_once_for_all_holders() -> None:
    agent: Any = FakeAgent()
    registered, memory = RegistrationTable(agent), MemoryRange(4096, 10)
    first = registered.hold(memory)
    assert registered.hold(memory) == first
    registered.let_go(memory)
    assert agent.registered == [memory]
    registered.let_go(memory)
    assert agent.registered == []
    assert registered.hold(memory) != first, "it is another registration, with keys of its own"


def test_what_is_lent_from_here_is_used_as_it_is_registered() -> None:
    agent: Any = FakeAgent()
    registered, local = RegistrationTable(agent), local_memory(np.zeros(STAGED + 1, np.uint8), "memory")
    registered.hold(MemoryRange.of(local))
    with registered.reachable(local) as is_direct:
        assert is_direct
        assert len(agent.registered) == 1
    assert len(agent.registered) == 1


def test_a_peer_of_which_too_much_is_known_is_met_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "MOST_KNOWN", 2)
    world = World(100)
    for number in range(1, 4):
        world.offer = NixlOffer("peer", number, None, b"memory %d" % number, b"words")
        world.run(np.zeros(100, np.uint8))
    met = [done for done in world.agent.done if done not in ("release", "meet words")]
    assert met == ["meet memory 1", "meet memory 2", "forget peer", "meet memory 3"]


def test_the_reason_why_it_is_not_used_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = World(100).handle
    ours: Any = types.SimpleNamespace(address=Address("ours", "unix://nowhere/ours"), incarnation=0, run="run")

    def refusal(handle: BufferHandle, device: str = "cpu", *, is_worker: bool = True, is_forced: bool = True) -> str:
        return NixlBackend(ours, LeaseTable(), is_worker=is_worker, is_forced=is_forced).refusal(handle, device)

    assert refusal(handle, is_worker=False) == "only workers use NIXL"
    monkeypatch.setattr(nixl, "why_no_ibverbs", lambda: "this host has no RDMA NIC")
    assert refusal(handle, is_forced=False) == "this host has no RDMA NIC"
    monkeypatch.setattr(nixl, "is_installed", lambda: False)
    assert "pip install 'meshbook[rdma]'" in refusal(handle)
    monkeypatch.setattr(nixl, "is_installed", lambda: True)
    assert refusal(msgspec.structs.replace(handle, owner=ours.address)) == "the owner is this process"
    assert refusal(handle, "mps:0") == "NIXL does not reach memory of mps:0"
    assert "the owner does not offer it" in refusal(handle)
    failed = {"nixl": NixlOffer(why="it cannot be registered there").pack()}
    assert refusal(msgspec.structs.replace(handle, offers=failed)) == "it cannot be registered there"
    assert refusal(msgspec.structs.replace(handle, offers={"nixl": NixlOffer("peer", 1).pack()})) == ""


def test_an_offer_comes_out_as_it_was_packed() -> None:
    offer = NixlOffer("peer", 3, 1, b"memory", b"words")
    assert unpack(offer.pack()) == offer


@pytest.mark.parametrize(
    ("waited", "expected"),
    [([], None), ([SPIN / 2], 0), ([10, SPIN / 2], 0), ([0.02], 0.001), ([10], LONGEST_PAUSE)],
)
def test_the_pause_grows_with_how_long_nothing_has_happened(waited: list[float], expected: float | None) -> None:
    steps: Any = iter(())
    under_way = [RunningTransfer(steps, Future(), 100 - seconds) for seconds in waited]
    assert pause_for(under_way, 100.0) == (expected if expected is None else pytest.approx(expected))


def test_transfers_take_turns_and_their_ends_are_reported() -> None:
    turns, said = TransferScheduler("test turns"), []

    def steps(name: str, error: Exception | None) -> Any:
        for step in range(3):
            said.append((name, step))
            yield True
        if error is not None:
            raise error

    good, bad = Future[None](), Future[None]()
    turns.start(steps("good", None), good)
    turns.start(steps("bad", ValueError("no")), bad)
    assert good.result(10) is None
    assert isinstance(bad.exception(10), ValueError)
    assert len(said) == 6

    def endless() -> Any:
        while True:
            yield False

    stuck, late = Future[None](), Future[None]()
    turns.start(endless(), stuck)
    turns.close()
    turns.close()
    assert isinstance(stuck.exception(10), TransferError)
    turns.start(endless(), late)
    assert isinstance(late.exception(10), TransferError)
