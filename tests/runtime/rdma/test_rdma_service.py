"""What a process answers of its buffers by messages: pieces, refusals, memory of GPUs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from meshbook.runtime.actor.future import Future
from meshbook.runtime.memory.local_memory import LocalMemory, local_memory
from meshbook.runtime.rdma.leases import LeaseTable, LentMemory
from meshbook.runtime.rdma.service import RDMAService, parcel_of, put_bytes


@dataclass
class Port:
    answers: list[Any] = field(default_factory=list)

    def send(self, value: Any) -> None:
        self.answers.append(value)

    def exception(self, error: BaseException) -> None:
        self.answers.append(error)


class Lender:
    def __init__(self) -> None:
        self.leases = LeaseTable()

    def end(self, number: int) -> Future[None]:
        self.leases.end(number)
        return Future.completed(None)


@pytest.fixture
def lender() -> Lender:
    return Lender()


def ask(lender: Lender, endpoint: str, *arguments: Any) -> Any:
    port = Port()
    getattr(RDMAService(lender), endpoint)(port, *arguments)
    [answer] = port.answers
    return answer


def lend(lender: Lender, data: Any) -> int:
    owner: Any = "somebody"
    return lender.leases.lend(local_memory(data, "data"), owner).lease.number


def test_pieces_are_read_and_written_until_it_is_dropped(lender: Lender) -> None:
    data = bytearray(b"0123456789")
    number = lend(lender, data)
    assert bytes(ask(lender, "read", number, 2, 3).raw()) == b"234"
    assert ask(lender, "write", number, 4, memoryview(b"xy")) == "ok"
    assert data == b"0123xy6789"
    assert ask(lender, "drop", number) is None
    assert ask(lender, "read", number, 0, 1) is None
    assert ask(lender, "write", number, 0, b"z") == "dropped"
    assert data == b"0123xy6789"


class DroppedMeanwhile(LeaseTable):
    """Lends no more what somebody has just found."""

    def find(self, number: int) -> LentMemory | None:
        lent = super().find(number)
        self.end(number)
        return lent


def test_a_buffer_dropped_while_a_request_arrives_is_not_touched(lender: Lender) -> None:
    lender.leases = DroppedMeanwhile()
    data = bytearray(b"0123456789")
    assert ask(lender, "write", lend(lender, data), 0, b"z") == "dropped"
    assert ask(lender, "read", lend(lender, data), 0, 1) is None
    assert data == b"0123456789"


def test_what_may_only_be_read_is_not_written(lender: Lender) -> None:
    data = b"0123456789"
    assert ask(lender, "write", lend(lender, data), 0, b"z") == "read-only"
    assert data == b"0123456789"


@pytest.mark.parametrize(("offset", "size"), [(-1, 2), (9, 2), (0, -1), (11, 0)])
def test_nothing_outside_is_touched(lender: Lender, offset: int, size: int) -> None:
    number = lend(lender, bytearray(10))
    assert isinstance(ask(lender, "read", number, offset, size), ValueError)
    if size > 0:
        assert isinstance(ask(lender, "write", number, offset, bytes(size)), ValueError)
    lent = lender.leases.find(number)
    assert lent is not None
    assert not lent.users


def test_memory_of_a_gpu_goes_through_that_of_the_cpu() -> None:
    """With a tensor that only says so: what is copied where is the same."""
    torch = pytest.importorskip("torch")
    tensor = torch.arange(10, dtype=torch.uint8)
    there = LocalMemory(tensor.data_ptr(), 10, "cuda:0", True, tensor, tensor)
    assert bytes(parcel_of(there.part(2, 3)).raw()) == bytes([2, 3, 4])
    put_bytes(there.part(8, 2), memoryview(b"\x63\x64"))
    assert tensor.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 99, 100]
