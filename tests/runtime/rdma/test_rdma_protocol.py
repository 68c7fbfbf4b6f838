"""What a process and a host agent say to each other, as bytes."""

from __future__ import annotations

import math
import struct
import subprocess
import sys

import msgspec
import pytest

from meshbook.runtime.errors import BufferDropped, OwnerGone, RefusedMessage, TransferError, TransferTimeout
from meshbook.runtime.memory.process_identity import ProcessMark
from meshbook.runtime.rdma import memory_protocol as protocol
from meshbook.runtime.rdma.backends import BufferHandle, Lease, Unsuitable
from meshbook.runtime.wire.messages import Address

OWNER = Address("procs-1.0", "unix:///run/procs-1.0")
HANDLE = BufferHandle(OWNER, 0, "<root>.<Owner o{}>", ProcessMark(7, 8, "boot:pid"), None, Lease(64, 5), 4096, 100)
KEY = b"k" * 32

# The first thread stops where msgspec would run Python code to prepare a struct; another decodes meanwhile.
DECODE_IN_TWO_THREADS = """
import sys
import threading
from meshbook.runtime.rdma import memory_protocol
from meshbook.runtime.rdma.backends import BufferHandle
data = bytes.fromhex(sys.argv[1])
reached, go_on = threading.Event(), threading.Event()
def stop(frame, event, arg):
    if event == "call" and frame.f_locals.get("obj") is BufferHandle:
        sys.setprofile(None)
        reached.set()
        go_on.wait()
def decode_first():
    sys.setprofile(stop)
    memory_protocol.unpack_request(data)
    reached.set()
thread = threading.Thread(target=decode_first)
thread.start()
reached.wait()
print(memory_protocol.unpack_request(data).offset)
go_on.set()
thread.join()
"""


def test_a_request_arrives_as_it_was() -> None:
    request = protocol.TransferRequest(HANDLE, 10, 90, True, 1.5)
    data = protocol.pack_request(request)
    assert protocol.unpack_length(protocol.pack_length(len(data))) == len(data)
    assert protocol.unpack_request(data) == request


@pytest.mark.process
def test_two_threads_may_decode_the_first_requests() -> None:
    data = protocol.pack_request(protocol.TransferRequest(HANDLE, 10, 90, True, 1.5))
    command = [sys.executable, "-c", DECODE_IN_TWO_THREADS, data.hex()]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "10\n", "")


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
    with pytest.raises(protocol.DamagedData, match="4,294,967,295 bytes"):
        protocol.unpack_length(struct.pack("<I", 0xFFFFFFFF))
    long = msgspec.structs.replace(HANDLE, actor="x" * protocol.MOST_BYTES)
    with pytest.raises(Unsuitable, match="too long"):
        protocol.pack_request(protocol.TransferRequest(long, 0, 1, False, 1.0))


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
    made = protocol.unpack_answer(protocol.pack_answer(error))
    assert type(made) is kind
    assert str(made) == "gone"


def test_an_answer_that_is_none() -> None:
    assert protocol.unpack_answer(protocol.pack_answer()) is None
    for answer in (b"", b"HTTP/1.1"):
        with pytest.raises(TransferError, match="invalid answer"):
            protocol.unpack_answer(answer)


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
        with pytest.raises(RefusedMessage, match="not a host agent of this version"):
            protocol.unpack_greeting(other)


# -- what is sealed --------------------------------------------------------------------------------

PIECES = [b"the first piece ", b"the second piece", b"the third piece "]
NONCES = bytes(2 * protocol.NONCE)


def seal(who: str = "agent", nonces: bytes = NONCES, key: bytes = KEY) -> list[bytes]:
    """Return the pieces as one side sends them."""
    sealing, made = protocol.Seal(key, who, nonces), []
    for piece in PIECES:
        made.append(bytearray(len(piece) + protocol.TAG))
        sealing.seal(piece, made[-1])
    return [bytes(each) for each in made]


def open_all(sealed: list[bytes]) -> list[bytes]:
    """Open what the agent has sent."""
    opening, opened = protocol.Seal(KEY, "agent", NONCES), []
    for each in sealed:
        opened.append(bytearray(max(0, len(each) - protocol.TAG)))
        opening.open(each, opened[-1])
    return [bytes(each) for each in opened]


def test_what_is_sealed_is_opened_in_its_order_and_not_read_on_the_way() -> None:
    sealed = seal()
    assert open_all(sealed) == PIECES
    assert not any(piece in each for piece in PIECES for each in sealed)


FIRST, SECOND, THIRD = seal()


@pytest.mark.parametrize(
    "changed",
    [
        *([FIRST[:at] + bytes([FIRST[at] ^ 1]) + FIRST[at + 1 :]] for at in (0, len(PIECES[0]), len(FIRST) - 1)),
        [SECOND, FIRST],
        [FIRST, FIRST],
        [FIRST, THIRD],
        [FIRST[:-1]],
        [FIRST + b"x"],
        [FIRST[: protocol.TAG]],
        seal("process"),
        seal(nonces=b"x" * len(NONCES)),
        seal(key=b"x" * 32),
    ],
    ids=[
        *("flipped", "flipped tag", "flipped end", "swapped", "replayed", "left out", "cut", "longer", "empty"),
        *("sent back", "of another connection", "of another run"),
    ],
)
def test_what_was_changed_is_detected(changed: list[bytes]) -> None:
    with pytest.raises(protocol.DamagedData):
        open_all(changed)
