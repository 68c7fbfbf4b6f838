"""What a process and a host agent say to each other, as bytes."""

from __future__ import annotations

import math
import struct

import msgspec
import pytest

from meshbook.runtime.errors import BufferDropped, OwnerGone, RefusedMessage, TransferError, TransferTimeout
from meshbook.runtime.memory.identity import ProcessMark
from meshbook.runtime.rdma import protocol
from meshbook.runtime.rdma.handle import Handle, Lease
from meshbook.runtime.rdma.ways import Unsuitable
from meshbook.runtime.wire.messages import Address

OWNER = Address("procs-1.0", "unix:///run/procs-1.0")
HANDLE = Handle(OWNER, 0, "<root>.<Owner o{}>", ProcessMark(7, 8, "boot:pid"), None, Lease(64, 5), 4096, 100)
KEY = b"k" * 32


def test_a_request_arrives_as_it_was() -> None:
    request = protocol.Request(HANDLE, 10, 90, True, 1.5)
    data = protocol.pack_request(request)
    length = protocol.unpack_length(data[: protocol.LENGTH_BYTES])
    assert length == len(data) - protocol.LENGTH_BYTES
    assert protocol.unpack_request(data[protocol.LENGTH_BYTES :]) == request


@pytest.mark.parametrize(
    "changes",
    [
        {"offset": -1},
        {"size": 0},
        {"size": -5},
        {"offset": 11},
        {"size": 1 << 62},
        {"seconds": -1.0},
        {"seconds": math.inf},
        {"seconds": math.nan},
    ],
    ids=str,
)
def test_what_is_outside_of_the_buffer_or_of_time_is_refused(changes: dict[str, float]) -> None:
    fields = {"handle": HANDLE, "offset": 10, "size": 90, "is_write": False, "seconds": 1.0} | changes
    encoded = msgspec.msgpack.encode(list(fields.values()))
    with pytest.raises(RefusedMessage, match="damaged request"):
        protocol.unpack_request(encoded)


@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.1", b"\x95\x01", b"\xff" * 100])
def test_garbage_is_no_request(data: bytes) -> None:
    with pytest.raises(RefusedMessage):
        protocol.unpack_request(data)


def test_a_huge_request_is_refused_before_it_is_read() -> None:
    with pytest.raises(RefusedMessage, match="4,294,967,295 bytes"):
        protocol.unpack_length(struct.pack("<I", 0xFFFFFFFF))
    long = msgspec.structs.replace(HANDLE, actor="x" * protocol.MOST_BYTES)
    with pytest.raises(Unsuitable, match="too long"):
        protocol.pack_request(protocol.Request(long, 0, 1, False, 1.0))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BufferDropped("gone"), BufferDropped),
        (OwnerGone("gone"), OwnerGone),
        (TransferTimeout("gone"), TransferTimeout),
        (Unsuitable("gone"), Unsuitable),
        (TransferError("gone"), TransferError),
        (ValueError("gone"), TransferError),
    ],
)
def test_errors_travel(error: Exception, kind: type[Exception]) -> None:
    data = protocol.pack_head(error)
    status, length = protocol.unpack_head(data[: protocol.HEAD_BYTES])
    made = protocol.make_error(status, data[protocol.HEAD_BYTES :][:length])
    assert type(made) is kind
    assert str(made) == "gone"


def test_an_answer_that_is_none() -> None:
    assert protocol.unpack_head(protocol.pack_head()) == (protocol.OK, 0)
    for head in (b"HTTP/1.1", b"\x00" * 4 + b"\xff" * 4):
        with pytest.raises(TransferError, match="nonsense"):
            protocol.unpack_head(head)


def test_a_proof_is_of_one_key_one_side_and_one_meeting() -> None:
    proof = protocol.prove(KEY, "process", b"a" * 32, b"b" * 32)
    assert protocol.is_proof(proof, KEY, "process", b"a" * 32, b"b" * 32)
    assert not protocol.is_proof(proof, b"other", "process", b"a" * 32, b"b" * 32)
    assert not protocol.is_proof(proof, KEY, "agent", b"a" * 32, b"b" * 32)
    assert not protocol.is_proof(proof, KEY, "process", b"b" * 32, b"a" * 32)
    assert not protocol.is_proof(proof, KEY, "process", b"a" * 32, b"c" * 32)


def test_a_greeting_of_another_kind_or_version_is_none() -> None:
    greeting = protocol.pack_greeting(b"n" * 32)
    assert protocol.unpack_greeting(greeting) == b"n" * 32
    for other in (b"x" + greeting[1:], greeting[:9] + b"\x07" + greeting[10:]):
        with pytest.raises(RefusedMessage, match="no host agent of this version"):
            protocol.unpack_greeting(other)
