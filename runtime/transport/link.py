"""The protocol of a link between two hosts: its messages, and the state that each side keeps. Uses no socket.

    LinkAttach, LinkAttached   begin a connection: the position up to which each side has received each stream
    StreamPart                 a piece of a frame of one stream, followed by its bytes
    StreamAck                  acknowledges the streams up to a position
    Ping                       heartbeat
    Refused, Bye               the receiver is no longer part of the run; the sender leaves the run
    ByeReply                   the reply to Bye: a leaving host waits for it, since the end of a connection may
                               overtake the last messages on it

When a connection breaks, the next one resumes its streams: unreceived pieces are sent again, duplicates are dropped. So
every frame that one host sends to a node of the other arrives exactly once and in order, as long as both hosts run.

Each incarnation of a node has its own stream, named `<node>#<incarnation>`: its frames never reach the next one.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

import msgspec

from meshbook.runtime.errors import RefusedMessage
from meshbook.runtime.transport.window import Inflow, Outflow, StreamPiece
from meshbook.runtime.wire.frames import Buffer

Positions = dict[str, int]  # by stream


class LinkMessage(msgspec.Struct, frozen=True, array_like=True, tag_field="k"):
    """Base class of the messages of a link."""


class LinkAttach(LinkMessage, frozen=True, tag="a"):
    """Begins a connection. `attempt` counts the connections of the dialling side; the latest one counts."""

    host: str
    attempt: int
    received: Positions


class LinkAttached(LinkMessage, frozen=True, tag="b"):
    """The reply to LinkAttach; from here on pieces may be sent."""

    attempt: int
    received: Positions


class StreamPart(LinkMessage, frozen=True, tag="p"):
    """A piece of a stream."""

    stream: str
    number: int
    ends: bool


class StreamAck(LinkMessage, frozen=True, tag="t"):
    """Acknowledges streams up to these positions."""

    positions: Positions


class Ping(LinkMessage, frozen=True, tag="i"):
    """A heartbeat."""


class Refused(LinkMessage, frozen=True, tag="r"):
    """The receiver is no longer part of the run and must end."""

    why: str


class Bye(LinkMessage, frozen=True, tag="e"):
    """The sender leaves the run."""

    why: str


class ByeReply(LinkMessage, frozen=True, tag="n"):
    """The reply to Bye."""


AnyLinkMessage = LinkAttach | LinkAttached | StreamPart | StreamAck | Ping | Refused | Bye | ByeReply
_LENGTH = struct.Struct("<I")
_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(AnyLinkMessage)


def pack(message: LinkMessage, data: Buffer = b"") -> bytes:
    """Return one frame: the length of the message, the message, and the data.

    A single part, because libzmq 4.3.5 aborts the process if a connection breaks between the parts of a message.
    """
    header = _encode(message)
    return b"".join((_LENGTH.pack(len(header)), header, data))


def unpack(frame: Buffer) -> tuple[AnyLinkMessage, memoryview]:
    """Return the message and a view of the data. Raises RefusedMessage for an invalid frame."""
    view = memoryview(frame)
    try:
        (length,) = _LENGTH.unpack_from(view)
        end = _LENGTH.size + length
        if end > len(view):
            raise ValueError(f"{end} bytes announced, {len(view)} received")
        message: AnyLinkMessage = _decoder.decode(view[_LENGTH.size : end])
    except (struct.error, ValueError, msgspec.DecodeError) as error:
        raise RefusedMessage(f"not a link message: {error}") from None
    return message, view[end:]


class Link:
    """This end of a link: the streams in both directions, independent of the current connection."""

    def __init__(self) -> None:
        self.is_attached = False
        self.was_attached = False  # ever
        self._out: dict[str, Outflow] = {}
        self._in: dict[str, Inflow] = {}
        self._changed: set[str] = set()  # incoming streams with positions that may be unacknowledged

    # -- connections ---------------------------------------------------------------

    def positions(self) -> Positions:
        """Return the position up to which each incoming stream was received, for `LinkAttach` and `LinkAttached`."""
        return {stream: inflow.received for stream, inflow in self._in.items()}

    def attach(self, received: Positions) -> None:
        """Resume the streams on a new connection, from the positions that the other side has received."""
        self.is_attached = self.was_attached = True
        for stream, outflow in self._out.items():
            outflow.resume(received.get(stream, 0))

    def detach(self) -> None:
        """Stop sending until the next connection is attached."""
        self.is_attached = False

    # -- out -------------------------------------------------------------------------

    def has_room(self, stream: str) -> bool:
        """Whether this stream accepts another frame now."""
        return stream not in self._out or self._out[stream].has_room

    def put(self, stream: str, frame: Buffer) -> None:
        """Queue a frame in this stream."""
        if (outflow := self._out.get(stream)) is None:
            outflow = self._out[stream] = Outflow()
        outflow.put(frame)

    def due(self, stream: str) -> Iterator[tuple[StreamPart, Buffer]]:
        """Yield the pieces of this stream to send now."""
        if self.is_attached and (outflow := self._out.get(stream)) is not None:
            for piece in outflow.due():
                yield StreamPart(stream, piece.number, piece.ends), piece.data

    def all_due(self) -> Iterator[tuple[StreamPart, Buffer]]:
        """Yield the pieces of all streams to send now."""
        for stream in list(self._out):
            yield from self.due(stream)

    def acknowledge(self, taken: Positions) -> None:
        """Drop the pieces that the other side has acknowledged."""
        for stream, number in taken.items():
            if (outflow := self._out.get(stream)) is not None:
                outflow.acknowledge(number)

    def outflows(self) -> set[str]:
        """Return the names of the streams to the other host."""
        return set(self._out)

    def drop(self, stream: str) -> None:
        """Drop a stream in both directions, with its content."""
        self._out.pop(stream, None)
        self._in.pop(stream, None)
        self._changed.discard(stream)

    # -- in --------------------------------------------------------------------------

    def take_in(self, part: StreamPart, data: Buffer) -> None:
        """Add a received piece. Raises MissingPiece if an earlier one is missing: the connection must be replaced."""
        if (inflow := self._in.get(part.stream)) is None:
            inflow = self._in[part.stream] = Inflow()
        self._changed.add(part.stream)
        inflow.take_in(StreamPiece(part.number, data, part.ends))

    def first(self, stream: str) -> Buffer | None:
        """Return the next frame for the node of this stream, or None."""
        inflow = self._in.get(stream)
        return inflow.first if inflow is not None else None

    def took(self, stream: str) -> None:
        """Remove the first frame of this stream, which the node has received."""
        self._changed.add(stream)
        self._in[stream].took()

    def news(self, *, anyway: bool = False) -> StreamAck | None:
        """Return the acknowledgement to send, or None if nothing is new; with `anyway`, of all streams."""
        streams = self._in if anyway else self._changed
        found = {stream: taken for stream in streams if (taken := self._in[stream].news(anyway=anyway)) is not None}
        self._changed.clear()
        return StreamAck(found) if found else None


_NAME = re.compile(r"[\w.-]+#\d+")  # the node's name is also that of its socket


def stream_to(node: str, incarnation: int) -> str:
    """Return the name of the stream to an incarnation of a node; `incarnation` counts the earlier ones."""
    return f"{node}#{incarnation}"


def node_of(stream: str) -> str:
    """Return the node that a stream leads to."""
    return stream.partition("#")[0]


def is_stream(name: str) -> bool:
    """Whether this is a valid name of a stream."""
    return _NAME.fullmatch(name) is not None


class EndedIncarnations:
    """The incarnations of nodes that are known to have ended, for one gateway."""

    def __init__(self) -> None:
        self._ended: dict[str, int] = {}  # number of ended incarnations, by node

    def end(self, node: str, incarnation: int) -> None:
        """Note the end of this incarnation and of all earlier ones."""
        self._ended[node] = max(self._ended.get(node, 0), incarnation + 1)

    def present(self, node: str) -> str:
        """Return the stream to the current incarnation of a node, or to its next one."""
        return stream_to(node, self._ended.get(node, 0))

    def is_present(self, stream: str) -> bool:
        """Whether this is the stream to the current incarnation of its node, or to its next one."""
        node, incarnation = _parse(stream)
        return incarnation == self._ended.get(node, 0)

    def is_former(self, stream: str) -> bool:
        """Whether this stream leads to an ended incarnation; its sender does not know that yet."""
        node, incarnation = _parse(stream)
        return incarnation < self._ended.get(node, 0)


def _parse(stream: str) -> tuple[str, int]:
    node, _, incarnation = stream.partition("#")
    return node, int(incarnation)
