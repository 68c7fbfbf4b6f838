"""Leases, the marks of their users, and memory that is kept until it is unused."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshbook.runtime.actor.context import Instance
from meshbook.runtime.errors import BufferDropped, TransferError, TransferTimeout
from meshbook.runtime.geometry import SCALAR
from meshbook.runtime.memory import process_identity
from meshbook.runtime.memory.local_memory import local_memory
from meshbook.runtime.memory.process_identity import ProcessMark, has_ended, own_mark
from meshbook.runtime.rdma.backends import BufferHandle, Deadline, Lease, TransferJob
from meshbook.runtime.rdma.backends.process_memory import ProcessMemoryBackend
from meshbook.runtime.rdma.backends.same_process import SameProcessBackend
from meshbook.runtime.rdma.leases import WORDS_A_BLOCK, LeaseTable, LentMemory
from meshbook.runtime.rdma.progress import PLACES, ActiveTransfers, TransferMark, leases_in_use
from meshbook.runtime.rdma.retention import Retention
from meshbook.runtime.wire.messages import Address

ALICE, BOB = (Instance(name, "actor", SCALAR.point(0), None) for name in ("alice", "bob"))
OWNER = Address("alice", "")


def memory() -> Any:
    return local_memory(bytearray(8), "data")


def word_at(lease: Lease) -> int:
    return ctypes.c_uint64.from_address(lease.word).value


def test_a_lease_is_a_word_that_has_its_number_while_it_lasts() -> None:
    leases = LeaseTable("folder")
    lent = leases.lend(memory(), ALICE)
    assert word_at(lent.lease) == lent.lease.number
    assert lent.lease.folder == "folder"
    assert leases.end(lent.lease.number) is lent
    assert word_at(lent.lease) == 0
    assert leases.end(lent.lease.number) is None


def test_words_are_used_again_and_numbers_never() -> None:
    leases = LeaseTable()
    first = [leases.lend(memory(), ALICE).lease for _ in range(WORDS_A_BLOCK + 1)]
    assert len({lease.word for lease in first}) == len(first)
    leases.end(first[0].number)
    again = leases.lend(memory(), ALICE).lease
    assert again.word == first[0].word
    assert again.number not in {lease.number for lease in first}


def test_garbage_that_is_collected_meanwhile_may_drop_a_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    leases = LeaseTable()
    first = leases.lend(memory(), ALICE).lease.number

    def draw(bits: int) -> int:
        leases.end(first)  # as the `__del__` of an object does it, at any moment
        return 11

    monkeypatch.setattr("meshbook.runtime.rdma.leases.secrets.randbits", draw)
    second = leases.lend(memory(), ALICE).lease.number
    assert leases.all() == [second]


def test_what_an_actor_has_lent() -> None:
    leases = LeaseTable()
    mine = [leases.lend(memory(), ALICE).lease.number for _ in range(2)]
    other = leases.lend(memory(), BOB).lease.number
    assert sorted(leases.of(ALICE)) == sorted(mine)
    assert leases.of(BOB) == [other]
    leases.end(other)
    assert leases.of(BOB) == []
    assert sorted(leases.all()) == sorted(mine)


class DroppedMeanwhile(LeaseTable):
    """Ends a lease that a reader has just found."""

    def find(self, number: int) -> LentMemory | None:
        lent = super().find(number)
        self.end(number)
        return lent


def copy_within(leases: LeaseTable, lent: LentMemory) -> list[int]:
    """Read in the process that lends; how many were at the memory meanwhile."""
    handle = BufferHandle(OWNER, 0, "", own_mark(), None, lent.lease, lent.local.address, lent.local.size)
    job = TransferJob(handle, 0, memory(), Deadline(10))
    users: list[int] = []
    job.moved = lambda count: users.append(len(lent.users))
    SameProcessBackend(OWNER, 0, leases).read(job)
    return users


def test_a_copy_within_the_process_is_at_the_memory_until_it_is_done() -> None:
    leases = LeaseTable()
    lent = leases.lend(memory(), ALICE)
    assert copy_within(leases, lent) == [1]
    assert not lent.users


def test_memory_that_is_dropped_before_a_copy_says_so_is_not_touched() -> None:
    leases = DroppedMeanwhile()
    with pytest.raises(BufferDropped):
        copy_within(leases, leases.lend(memory(), ALICE))


# -- marks ------------------------------------------------------------------------------


def test_ctrl_c_at_the_end_of_a_transfer_leaves_no_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*raised: object) -> None:
        raise KeyboardInterrupt

    leases = LeaseTable(str(tmp_path / "moving"))
    lent = leases.lend(memory(), ALICE)
    where = lent.lease, lent.local.address, lent.local.size
    job = TransferJob(BufferHandle(Address("a", "a"), 0, "owner", own_mark(), None, *where), 0, memory(), Deadline(1))
    backend = ProcessMemoryBackend(ActiveTransfers("worker"))
    monkeypatch.setattr(TransferMark, "__exit__", interrupt)
    with pytest.raises(KeyboardInterrupt):
        backend.read(job)
    assert leases_in_use(tmp_path / "moving") == set()


def test_a_mark_is_visible_to_others_while_it_is_set(tmp_path: Path) -> None:
    moving = ActiveTransfers("worker")
    leases = [Lease(0, number, str(tmp_path / "moving")) for number in (11, 12)]
    assert leases_in_use(tmp_path / "moving") == set()
    with moving.at(leases[0], 1), moving.at(leases[1], 1):
        assert leases_in_use(tmp_path / "moving") == {11, 12}
    assert leases_in_use(tmp_path / "moving") == set()
    moving.close()
    assert list((tmp_path / "moving").iterdir()) == []


def test_a_page_in_use_stays_when_its_process_leaves_the_run(tmp_path: Path) -> None:
    moving, lease = ActiveTransfers("worker"), Lease(0, 7, str(tmp_path))
    with moving.at(lease, 1):
        moving.close()
        assert leases_in_use(tmp_path) == {7}
    assert leases_in_use(tmp_path) == set()
    with pytest.raises(TransferError, match="moves no more data"):
        moving.at(lease, 1)


@pytest.mark.process
def test_a_page_of_a_process_that_was_killed_counts_for_nothing_and_goes(tmp_path: Path) -> None:
    source = f"""
