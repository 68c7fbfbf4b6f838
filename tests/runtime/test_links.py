"""Streams between hosts: whatever connections do, each frame arrives once and in order, and memory stays bounded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbook.runtime.config import Settings
from meshbook.runtime.errors import RefusedMessage
from meshbook.runtime.transport.gateway import LOOK_SECONDS
from meshbook.runtime.transport.host_link import BEATS, HeartbeatState
from meshbook.runtime.transport.link import Link, StreamAck, StreamPart, pack, unpack
from meshbook.runtime.transport.window import Inflow, MissingPiece, Outflow, StreamPiece


def take_all(inflow: Inflow) -> list[bytes]:
    frames = []
    while (frame := inflow.first) is not None:
        frames.append(bytes(frame))
        inflow.took()
    return frames


# -- one stream -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frames", "pieces"),
    [
        ([b""], [(1, b"", True)]),
        ([b"abc"], [(1, b"abc", True)]),
        ([b"abcd"], [(1, b"abcd", True)]),
        ([b"abcde"], [(1, b"abcd", False), (2, b"e", True)]),
        ([b"a", b"b"], [(1, b"a", True), (2, b"b", True)]),
    ],
)
def test_frames_are_cut_into_pieces_and_put_together(
    frames: list[bytes], pieces: list[tuple[int, bytes, bool]]
) -> None:
    outflow, inflow = Outflow(piece_bytes=4), Inflow()
    for frame in frames:
        outflow.put(frame)
    due = outflow.due()
    assert [(piece.number, bytes(piece.data), piece.ends) for piece in due] == pieces
    for piece in due:
        inflow.take_in(piece)
    assert take_all(inflow) == frames


def test_what_is_under_way_is_bounded() -> None:
    outflow = Outflow(window_bytes=8, piece_bytes=4)
    outflow.put(b"x" * 20)
    assert [piece.number for piece in outflow.due()] == [1, 2]
    assert not outflow.has_room
    outflow.acknowledge(1)
    assert [piece.number for piece in outflow.due()] == [3]
    outflow.acknowledge(3)
    assert [piece.number for piece in outflow.due()] == [4, 5]
    assert outflow.has_room


def test_a_piece_over_the_window_goes_alone() -> None:
    outflow = Outflow(window_bytes=2, piece_bytes=4)
    outflow.put(b"12345678")
    assert len(outflow.due()) == 1
    outflow.acknowledge(1)
    assert len(outflow.due()) == 1


def test_an_untaken_frame_is_not_acknowledged() -> None:
    inflow = Inflow()
    for number in (1, 2):
        inflow.take_in(StreamPiece(number, b"x", True))
    assert inflow.news() is None
    inflow.took()
    assert inflow.news() == 1
    assert inflow.news() is None
    assert inflow.news(anyway=True) == 1


def test_the_pieces_of_a_frame_that_is_not_whole_are_acknowledged() -> None:
    """It may be larger than the window, and would never become whole."""
    inflow = Inflow()
    inflow.take_in(StreamPiece(1, b"x", False))
    assert inflow.news() == 1
    inflow.take_in(StreamPiece(2, b"y", True))
    assert inflow.news() is None
    assert take_all(inflow) == [b"xy"]
    assert inflow.news() == 2


def test_repeated_frames_are_dropped_and_missing_ones_are_reported() -> None:
    inflow = Inflow()
    piece = StreamPiece(1, b"x", True)
    inflow.take_in(piece)
    inflow.take_in(piece)
    assert take_all(inflow) == [b"x"]
    with pytest.raises(MissingPiece):
        inflow.take_in(StreamPiece(3, b"z", True))
    assert inflow.received == 1


def test_after_a_break_only_what_was_not_received_is_sent_again() -> None:
    outflow = Outflow()
    for frame in (b"1", b"2", b"3"):
        outflow.put(frame)
    outflow.due()
    outflow.resume(received=2)
    assert [bytes(piece.data) for piece in outflow.due()] == [b"3"]
    outflow.acknowledge(2)
    outflow.resume(received=2)
    assert [bytes(piece.data) for piece in outflow.due()] == [b"3"]
    outflow.acknowledge(3)
    assert outflow.is_empty


class Wire:
    """Two ends of a link, and a connection that holds messages until they are delivered, or loses them."""

    def __init__(self) -> None:
        self.here, self.there = Link(), Link()
        self.way: deque[tuple[StreamPart, bytes]] = deque()
        self.back: deque[StreamAck] = deque()
        self.arrived: list[bytes] = []
        self.connect()

    def connect(self) -> None:
        """A new connection; what was on the one before is lost."""
        self.way.clear()
        self.back.clear()
        self.here.attach(self.there.positions())
        self.there.attach(self.here.positions())
        if (news := self.there.news(anyway=True)) is not None:
            self.back.append(news)
        self.send()

    def send(self) -> None:
        self.way += [(part, bytes(data)) for part, data in self.here.all_due()]

    def deliver(self) -> None:
        if self.way:
            part, data = self.way.popleft()
            self.there.take_in(part, data)

    def take(self) -> None:
        if (frame := self.there.first("node")) is not None:
            self.arrived.append(bytes(frame))
            self.there.took("node")

    def acknowledge(self) -> None:
        if (news := self.there.news()) is not None:
            self.back.append(news)
        if self.back:
            self.here.acknowledge(self.back.popleft().positions)
        self.send()


@given(st.lists(st.sampled_from(["put", "deliver", "take", "acknowledge", "connect"]), max_size=200))
def test_whatever_breaks_each_frame_arrives_once_and_in_order(steps: list[str]) -> None:
    wire = Wire()
    sent: list[bytes] = []

    def put() -> None:
        sent.append(b"%d" % len(sent) * (1 + len(sent) % 3 * 100_000))
        wire.here.put("node", sent[-1])
        wire.send()

    known: dict[str, Callable[[], None]] = {
        "put": put,
        "deliver": wire.deliver,
        "take": wire.take,
        "acknowledge": wire.acknowledge,
        "connect": wire.connect,
    }
    for step in steps:
        known[step]()
    assert wire.arrived == sent[: len(wire.arrived)]
    wire.connect()
    while wire.way or wire.there.first("node") is not None or wire.back:
        for end in (wire.deliver, wire.take, wire.acknowledge):
            end()
    assert wire.arrived == sent


def test_a_stream_that_is_not_taken_holds_up_no_other() -> None:
    link = Link()
    link.attach({})
    while link.has_room("slow"):
        link.put("slow", b"x" * 100_000)
        list(link.due("slow"))
    assert not list(link.due("slow"))
    link.put("quick", b"y")
    assert [part.stream for part, _ in link.due("quick")] == ["quick"]


def test_nothing_is_sent_without_a_connection() -> None:
    link = Link()
    link.put("node", b"x")
    assert list(link.due("node")) == []
    link.attach({})
    assert [part.number for part, _ in link.due("node")] == [1]
    link.detach()
    link.put("node", b"y")
    assert list(link.all_due()) == []


@pytest.mark.parametrize("data", [b"", b"x" * 1000])
def test_a_message_and_its_bytes_are_one_frame(data: bytes) -> None:
    message, beside = unpack(pack(StreamPart("node", 1, True), data))
    assert message == StreamPart("node", 1, True)
    assert bytes(beside) == data


def framed(header: bytes) -> bytes:
    return len(header).to_bytes(4, "little") + header


@pytest.mark.parametrize(
    "frame",
    [b"", b"GET / HTTP/1.1", framed(b""), framed(msgspec.msgpack.encode(["q"])), framed(b"\x94\xa1p\x01\x02\x03")],
)
def test_garbage_is_no_message(frame: bytes) -> None:
    with pytest.raises(RefusedMessage):
        unpack(frame)


# -- silence ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heard", "looks", "silence"),
    [
        ([], [0.1, 0.2, 0.3], 0.3),
        ([0.25], [0.1, 0.2, 0.3], 0.05),
        ([], [0.1, 5.1, 5.2], 0.2),  # stopped for five seconds
        ([4.0], [0.1, 5.1, 5.2], 0.1),  # the same, and what came meanwhile was read before the look
    ],
)
def test_silence_counts_while_there_is_a_listener(heard: list[float], looks: list[float], silence: float) -> None:
    pulse = HeartbeatState(0.0)
    found = 0.0
    for time in sorted([*heard, *looks]):
        if time in heard:
            pulse.note_message(time)
        else:
            found = pulse.silence(time)
    assert found == pytest.approx(silence)


def test_a_beat_is_due_once_an_interval() -> None:
    pulse = HeartbeatState(0.0)
    assert [pulse.is_due(time / 10, 0.25) for time in range(1, 9)] == [
        False,
        False,
        True,
        False,
        False,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("phase", [0.0, 0.1, 0.2])
def test_a_host_that_ends_is_found_within_two_seconds(phase: float) -> None:
    """With the default settings, wherever its end falls between two beats and two looks. Six late beats are no end."""
    grace = Settings().host_timeout
    pulse, looks = HeartbeatState(0.0), 0
    last = 10 * grace / BEATS  # its last beat; it ends `phase` seconds later
    for beat in range(11):
        pulse.note_message(beat * grace / BEATS)
    pulse.silence(last)
    while pulse.silence(now := last + looks * LOOK_SECONDS) <= grace:
        looks += 1
    assert now - (last + phase) < 2.0
    assert now - last >= 6 * grace / BEATS
