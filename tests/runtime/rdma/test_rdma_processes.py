"""Buffers of other processes of this host: the owner takes no part, what goes wrong is told, and no byte is wrong."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import mmap
import os
import pickle
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from meshbook import Actor, RDMABuffer, endpoint
from meshbook.runtime.actor.context import CURRENT
from meshbook.runtime.config import Settings
from meshbook.runtime.errors import (
    BufferDropped,
    CallCancelled,
    OwnerGone,
    SupervisionError,
    TransferError,
    TransferTimeout,
)
from meshbook.runtime.hosts.session import Session
from meshbook.runtime.rdma.backends import process_memory
from tests.support import PATIENCE

SIZE = 3 << 20
CAP_SYS_PTRACE = 19
pytestmark = pytest.mark.process


class Owner(Actor):
    """Lends memory. `data` is forgotten here once it is lent, so that the lease alone keeps it."""

    lent_last: Any = None

    @endpoint
    def lend(self, size: int = SIZE, value: int = 1) -> RDMABuffer:
        data = np.full(size, value, np.uint8)
        self.data = Owner.lent_last = weakref.ref(data)
        self.buffer = RDMABuffer(data)
        return self.buffer

    @endpoint
    def is_kept(self) -> bool:
        return self.data() is not None

    @endpoint
    def was_kept(self) -> bool:
        """What an actor of this process has lent last, which may have ended."""
        return Owner.lent_last() is not None

    @endpoint
    def has(self, value: int) -> bool:
        return bool((self.data() == value).all())

    @endpoint
    def begin_to_drop(self) -> bool:
        """Whether that was all."""
        self.dropping = self.buffer.drop()
        return self.dropping.done()

    @endpoint
    def wait_dropped(self) -> None:
        self.dropping.get(PATIENCE)

    @endpoint
    def lend_unmapped(self) -> RDMABuffer:
        memory = mmap.mmap(-1, SIZE)
        buffer = RDMABuffer(memory)
        libc = ctypes.CDLL(None)
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        libc.munmap(buffer._handle.address, SIZE)
        self.memory = memory
        return buffer

    @endpoint
    def be_private(self) -> None:
        """Keep processes without a privilege out."""
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def fail(self) -> None:
        raise SystemExit("on purpose")

    @endpoint
    def hold(self, gate: str) -> None:
        """Keep Python from running in this process, until somebody writes there. To open it waits for that as well."""
        path = gate.encode()
        libc = ctypes.PyDLL(None)  # keeps the GIL
        libc.close(libc.open(path, os.O_WRONLY))  # whoever reads there knows that Python is held by now
        libc.close(libc.open(path, os.O_RDONLY))

    # -- of what another one lends --

    @endpoint
    def drop(self, buffer: RDMABuffer) -> None:
        buffer.drop().get(PATIENCE)

    @endpoint
    def read_until(self, buffer: RDMABuffer, gate: str) -> None:
        """Stop in the midst of a transfer, until somebody writes there."""

        def wait(done: int, total: int) -> None:
            if done < total:
                Path(gate).read_bytes()

        buffer.read_into(np.zeros(buffer.size() + (64 << 20), np.uint8), progress=wait).get(PATIENCE)

    @endpoint
    def read_without_privilege(self, buffer: RDMABuffer) -> tuple[bool, str]:
        """What a process may do that is no superuser's."""
        head, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        libc = ctypes.CDLL(None)
        libc.capget(head, data)
        data[0] &= ~(1 << CAP_SYS_PTRACE)  # of this thread; and nothing that it could have it back from
        data[1] &= ~(1 << CAP_SYS_PTRACE)
        assert libc.capset(head, data) == 0
        target = np.zeros(buffer.size(), np.uint8)
        buffer.read_into(target[:8], 0, 8).get(PATIENCE)
        buffer.read_into(target).get(PATIENCE)
        return bool((target == 1).all()), buffer.explain()


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Session, Any, Any]]:
    """A session, an owner's process, and another one's."""
    session = Session(Settings(runtime_dir=os.environ["MESHBOOK_RUNTIME_DIR"], preload="numpy"))
    token = CURRENT.set(session.context)
    procs = session.host.spawn_procs({"gpus": 2})
    procs.initialized.get(PATIENCE)  # so that all processes are there when the first test begins
    CURRENT.reset(token)
    yield session, procs.slice(gpus=0), procs.slice(gpus=1)
    session.close()


@pytest.fixture
def session(shared: tuple[Session, Any, Any]) -> Iterator[Session]:
    token = CURRENT.set(shared[0].context)
    yield shared[0]
    CURRENT.reset(token)


