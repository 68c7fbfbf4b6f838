"""Cross Memory Attach on this very process: what is told where memory is gone, and when it is lent no more."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from meshbook.runtime.errors import BufferDropped, OwnerGone, TransferError
from meshbook.runtime.memory import process
from meshbook.runtime.memory.local_memory import local_memory
from meshbook.runtime.memory.process_identity import own_mark
from meshbook.runtime.rdma.backends import BufferHandle, Deadline, Lease, TransferJob
from meshbook.runtime.rdma.backends.process_memory import ProcessMemoryBackend
from meshbook.runtime.rdma.progress import ActiveTransfers
from meshbook.runtime.wire.messages import Address

NEVER_MAPPED = 64  # an address
NUMBER = 5  # of the lease
OWNER = Address("procs-1.0", "memory://procs-1.0")


class Lent:
    """Memory of this process as another one's, and the way there."""

    def __init__(self, folder: str) -> None:
        self.word = ctypes.c_uint64(NUMBER)
        self.data = bytearray(b"theirs")
        self.ours = bytearray(b"our   ")
        lease, local = Lease(ctypes.addressof(self.word), NUMBER, folder), local_memory(self.data, "data")
        self.handle = BufferHandle(OWNER, 0, "<Owner o>", own_mark(), None, lease, local.address, local.size)
        self.in_progress = ActiveTransfers("procs-1.1")
        self._way = ProcessMemoryBackend(self.in_progress)

    def move(self, *, is_write: bool) -> None:
        job = TransferJob(self.handle, 0, local_memory(self.ours, "ours"), Deadline(10))
        (self._way.write if is_write else self._way.read)(job)


@pytest.fixture
def lent(tmp_path: Path) -> Iterator[Lent]:
    made = Lent(str(tmp_path))
    yield made
    made.in_progress.close()


def test_what_is_lent_no_more_is_not_written_to(lent: Lent) -> None:
    lent.word.value = 0
    with pytest.raises(BufferDropped):
        lent.move(is_write=True)
    assert lent.data == b"theirs"


@pytest.mark.parametrize("is_write", [False, True])
def test_a_lease_that_ends_during_a_transfer_is_an_error(
    lent: Lent, is_write: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "write" if is_write else "read"
    move = getattr(process, name)

    def end_after_the_data(pid: int, pieces: Any) -> None:
        for piece in pieces:
            move(pid, [piece])
            if piece[1] == lent.handle.address:
                lent.word.value = 0

    monkeypatch.setattr(process, name, end_after_the_data)
    with pytest.raises(BufferDropped):
        lent.move(is_write=is_write)
    assert lent.data == lent.ours  # the bytes were moved


@pytest.mark.parametrize("is_write", [False, True])
def test_a_process_with_the_pid_of_an_ended_owner_is_not_written_to(lent: Lent, is_write: bool) -> None:
    before = msgspec.structs.replace(own_mark(), started=own_mark().started - 1)
    lent.handle = msgspec.structs.replace(lent.handle, process=before)
    lent.word.value = 17  # whatever lies there now
    with pytest.raises(OwnerGone, match="has ended"):
        lent.move(is_write=is_write)
    assert lent.data == b"theirs"


@pytest.mark.parametrize(("word", "expected"), [(0, BufferDropped), (6, BufferDropped), (5, TransferError)])
@pytest.mark.parametrize("is_write", [False, True])
def test_for_freed_memory_the_ended_lease_is_reported_first(
    word: int, expected: type[TransferError], is_write: bool, tmp_path: Path
) -> None:
    lease_word = ctypes.c_uint64(word)
    lease = Lease(ctypes.addressof(lease_word), 5, str(tmp_path))
    handle = BufferHandle(OWNER, 0, "<root>.<Owner o{}>", own_mark(), None, lease, NEVER_MAPPED, 64)
    in_progress = ActiveTransfers("procs-1.1")
    backend, job = (
        ProcessMemoryBackend(in_progress),
        TransferJob(handle, 0, local_memory(bytearray(64), "dst"), Deadline(10)),
    )
    with pytest.raises(TransferError) as failure:
        (backend.write if is_write else backend.read)(job)
    in_progress.close()
    assert failure.type is expected