from meshbook.runtime.rdma.progress import ActiveTransfers
from meshbook.runtime.rdma.backends import BufferHandle, Lease
with ActiveTransfers("worker").at(Lease(0, 7, {str(tmp_path)!r}), 1):
    print(flush=True)
    input()
"""
    with subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert leases_in_use(tmp_path) == {7}
        process.send_signal(signal.SIGSTOP)
        assert leases_in_use(tmp_path) == {7}
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert leases_in_use(tmp_path) == set()  # though its parent has not taken note of its end
        assert list(tmp_path.iterdir()) == []


def test_a_page_that_is_being_made_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "zeros").write_bytes(bytes(4096))
    assert leases_in_use(tmp_path) == set()
    assert len(list(tmp_path.iterdir())) == 2


def test_more_transfers_than_a_page_has_places_wait_for_one(tmp_path: Path) -> None:
    moving, lease = ActiveTransfers("worker"), Lease(0, 7, str(tmp_path))
    held = [moving.at(lease, 1) for _ in range(PLACES)]
    for mark in held:
        mark.__enter__()
    with pytest.raises(TransferTimeout), moving.at(lease, 0):
        pass
    entered = threading.Event()

    def enter() -> None:
        with moving.at(lease, 10):
            entered.set()

    thread = threading.Thread(target=enter)
    thread.start()
    held.pop().__exit__()
    assert entered.wait(10)
    thread.join()
    for mark in held:
        mark.__exit__()


def test_no_page_can_be_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ActiveTransfers("worker").at(Lease(0, 7, str(tmp_path / "there" / "is no such folder")), 1)


def test_a_number_that_is_used_again_is_another_process() -> None:
    mark = own_mark()
    assert not mark.has_ended
    assert ProcessMark(mark.pid, mark.started - 1, mark.system).has_ended
    assert has_ended(1 << 22, 0)  # over the largest that Linux gives


def test_without_proc_nothing_is_taken_to_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_identity, "_read_stat", lambda pid: [])
    mark = own_mark.__wrapped__()
    assert mark.started == 0
    assert not mark.has_ended
    assert not ProcessMark(mark.pid, 4711, mark.system).has_ended


# -- what was dropped --------------------------------------------------------------------


class Clock:
    """Calls back when the test says so."""

    def __init__(self) -> None:
        self.due: list[Callable[[], object]] = []

    def later(self, seconds: float, callback: Callable[[], object]) -> None:
        self.due.append(callback)

    def tick(self) -> None:
        due, self.due = self.due, []
        for callback in due:
            callback()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def in_use() -> set[int]:
    return set()


@pytest.fixture
def released() -> list[LentMemory]:
    return []


@pytest.fixture
def retention(clock: Clock, in_use: set[int], released: list[LentMemory]) -> Retention:
    return Retention(lambda: set(in_use), released.append, clock.later)


def dropped(count: int) -> list[LentMemory]:
    leases = LeaseTable()
    return [leases.lend(memory(), ALICE) for _ in range(count)]


def test_unused_memory_is_released_at_once(retention: Retention, clock: Clock, released: list[LentMemory]) -> None:
    lent = dropped(2)
    assert all(future.done() for future in retention.keep(lent))
    assert released == lent
    assert not clock.due


def test_memory_is_kept_while_it_is_used(
    retention: Retention, clock: Clock, in_use: set[int], released: list[LentMemory]
) -> None:
    busy, used_here, free = lent = dropped(3)
    in_use.add(busy.lease.number)
    used_here.users.add(transfer := object())
    futures = retention.keep(lent)
    assert [future.done() for future in futures] == [False, False, True]
    assert retention.released(busy.lease.number) is futures[0]
    assert retention.released(free.lease.number) is None
    used_here.users.discard(transfer)
    clock.tick()
    assert [future.done() for future in futures] == [False, True, True]
    assert len(clock.due) == 1
    in_use.clear()
    clock.tick()
    assert futures[0].done()
    assert not clock.due
    assert released == [free, used_here, busy]


def test_memory_is_kept_while_its_users_are_unknown(clock: Clock, released: list[LentMemory]) -> None:
    """At the limit of descriptors the pages of others cannot be read. The look is made up for."""
    answers: list[set[int] | OSError] = [OSError(errno.EMFILE, ""), OSError(errno.EMFILE, ""), set()]

    def look() -> set[int]:
        if isinstance(answer := answers.pop(0), OSError):
            raise answer
        return answer

    retention, lent = Retention(look, released.append, clock.later), dropped(1)
    (future,) = retention.keep(lent)
    clock.tick()
    assert not future.done()
    clock.tick()
    assert future.done()
    assert released == lent


def test_a_prompt_that_cannot_be_withdrawn_delays_no_others(clock: Clock, caplog: Any) -> None:
    """Neither those who have dropped it, nor others."""

    def fail(lent: LentMemory) -> None:
        raise RuntimeError("can't start new thread")

    futures = Retention(set, fail, clock.later).keep(dropped(2))
    assert all(future.done() for future in futures)
    assert len(caplog.messages) == 2


def test_buffers_in_use_at_the_end_are_returned(retention: Retention, in_use: set[int]) -> None:
    busy, _free = lent = dropped(2)
    in_use.add(busy.lease.number)
    retention.keep(lent)
    assert retention.close(0.01) == [busy]
    in_use.clear()
    assert retention.close(10) == []