@pytest.fixture
def owner(session: Session, shared: tuple[Session, Any, Any]) -> Iterator[Any]:
    made: Any = shared[1].spawn("owner", Owner)
    yield made
    with contextlib.suppress(SupervisionError):  # the test may have ended it
        made.stop().get(PATIENCE)


@pytest.fixture
def peer(session: Session, shared: tuple[Session, Any, Any]) -> Iterator[Any]:
    made: Any = shared[2].spawn("peer", Owner)
    yield made
    with contextlib.suppress(SupervisionError):  # the test may have ended it
        made.stop().get(PATIENCE)


@pytest.fixture
def mortal(session: Session) -> Iterator[Any]:
    """An owner in a process of its own."""
    procs = session.host.spawn_procs()
    yield procs.spawn("mortal", Owner)
    with contextlib.suppress(SupervisionError):  # the test may have ended it
        procs.stop().get(PATIENCE)


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    path = tmp_path / "gate"
    os.mkfifo(path)
    return path


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transfers of this process have several pieces."""
    monkeypatch.setattr(process_memory, "PIECE", 1 << 20)


def lend(owner: Any, size: int = SIZE, value: int = 1) -> RDMABuffer:
    made: RDMABuffer = owner.lend.call_one(size, value).get(PATIENCE)
    return made


def read(buffer: RDMABuffer, **options: Any) -> Any:
    target = np.zeros(buffer.size(), np.uint8)
    buffer.read_into(target, **options).get(PATIENCE)
    return target


def process_of(owner: Any) -> psutil.Process:
    return psutil.Process(owner.pid.call_one().get(PATIENCE))


# -- what it is for -------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 4096, 5 << 20])
def test_bytes_arrive_as_they_are(owner: Any, size: int, small_pieces: None) -> None:
    buffer = lend(owner, size)
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    buffer.write_from(data, checksum=True).get(PATIENCE)
    assert (read(buffer, checksum=True) == data).all()
    part = np.zeros(size, np.uint8)
    buffer.read_into(part, size // 3, size // 2).get(PATIENCE)
    assert (part[: size // 2] == data[size // 3 : size // 3 + size // 2]).all()
    assert not part[size // 2 :].any()
    buffer.write_from(b"xyz", size - 1, 1).get(PATIENCE)
    assert read(buffer)[-1] == ord("x")
    assert "-> process memory" in buffer.explain()


def test_the_owner_takes_no_part(owner: Any, gate: Path) -> None:
    """While C code holds its GIL, and while it is stopped."""
    buffer, process = lend(owner), process_of(owner)
    held = owner.hold.call_one(str(gate))
    with gate.open("rb"):
        assert (read(buffer) == 1).all()
        process.suspend()
        buffer.write_from(np.full(SIZE, 2, np.uint8)).get(PATIENCE)
        assert (read(buffer, checksum=True) == 2).all()
        process.resume()
    with gate.open("wb"):
        held.get(PATIENCE)
    assert owner.has.call_one(2).get(PATIENCE)


def refuse(done: int, total: int) -> None:
    raise FileNotFoundError("a file of the user's")


def test_an_event_loop_goes_on_meanwhile(owner: Any, small_pieces: None) -> None:
    """And what the user's function raises ends the transfer."""
    buffer = lend(owner)

    async def follow() -> list[tuple[int, int]]:
        reports: list[tuple[int, int]] = []
        await buffer.read_into(np.zeros(SIZE, np.uint8), progress=lambda done, total: reports.append((done, total)))
        return reports

    reports = asyncio.run(follow())
    assert reports[0] == (1 << 20, SIZE)
    assert reports[-1] == (SIZE, SIZE)
    with pytest.raises(FileNotFoundError, match="of the user's"):
        read(buffer, progress=refuse)


def test_traffic_is_shown_with_the_ranks_that_cannot_report_it(session: Session) -> None:
    procs = session.host.spawn_procs({"gpus": 2})
    buffer = lend(procs.slice(gpus=0).spawn("owner", Owner))
    for _ in range(2):
        read(buffer)
    buffer.write_from(b"abc").get(PATIENCE)
    procs.slice(gpus=1).kill().get(PATIENCE)
    table = procs.transfers().get(PATIENCE)
    assert [(row.by, row.owner, row.backend, row.direction, row.bytes, row.transfers) for row in table] == [
        ("controller", "rank 0", "process memory", "read", 2 * SIZE, 2),
        ("controller", "rank 0", "process memory", "write", 3, 1),
    ]
    assert table.silent == ("rank 1",)
    procs.stop().get(PATIENCE)
    with pytest.raises(RuntimeError, match="already been stopped"):
        procs.transfers()


# -- what can go wrong -----------------------------------------------------------------------


