"""Batches of transfers: what may go together, how it is grouped, and what is said where one fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshbook
from meshbook import Actor, ProcMesh, RDMAAction, RDMABuffer, endpoint, this_host
from meshbook.runtime.errors import BufferDropped, CallCancelled, TransferTimeout
from meshbook.runtime.memory.local_memory import local_memory
from meshbook.runtime.memory.process_identity import own_mark
from meshbook.runtime.rdma.action import IntervalSet, Operation, batches_of
from meshbook.runtime.rdma.backends import BufferHandle, Lease, TransferJob
from meshbook.runtime.rdma.backends.same_process import SameProcessBackend
from meshbook.runtime.rdma.transfers import INLINE_BYTES
from meshbook.runtime.wire.messages import Address

SIZE = 64
RANGE = st.tuples(st.integers(0, 30), st.integers(1, 6)).map(lambda pair: (pair[0], sum(pair)))
pytestmark = pytest.mark.process


def handle_of(pid: int = 1) -> BufferHandle:
    mark = own_mark()
    return BufferHandle(Address("a", "a"), 0, "owner", type(mark)(pid, 0, ""), None, Lease(0, 1), 0, SIZE)


# --- what may go together ---


@given(st.lists(RANGE, max_size=12), RANGE)
def test_they_are_the_addresses_that_were_noted(noted: list[tuple[int, int]], asked: tuple[int, int]) -> None:
    ranges, addresses = IntervalSet(), set[int]()
    for begin, end in noted:
        ranges.add(begin, end)
        addresses.update(range(begin, end))
    assert ranges.overlaps(*asked) is not addresses.isdisjoint(range(*asked))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((0, 8, "read"), (8, 8, "read"), False),
        ((0, 8, "read"), (7, 8, "read"), True),
        ((0, 8, "read"), (0, 8, "write"), True),
        ((0, 64, "write"), (9, 1, "read"), True),
        ((0, 8, "write"), (0, 8, "write"), False),
        ((0, 8, "write"), (4, 8, "write"), False),
        ((8, 8, "write"), (0, 8, "read"), False),
    ],
)
def test_what_a_read_changes_is_of_no_other_operation(first: Any, second: Any, expected: bool) -> None:
    local = local_memory(bytearray(SIZE), "dst")
    one, other = (
        Operation(handle_of(), local.part(begin, size), is_write=kind == "write")
        for begin, size, kind in (first, second)
    )
    assert one.collides(other) is expected
    assert other.collides(one) is expected


def test_memory_of_two_devices_is_never_the_same() -> None:
    local = local_memory(bytearray(SIZE), "dst")
    other = Operation(handle_of(), replace(local, device="cuda:0"), is_write=False)
    assert not Operation(handle_of(), local, is_write=False).collides(other)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([(1, 8), (1, 8), (1, 8)], [[0, 1, 2]]),
        ([(1, 8), (2, 8), (1, 8), (2, 8)], [[0, 2], [1, 3]]),
        ([(1, 8), (1, INLINE_BYTES), (1, 8)], [[0], [1], [2]]),
        ([(1, INLINE_BYTES // 2), (1, INLINE_BYTES // 2), (1, 1)], [[0, 1], [2]]),
        ([(1, 8 * INLINE_BYTES), (1, 8 * INLINE_BYTES)], [[0], [1]]),
    ],
)
def test_small_operations_of_one_owner_go_together(sizes: list[tuple[int, int]], expected: list[list[int]]) -> None:
    assert batches_of([(handle_of(pid), size) for pid, size in sizes]) == expected


# --- by processes ---


class Owner(Actor):
    """Has rows of numbers that others read and write."""

    def __init__(self, rows: int, columns: int) -> None:
        self.rows = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
        self.buffers = [RDMABuffer(row) for row in self.rows]

    @endpoint
    def lend(self) -> list[RDMABuffer]:
        return self.buffers

    @endpoint
    def drop(self, row: int) -> None:
        self.buffers[row].drop().get()

    @endpoint
    def sums(self) -> list[float]:
        return [float(row.sum(dtype=np.float64)) for row in self.rows]


@pytest.fixture(scope="module")
def procs() -> Iterator[ProcMesh]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MESHBOOK_PRELOAD", "numpy")
        mesh = this_host().spawn_procs({"gpus": 2})
        mesh.initialized.get()
        yield mesh
        mesh.stop().get()
        meshbook.close_session()


def test_many_reads_and_writes_of_several_owners_go_as_one(procs: ProcMesh) -> None:
    owners = procs.spawn("owners", Owner, 40, 250)
    there = [buffer for buffers in owners.lend.call().get().values() for buffer in buffers]
    own = np.arange(40 * 250, dtype=np.float32).reshape(40, 250)
    landed = np.zeros((80, 250), np.float32)
    action = RDMAAction()
    for buffer, row in zip(there, landed, strict=True):
        assert action.read_remote(row, buffer) is action
    action.submit().get()
    assert np.array_equal(landed, np.concatenate([own, own]))
    ones = np.ones(250, np.float32)  # the same memory for all: it is only read
    writing = RDMAAction()
    for buffer in there[::2]:
        writing.write_remote(buffer, ones)
    for _ in range(2):
        ones += 1
        writing.submit(timeout=20).get()
    for sums in owners.sums.call().get().values():
        assert sums == [float(row.sum(dtype=np.float64)) if index % 2 else 750.0 for index, row in enumerate(own)]


def test_large_operations_go_at_the_same_time(procs: ProcMesh) -> None:
    owner = procs.slice(gpus=0).spawn("owner", Owner, 2, INLINE_BYTES)
    first, second = owner.lend.call_one().get()
    landed, source = np.zeros(INLINE_BYTES, np.float32), np.full(INLINE_BYTES, 3, np.float32)
    RDMAAction().read_remote(landed, first).write_remote(second, source).submit().get()
    assert np.array_equal(landed, np.arange(INLINE_BYTES, dtype=np.float32))
    assert owner.sums.call_one().get()[1] == 3 * INLINE_BYTES


def test_failing_ranks_are_named_and_the_others_succeed(procs: ProcMesh) -> None:
    owner = procs.slice(gpus=1).spawn("owner", Owner, 3, 10)
    buffers = owner.lend.call_one().get()
    owner.drop.call_one(1).get()
    landed = np.full((3, 10), -1, np.float32)
    action = RDMAAction()
    for buffer, row in zip(buffers, landed, strict=True):
        action.read_remote(row, buffer)
    with pytest.raises(BufferDropped, match=r"operation 2 of 3, read_remote of 40 bytes from .*owner.*dropped"):
        action.submit().get()
    assert landed[0].tolist() == list(range(10))
    assert landed[2].tolist() == list(range(20, 30))


@pytest.mark.usefixtures("procs")
def test_mistakes_are_reported_at_once() -> None:
    data = np.zeros(16, np.float32)
    buffer = RDMABuffer(data)
    swapped: Any = buffer
    action = RDMAAction()
    for wrong, error, text in [
        (lambda: action.read_remote(swapped, swapped), TypeError, r"dst is an RDMABuffer: read_remote\(dst, src\)"),
        (lambda: action.read_remote(buffer, data), TypeError, "src is a ndarray, not an RDMABuffer"),
        (lambda: action.write_remote(data, buffer), TypeError, "dst is a ndarray, not an RDMABuffer"),
        (lambda: action.write_remote(buffer, buffer), TypeError, "src is an RDMABuffer"),
        (lambda: action.write_remote(buffer, 3), TypeError, "src must be .* not a int"),
        (lambda: action.read_remote(data[:3], buffer), ValueError, "dst has 12 bytes, but the buffer src has 64"),
        (lambda: action.write_remote(buffer, np.zeros(17, np.float32)), ValueError, "src has 68 bytes"),
        (lambda: action.write_remote(buffer, np.zeros((4, 8))[:, ::2]), ValueError, "not contiguous"),
        (lambda: action.read_remote(bytes(64), buffer), ValueError, "read-only"),
        (lambda: action.submit(timeout=-1), ValueError, "zero or more"),
        (lambda: action.fetch_add(buffer, data, 1), NotImplementedError, "endpoint"),
        (lambda: action.compare_and_swap(buffer, data, 1, 2), NotImplementedError, "endpoint"),
    ]:
        with pytest.raises(error, match=text):
            wrong()
    assert action.submit().get() is None  # nothing of these is in it
    action.read_remote(np.zeros(16, np.float32), buffer).write_remote(buffer, data)
    with pytest.raises(ValueError, match=r"operation 3 .*operation 2 "):
        action.read_remote(data, buffer)
    action.submit().get()
    buffer.drop().get()


@pytest.mark.usefixtures("procs")
def test_an_action_can_be_cancelled_and_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer, begun, end = RDMABuffer(bytearray(2 * INLINE_BYTES)), threading.Event(), threading.Event()

    def read(way: Any, job: TransferJob) -> None:
        begun.set()
        assert end.wait(20)
        job.deadline.check(lambda: "a read")

    monkeypatch.setattr(SameProcessBackend, "read", read)
    try:
        for timeout, error in ((20, CallCancelled), (0.01, TransferTimeout)):
            begun.clear()
            future = RDMAAction().read_remote(bytearray(2 * INLINE_BYTES), buffer).submit(timeout=timeout)
            assert begun.wait(20)
            assert error is TransferTimeout or future.cancel()
            with pytest.raises(error):
                future.get(20)
    finally:
        end.set()
    buffer.drop().get()
