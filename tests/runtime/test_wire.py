"""Frames: every message survives the round trip, and nothing but a message is accepted."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbook.runtime.errors import ExitReport, MessageTooLarge, RefusedMessage
from meshbook.runtime.wire.frames import ALIGNMENT, VERSION, pack, unpack
from meshbook.runtime.wire.messages import Address, Call, Creator, Credit, Down, Hello, Message, Reply, Spawn, Stop

LIMIT = 1 << 20
PLACE = (1, ("hosts", "gpus"), (1, 2))
CALL = Call("w.0", 7, "trainer-0", "step", PLACE, "cell 3")
MESSAGES: list[Message] = [
    Hello(Address("w.0", "unix:///tmp/w.0"), "run"),
    Spawn("w.0", 1, "trainer-0", PLACE, "", None, True),
    Spawn("w.0", 1, "inner-0@w.0", PLACE, "", Creator("b", "B", PLACE, Creator("a", "A", PLACE))),
    CALL,
    Reply("w.0", 7, "lost"),
    Stop("w.0", 8, "trainer-0", "enough"),
    Credit("w.0", "trainer-0@controller", 2048, 1 << 20),
    Down("agent", [ExitReport("w.0", 12, -9, ("last words",), "a hint")]),
]
BODIES = [[], [b"stream"], [b"stream", b"x" * 100], [b"s", b"", bytearray(b"abc"), memoryview(b"0123456789")]]


@pytest.mark.parametrize("body", BODIES, ids=len)
@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_round_trip(message: Message, body: list[bytes]) -> None:
    again, came = unpack(pack(message, body, LIMIT))
    assert again == message
    assert [bytes(part) for part in came] == [bytes(part) for part in body]


def test_buffers_are_aligned_and_not_copied() -> None:
    frame = pack(CALL, [b"stream", b"x" * 100, b"y" * 3], LIMIT)
    _, (_, first, second) = unpack(frame)
    whole = memoryview(frame).tobytes()
    for buffer, text in ((first, b"x" * 100), (second, b"y" * 3)):
        assert isinstance(buffer, memoryview)
        assert buffer.obj is frame
        assert whole.index(text) % ALIGNMENT == 0


def test_a_sent_buffer_is_a_copy() -> None:
    buffer = bytearray(b"before")
    frame = pack(CALL, [b"stream", buffer], LIMIT)
    buffer[:] = b"after!"
    assert bytes(unpack(frame)[1][1]) == b"before"


@pytest.mark.parametrize("body", [[b"x" * 1000], [b"x", b"y" * 1000]], ids=["stream", "buffer"])
def test_too_large_names_the_call_and_the_remedy(body: list[bytes]) -> None:
    with pytest.raises(MessageTooLarge, match=r"trainer-0\.step.*limit of 500.*MESHBOOK_MAX_MESSAGE_BYTES"):
        pack(CALL, body, 500)


def _with_version(frame: bytes, version: int) -> bytes:
    return frame[:2] + bytes([version]) + frame[3:]


GOOD = bytes(pack(CALL, [b"stream", b"x" * 100], LIMIT))


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (b"", "0 bytes is not a message"),
        (b"mb", "2 bytes is not a message"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "not a meshbook message"),
        (_with_version(GOOD, VERSION + 1), f"version {VERSION + 1}, this process {VERSION}"),
        (GOOD[:-1], "damaged.*announced"),
        (GOOD + b"x", "damaged.*announced"),
        (GOOD[:40], "damaged"),
        (GOOD[:20], "damaged"),
        (GOOD[:36] + b"\xc1" * 20 + GOOD[56:], "damaged"),
        (struct.pack("<2sBxIQI", b"mb", VERSION, 2**32 - 1, 2**64 - 1, 2**32 - 1), "damaged"),
        (struct.pack("<2sBxIQI", b"mb", VERSION, 0, 0, 0), "damaged"),
        (struct.pack("<2sBxIQI", b"mb", VERSION, 4, 0, 0) + b"\x92\xa1?\x01", "damaged"),
    ],
)
def test_refused(frame: bytes, said: str) -> None:
    with pytest.raises(RefusedMessage, match=said):
        unpack(frame)


def _unpack_or_refuse(frame: bytes) -> None:
    with contextlib.suppress(RefusedMessage):
        unpack(frame)


@given(st.binary(max_size=300))
def test_garbage_is_refused_and_nothing_else_happens(frame: bytes) -> None:
    _unpack_or_refuse(frame)
    _unpack_or_refuse(GOOD[:20] + frame)


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_a_changed_byte_is_refused_or_harmless(position: int, value: int) -> None:
    _unpack_or_refuse(GOOD[:position] + bytes([value]) + GOOD[position + 1 :])


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=5))
def test_any_body_survives(body: list[bytes]) -> None:
    _, came = unpack(pack(CALL, [b"s", *body], LIMIT))
    assert [bytes(part) for part in came] == [b"s", *body]