def test_an_owner_that_was_killed(mortal: Any, small_pieces: None) -> None:
    buffer, process = lend(mortal), process_of(mortal)

    def kill(done: int, total: int) -> None:
        process.kill()
        process.wait(PATIENCE)

    with pytest.raises(OwnerGone, match=f"mortal.*pid {process.pid}.* has ended"):
        read(buffer, progress=kill)
    for move in (buffer.read_into, buffer.write_from):
        with pytest.raises(OwnerGone):
            move(np.zeros(SIZE, np.uint8)).get(PATIENCE)
    assert buffer.drop().get(PATIENCE) is None


@pytest.mark.parametrize("is_write", [False, True])
def test_memory_that_is_dropped_in_the_midst_is_kept_until_then(owner: Any, small_pieces: None, is_write: bool) -> None:
    buffer = lend(owner)
    found: list[bool] = []

    def drop(done: int, total: int) -> None:
        found[:] = [owner.begin_to_drop.call_one().get(PATIENCE), owner.is_kept.call_one().get(PATIENCE)]

    move = buffer.write_from if is_write else buffer.read_into
    with pytest.raises(BufferDropped):
        move(np.zeros(SIZE, np.uint8), progress=drop).get(PATIENCE)
    assert found == [False, True]
    owner.wait_dropped.call_one().get(PATIENCE)
    assert not owner.is_kept.call_one().get(PATIENCE)
    with pytest.raises(BufferDropped, match="get a new buffer"):
        move(np.zeros(SIZE, np.uint8)).get(PATIENCE)


def test_a_process_killed_in_the_middle_delays_nothing(owner: Any, mortal: Any, gate: Path) -> None:
    buffer, process = lend(owner, (64 << 20) + 1), process_of(mortal)
    reading = mortal.read_until.call_one(buffer, str(gate))
    with gate.open("wb"):
        process.suspend()
        assert not owner.begin_to_drop.call_one().get(PATIENCE)
        assert owner.is_kept.call_one().get(PATIENCE)
        process.kill()
        owner.wait_dropped.call_one().get(PATIENCE)
    assert not owner.is_kept.call_one().get(PATIENCE)
    assert reading.exception(PATIENCE) is not None


def test_bytes_of_memory_that_is_used_again_are_never_seen(owner: Any) -> None:
    """Dropping in a race with a reader: what it is given is whole, or it is told. The next round has the same pages."""
    for value in range(100):
        buffer = lend(owner, 1 << 16, value)
        dropping = owner.begin_to_drop.call_one()
        with contextlib.suppress(BufferDropped):
            while True:
                assert (read(buffer) == value).all()
        dropping.get(PATIENCE)


def test_dropping_from_elsewhere(owner: Any, peer: Any) -> None:
    buffer = lend(owner)
    peer.drop.call_one(buffer).get(PATIENCE)
    assert not owner.is_kept.call_one().get(PATIENCE)
    peer.drop.call_one(buffer).get(PATIENCE)
    assert buffer.drop().get(PATIENCE) is None
    mine = RDMABuffer(bytearray(8))
    assert pickle.loads(pickle.dumps(mine)) == mine != buffer
    assert len({mine, pickle.loads(pickle.dumps(mine)), buffer}) == 2
    peer.drop.call_one(mine).get(PATIENCE)
    with pytest.raises(BufferDropped):
        read(mine)


@pytest.mark.parametrize("end", ["stop", "fail"])
def test_an_actor_that_ends_drops_what_it_lent(shared: tuple[Session, Any, Any], owner: Any, end: str) -> None:
    other: Any = shared[1].spawn("other", Owner)
    theirs, buffer = lend(owner), lend(other)
    if end == "stop":
        other.stop().get(PATIENCE)
    else:
        with pytest.raises(Exception, match="on purpose"):
            other.fail.call_one().get(PATIENCE)
        other.stop().get(PATIENCE)
    with pytest.raises(BufferDropped, match="its actor has ended"):
        read(buffer)
    assert (read(theirs) == 1).all()


def test_memory_of_an_actor_that_ends_in_the_midst_is_kept_until_then(
    shared: tuple[Session, Any, Any], owner: Any, small_pieces: None
) -> None:
    other: Any = shared[1].spawn("other", Owner)
    found: list[bool] = []

    def end(done: int, total: int) -> None:
        other.stop().get(PATIENCE)
        found.append(owner.was_kept.call_one().get(PATIENCE))

    with pytest.raises(BufferDropped):
        read(lend(other), progress=end)
    assert found == [True]


def test_memory_that_is_not_there_any_more(mortal: Any) -> None:
    buffer = mortal.lend_unmapped.call_one().get(PATIENCE)
    for move in (buffer.read_into, buffer.write_from):
        with pytest.raises(TransferError, match="is no longer mapped"):
            move(np.zeros(SIZE, np.uint8)).get(PATIENCE)


