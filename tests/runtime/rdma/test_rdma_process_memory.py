"""Cross Memory Attach on this very process: what is told where memory is gone."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from meshbook.runtime.errors import BufferDropped, TransferError
from meshbook.runtime.memory.identity import own_mark
from meshbook.runtime.memory.local import local_memory
from meshbook.runtime.rdma.handle import Handle, Lease
from meshbook.runtime.rdma.progress import InProgress
from meshbook.runtime.rdma.ways import Deadline, Job
from meshbook.runtime.rdma.ways.process_memory import ProcessMemory
from meshbook.runtime.wire.messages import Address

NEVER_MAPPED = 64  # an address
OWNER = Address("procs-1.0", "memory://procs-1.0")


@pytest.mark.parametrize(("word", "expected"), [(0, BufferDropped), (6, BufferDropped), (5, TransferError)])
@pytest.mark.parametrize("is_write", [False, True])
def test_of_memory_that_is_gone_the_lease_is_told_first(
    word: int, expected: type[TransferError], is_write: bool, tmp_path: Path
) -> None:
    lease_word = ctypes.c_uint64(word)
    lease = Lease(ctypes.addressof(lease_word), 5, str(tmp_path))
    handle = Handle(OWNER, 0, "<root>.<Owner o{}>", own_mark(), None, lease, NEVER_MAPPED, 64)
    in_progress = InProgress("procs-1.1")
    way, job = ProcessMemory(in_progress), Job(handle, 0, local_memory(bytearray(64), "dst"), Deadline(10))
    with pytest.raises(TransferError) as failure:
        (way.write if is_write else way.read)(job)
    in_progress.close()
    assert failure.type is expected
