"""Broadcasts of a buffer: which rank fetches from which, where the copies lie, and errors of ranks without a copy."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import meshbook
from meshbook import Actor, ProcMesh, RDMABuffer, TransferError, ValueMesh, endpoint, this_host
from meshbook.runtime.actor.context import Instance
from meshbook.runtime.errors import BufferDropped
from meshbook.runtime.geometry import SCALAR
from meshbook.runtime.memory.local_memory import LocalMemory, TensorForm, form_of, local_memory, shaped
from meshbook.runtime.memory.process_identity import own_mark
from meshbook.runtime.rdma.backends import BufferHandle, Lease, TransferJob
from meshbook.runtime.rdma.broadcast import parents_of
from meshbook.runtime.rdma.broadcast_receiver import PIECE, BroadcastOrder, BroadcastProgress, BroadcastReception
from meshbook.runtime.rdma.copies import Copies, CopyHolders
from meshbook.runtime.rdma.leases import LeaseTable
from meshbook.runtime.wire.messages import Address

pytestmark = pytest.mark.process

# --- which rank fetches from which ---


@pytest.mark.parametrize(
    ("hosts", "pieces", "expected"),
    [
        ("", 1, []),
        ("ooo", 1, [None, None, None]),  # on the host of the owner, whom each reads
        ("oab", 9, [None, None, 1]),
        ("aabbcc", 9, [None, 0, 0, 2, 2, 4]),
        ("abcdefg", 9, [None, 0, 1, 2, 3, 4, 5]),
        ("abcdefg", 1, [None, 0, 0, 1, 1, 2, 2]),
        ("aoba", 2, [None, None, 0, 0]),
    ],
)
def test_each_host_is_read_once(hosts: str, pieces: int, expected: list[int | None]) -> None:
    assert parents_of(list(hosts), "o", pieces) == expected


class FakePort:
    """Notes what is answered."""

    def __init__(self) -> None:
        self.answers: list[Any] = []

    def send(self, value: Any) -> None:
        self.answers.append(value)

    def exception(self, error: BaseException) -> None:
        self.answers.append(type(error))


def test_waiting_ports_are_notified_of_progress_or_of_the_end() -> None:
    arrival, handle = BroadcastProgress(), handle_of(1)
    ports: list[Any] = [FakePort() for _ in range(4)]
    arrival.wait(ports[0], 0)
    arrival.reach(handle, 10)
    arrival.wait(ports[1], 4)
    arrival.wait(ports[2], 10)
    arrival.refuse("the end")
    arrival.wait(ports[3], 10)
    assert [port.answers for port in ports] == [[(10, handle)], [(10, handle)], [TransferError], [TransferError]]


# --- where copies lie ---


def handle_of(number: int, size: int = 64) -> BufferHandle:
    return BufferHandle(Address("a", "a"), 0, "owner", own_mark(), None, Lease(0, number), 0, size)


def test_copies_keep_their_memory_and_end_with_their_source() -> None:
    numbers, ended = iter(range(100, 200)), list[int]()
    copies = Copies(lambda local, source: handle_of(next(numbers)), ended.append)
    first, second = handle_of(1), handle_of(2)
    copy = copies.take(first, "", fresh=False)
    assert copies.find(first) is None  # nothing has come yet
    copy.is_whole = True
    assert copies.find(first) is copies.take(first, "", fresh=False) is copy
    assert copies.take(second, "", fresh=False) is not copy
    new = copies.take(first, "", fresh=True)
    assert (new is copy, ended) == (False, [100])
    copies.forget(("a", 0, 1))
    copies.forget(("a", 0, 1))
    assert (copies.find(first), ended) == (None, [100, 102])
    copies.let_go([101])
    assert ended == [100, 102, 101]


def test_a_name_hands_memory_of_the_same_size_on() -> None:
    ended = list[int]()
    copies = Copies(lambda local, source: handle_of(100 + source.size), ended.append)
    first, second, larger = handle_of(1), handle_of(2), handle_of(3, 65)
    copy = copies.take(first, "weights", fresh=False)
    copy.is_whole = True
    assert copies.take(first, "weights", fresh=False) is copies.find(first)
    assert copies.take(second, "weights", fresh=False) is copy
    assert copies.find(second) is None  # as long as the bytes of the first are in it
    copy.is_whole = True
    assert (copies.find(first), copies.find(second)) == (None, copy)
    copies.forget(("a", 0, 1))  # of which it is a copy no more
    assert copies.take(larger, "weights", fresh=False) is not copy
    assert ended == [164]
    copies.take(larger, "", fresh=False)  # of one buffer there is one copy
    assert ended == [164, 165]


def test_receivers_do_not_wait_for_lent_memory() -> None:
    """To have it registered may take seconds. Meanwhile another thread may look, drop, and be first with the same."""
    ended = list[int]()
    source, other, numbers = handle_of(1), handle_of(2), itertools.count(100)

    def meanwhile() -> None:
        assert copies.find(source) is None
        copies.let_go([99])
        copies.forget(("a", 0, 3))
        taken.append(copies.take(other, "weights", fresh=False))

    def lend(local: LocalMemory, lent: BufferHandle) -> BufferHandle:
        if not taken:
            thread = threading.Thread(target=meanwhile, daemon=True)
            taken.append(thread)
            thread.start()
            thread.join(10)
        return handle_of(next(numbers))

    taken = list[Any]()
    copies = Copies(lend, ended.append)
    copy = copies.take(source, "weights", fresh=False)
    assert copy is taken[1]
    assert ended == [101]  # made in vain


def test_a_follower_of_a_dropped_buffer_gets_an_error_at_once() -> None:
    notified = list[tuple[BufferHandle, list[Address]]]()
    lender, peer = Instance("b", "actor", SCALAR.point(0), None), Address("b", "b")
    leases = LeaseTable()
    followers = CopyHolders(leases, lambda source, receivers: notified.append((source, receivers)))
    lent = leases.lend(local_memory(bytearray(8), "data"), lender)
    lent.handle = handle_of(lent.lease.number)
    followers.add(lent.handle, [peer])
    assert not notified
    leases.end(lent.lease.number)
    followers.end([lent])
    followers.add(lent.handle, [peer])
    assert notified == [(lent.handle, [peer])] * 2


class Failing:
    """A data plane that moves no bytes: records whether there is a copy meanwhile."""

    def __init__(self) -> None:
        self.node = self.transfers = self
        self.address, self.incarnation = Address("b", "b"), 0
        self.copies = Copies(lambda local, source: handle_of(100), lambda number: None)
        self.found = list[Any]()

    def move(self, job: TransferJob, *, is_write: bool) -> None:
        self.found.append(self.copies.find(job.handle))
        raise TransferError("on purpose")


def test_a_copy_that_is_being_filled_or_was_not_filled_is_none() -> None:
    data_plane: Any = Failing()
    source = handle_of(1)
    data_plane.copies.take(source, "", fresh=False).is_whole = True  # of the broadcast before
    with pytest.raises(TransferError, match="on purpose"):
        BroadcastReception(data_plane, BroadcastOrder((1, 0), source, 60.0, None), BroadcastProgress()).carry_out()
    assert data_plane.found == [None]
    assert data_plane.copies.find(source) is None


@pytest.mark.parametrize(
    ("data", "form"),
    [
        (torch.arange(6, dtype=torch.bfloat16).view(2, 3), TensorForm("torch", "bfloat16", (2, 3))),
        (torch.tensor(True), TensorForm("torch", "bool", ())),
        (np.arange(6, dtype=">i2").reshape(3, 2), TensorForm("numpy", ">i2", (3, 2))),
        (bytearray(b"abc"), None),
        (np.zeros(2, [("a", "i4"), ("b", "f8")]), None),
    ],
)
def test_bytes_are_a_tensor_or_an_array_again(data: Any, form: TensorForm | None) -> None:
    assert form_of(data) == form
    local = local_memory(data, "data")
    there = LocalMemory(local.address, local.size, local.device, False, local.keep)
    again = shaped(there, form)
    if form is None:
        assert bytes(again) == bytes(memoryview(data).cast("B"))
    else:
        assert (type(again), again.dtype, again.shape) == (type(data), data.dtype, data.shape)
        assert again.tolist() == data.tolist()


# --- by processes ---


class Reader(Actor):
    """Looks at what came."""

    def __init__(self) -> None:
        self.own = np.zeros(100, np.int32)
        self.held: Any = None

    @endpoint
    def look(self, buffer: RDMABuffer) -> tuple[Any, ...]:
        self.held = array = buffer.here()
        return array.dtype.str, array.shape, int(array.sum()), array.ctypes.data

    @endpoint
    def sum_of_held(self) -> int:
        return int(self.held.sum())

    @endpoint
    def lend(self) -> RDMABuffer:
        return RDMABuffer(self.own)

    @endpoint
    def sum_of_own(self) -> int:
        return int(self.own.sum())

    @endpoint
    def pid(self) -> int:
        return os.getpid()


@pytest.fixture(scope="module")
def procs() -> Iterator[ProcMesh]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MESHBOOK_PRELOAD", "numpy")
        mesh = this_host().spawn_procs({"gpus": 3})
        mesh.initialized.get()
        yield mesh
        mesh.stop().get()
        meshbook.close_session()


def test_all_ranks_have_the_array_and_the_pages_are_used_again(procs: ProcMesh) -> None:
    readers = procs.spawn("readers", Reader)
    data = np.arange(PIECE // 4 + 1000, dtype=np.int32).reshape(-1, 8)
    buffer = RDMABuffer(data)
    assert buffer.here() is not data
    assert np.shares_memory(buffer.here(), data)
    copies = buffer.broadcast_to(procs).get()
    seen = list(readers.look.call(buffer).get().values())
    assert [each[:3] for each in seen] == [("<i4", data.shape, int(data.sum()))] * 3
    data += 1
    buffer.broadcast_to(readers).get()
    assert list(readers.sum_of_held.call().get().values()) == [int(data.sum())] * 3
    assert list(readers.look.call(buffer).get().values()) == [(*each[:2], int(data.sum()), each[3]) for each in seen]
    held = int(data.sum())
    data += 1
    buffer.broadcast_to(procs.slice(gpus=slice(0, 2)), fresh=True).get()
    assert list(readers.sum_of_held.call().get().values()) == [held] * 3
    landed = np.zeros_like(data)
    copies.item(gpus=2).read_into(landed).get()  # the one that is as it was
    assert int(landed.sum()) == held
    buffer.drop().get()
    with pytest.raises(meshbook.ActorError, match=r"no copy in this process.* buffer\.broadcast_to"):
        readers.look.call(buffer).get()
    assert list(readers.sum_of_held.call().get().values()) == [held] * 3  # a rank that holds an array of it keeps it


def test_it_goes_to_buffers_that_are_there_as_well(procs: ProcMesh) -> None:
    readers = procs.spawn("readers", Reader)
    targets = readers.lend.call().get()
    RDMABuffer(np.full(50, 2, np.int32)).broadcast_to(targets).get()
    assert list(readers.sum_of_own.call().get().values()) == [100] * 3
    with pytest.raises(ValueError, match="the buffer of rank 0 has 400 bytes, but 404 are broadcast"):
        RDMABuffer(np.zeros(101, np.int32)).broadcast_to(targets)
    frozen = ValueMesh.of(targets.extent, [RDMABuffer(bytes(4))] * 3)
    with pytest.raises(ValueError, match="the buffer of rank 0 is read-only"):
        RDMABuffer(np.zeros(1, np.int32)).broadcast_to(frozen)
    with pytest.raises(TypeError, match="not a HostMesh"):
        RDMABuffer(np.zeros(1)).broadcast_to(this_host())
    with pytest.raises(TypeError, match="contains a int"):
        RDMABuffer(np.zeros(1)).broadcast_to(ValueMesh.of(procs.extent, [1, 2, 3]))
    targets.item(gpus=1).drop().get()
    with pytest.raises(
        BufferDropped, match=r"2 of 3 ranks; these ranks failed:\n +rank 1 \{'gpus': 1/3\} on .*dropped"
    ):
        RDMABuffer(np.full(50, 3, np.int32)).broadcast_to(targets).get()
    assert list(readers.sum_of_own.call().get().values()) == [150, 100, 150]


def test_several_at_once_and_under_a_name(procs: ProcMesh) -> None:
    readers = procs.spawn("readers", Reader)
    buffers = [RDMABuffer(np.full(1000, index, np.int32)) for index in range(3)]
    same = [buffers[0].broadcast_to(part) for part in (procs, procs.slice(gpus=slice(1, 3)), procs) * 3]
    others = [each.broadcast_to(procs, name="w") for each in buffers[1:]]
    values = [future.get() for future in (*same, *others)]
    assert all(isinstance(value, ValueMesh) for value in values)
    assert [each[2] for each in readers.look.call(buffers[0]).get().values()] == [0] * 3
    assert buffers[0].broadcast_to(procs, name="w").get().sizes == {"gpus": 3}
    with pytest.raises(meshbook.ActorError, match="no copy"):
        readers.look.call(buffers[1]).get()


@pytest.mark.usefixtures("procs")
def test_dead_or_stopped_ranks_are_named_and_the_others_receive_it() -> None:
    procs = this_host().spawn_procs({"gpus": 3})  # others need theirs
    readers = procs.spawn("readers", Reader)
    pids = list(readers.pid.call().get().values())
    buffer = RDMABuffer(np.full(1000, 5, np.int32))
    os.kill(pids[0], signal.SIGSTOP)
    try:
        with pytest.raises(TransferError, match=r"2 of 3 ranks; these ranks failed:\n +rank 0 .*no answer after 1 s"):
            buffer.broadcast_to(procs, timeout=1).get()
    finally:
        os.kill(pids[0], signal.SIGCONT)
    os.kill(pids[2], signal.SIGKILL)
    with pytest.raises(TransferError, match=r"2 of 3 ranks; these ranks failed:\n +rank 2 .*SIGKILL"):
        buffer.broadcast_to(procs).get()
    assert [reader.look.call_one(buffer).get()[2] for reader in (readers.slice(gpus=rank) for rank in (0, 1))] == [
        5000
    ] * 2
    procs.stop().get()