def test_a_process_that_may_not_reach_the_owner_goes_another_way(mortal: Any, peer: Any) -> None:
    mortal.be_private.call_one().get(PATIENCE)
    is_right, explained = peer.read_without_privilege.call_one(lend(mortal)).get(PATIENCE)
    assert is_right
    assert (
        "   process memory  this process is not permitted to access the owner's memory (Operation not permitted)"
        in explained
    )


def test_a_disk_that_is_full(mortal: Any, monkeypatch: pytest.MonkeyPatch, session: Session) -> None:
    """Where no word can be left for the owner, data goes a way on which he sees to that himself."""

    def fail(lease: Any, seconds: float) -> None:
        raise OSError(28, "No space left on device")

    buffer = lend(mortal)
    monkeypatch.setattr(session.node.data_plane.in_progress, "at", fail)
    assert (read(buffer) == 1).all()
    assert "No space left on device" in buffer.explain()


def test_time_that_has_passed(owner: Any, small_pieces: None) -> None:
    buffer = lend(owner)
    for size in (8, SIZE):
        with pytest.raises(TransferTimeout, match="was not done after 0 s"):
            buffer.read_into(np.zeros(SIZE, np.uint8), 0, size, timeout=0).get(PATIENCE)


def test_a_transfer_that_is_cancelled_stops(owner: Any, small_pieces: None) -> None:
    buffer = lend(owner)
    reports: list[int] = []

    def cancel(done: int, total: int) -> None:
        reports.append(done)
        started.wait(PATIENCE)
        future.cancel()

    started = threading.Event()
    future = buffer.write_from(np.full(SIZE, 9, np.uint8), progress=cancel)
    started.set()
    with pytest.raises(CallCancelled):
        future.get(PATIENCE)
    assert reports == [1 << 20]
    assert not owner.has.call_one(9).get(PATIENCE)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        ((np.zeros(7, np.uint8),), {}, ValueError, "dst has 7 bytes, but 8 are to be read"),
        (
            (np.zeros((8, 2), np.uint8)[:, 0],),
            {},
            ValueError,
            "not contiguous .*; read into contiguous memory",
        ),
        ((b"12345678",), {}, ValueError, "dst is read-only"),
        (("text",), {}, TypeError, "dst must be .* not a str"),
        ((np.zeros(8, np.uint8), 1, 8), {}, ValueError, "bytes 1 to 9 exceed the buffer"),
        ((np.zeros(8, np.uint8), -1), {}, ValueError, "exceed the buffer"),
        ((np.zeros(8, np.uint8), 0, -1), {}, ValueError, "exceed the buffer"),
        ((np.zeros(8, np.uint8), 1.5), {}, TypeError, "float"),
        ((np.zeros(8, np.uint8),), {"timeout": -1}, ValueError, "zero or more"),
        ((np.zeros(8, np.uint8),), {"timeout": float("nan")}, ValueError, "finite"),
        ((np.zeros(8, np.uint8),), {"timeout": None}, TypeError, "must be a number of seconds"),
    ],
)
def test_what_cannot_work_is_refused_at_once(
    session: Session, arguments: Any, options: Any, error: type[Exception], words: str
) -> None:
    buffer = RDMABuffer(bytearray(8))
    with pytest.raises(error, match=words):
        buffer.read_into(*arguments, **options)
    buffer.drop()


def test_writes_that_do_not_fit(session: Session) -> None:
    buffer = RDMABuffer(bytearray(8))
    with pytest.raises(ValueError, match="bytes 0 to 9 exceed the buffer"):
        buffer.write_from(bytes(9))
    with pytest.raises(ValueError, match="src has 3 bytes, but 4 are to be written"):
        buffer.write_from(bytes(3), 0, 4)
    with pytest.raises(ValueError, match="is read-only"):
        RDMABuffer(b"12345678").write_from(bytes(8))


def test_a_copy_within_the_process_where_both_overlap(session: Session) -> None:
    data = bytearray(range(100))
    buffer = RDMABuffer(data)
    buffer.read_into(memoryview(data)[1:], 0, 99).get(PATIENCE)
    assert data == bytes([0, *range(99)])
    assert "-> same process" in buffer.explain()
    buffer.drop().get(PATIENCE)
    with pytest.raises(BufferDropped):
        buffer.read_into(bytearray(100)).get(PATIENCE)


def test_a_forked_child_cannot_move_data(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a copy of the memory, and of the page on which its parent says what it is at."""
    monkeypatch.setattr(session.node.data_plane, "pid", os.getppid())
    with pytest.raises(RuntimeError, match="it was forked from"):
        RDMABuffer(bytearray(8))
