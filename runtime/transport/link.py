"""A link between two hosts: what they say to each other, and what each has to keep and to tell. Pure: no socket.

    Attach, Attached   the beginning of a connection: how far each side has received each stream
    Part               a piece of a frame of one stream; its bytes travel beside it
    Taken              up to where the streams have been taken
    Ping               nothing, so that silence means something
    Refused, Bye       this host is no part of the run any more; this host leaves it
    Noted              the answer to Bye: whoever leaves stays until then, since an end of a connection may overtake
                       what came last on it

A connection may break at any moment, and another one goes on where it ended: what was not received is sent again, and
what was received twice is dropped. So all that the nodes of one host send to a node of the other arrives, once, in
order, as long as both hosts live.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

from meshbook.runtime.errors import RefusedMessage
from meshbook.runtime.transport.window import Inflow, Outflow, Piece
from meshbook.runtime.wire.frames import Buffer

Positions = dict[str, int]  # by stream


class LinkMessage(msgspec.Struct, frozen=True, array_like=True, tag_field="k"):
    """The base of all of them."""


class Attach(LinkMessage, frozen=True, tag="a"):
    """From the side that connects. `attempt` counts its connections: a later one holds."""

    host: str
    attempt: int
    received: Positions


class Attached(LinkMessage, frozen=True, tag="b"):
    """The answer; from here on pieces travel."""

    attempt: int
    received: Positions


class Part(LinkMessage, frozen=True, tag="p"):
    """A piece of this stream."""

    stream: str
    number: int
    ends: bool


class Taken(LinkMessage, frozen=True, tag="t"):
    """An acknowledgement."""

    positions: Positions


class Ping(LinkMessage, frozen=True, tag="i"):
    """I am here."""


class Refused(LinkMessage, frozen=True, tag="r"):
    """You are no part of this run any more: end."""

    why: str


class Bye(LinkMessage, frozen=True, tag="e"):
    """I leave the run."""

    why: str


class Noted(LinkMessage, frozen=True, tag="n"):
    """I know that you leave."""


AnyLinkMessage = Attach | Attached | Part | Taken | Ping | Refused | Bye | Noted
_LENGTH = struct.Struct("<I")
_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(AnyLinkMessage)


def pack(message: LinkMessage, data: Buffer = b"") -> bytes:
    """One frame: the length of the message, the message, and the bytes beside it.

    One and not several: libzmq 4.3.5 aborts the process where a connection breaks between the parts of a message.
    """
    header = _encode(message)
    return b"".join((_LENGTH.pack(len(header)), header, data))


def unpack(frame: Buffer) -> tuple[AnyLinkMessage, memoryview]:
    """The message, and the bytes beside it without copying them. RefusedMessage for anything else."""
    view = memoryview(frame)
    try:
        (length,) = _LENGTH.unpack_from(view)
        end = _LENGTH.size + length
        if end > len(view):
            raise ValueError(f"{end} bytes announced, {len(view)} came")
        message: AnyLinkMessage = _decoder.decode(view[_LENGTH.size : end])
    except (struct.error, ValueError, msgspec.DecodeError) as error:
        raise RefusedMessage(f"no message of a link: {error}") from None
    return message, view[end:]


class Link:
    """This end of a link: the streams both ways, whatever connection carries them."""

    def __init__(self) -> None:
        self.is_attached = False
        self.was_attached = False  # ever
        self._out: dict[str, Outflow] = {}
        self._in: dict[str, Inflow] = {}
        self._changed: set[str] = set()  # streams to here, of which the other side may not know all

    # -- connections ---------------------------------------------------------------

    def positions(self) -> Positions:
        """How far each stream to here has been received, for an `Attach` or its answer."""
        return {stream: inflow.received for stream, inflow in self._in.items()}

    def attach(self, received: Positions) -> None:
        """A connection stands; the other side has told how far it has received."""
        self.is_attached = self.was_attached = True
        for stream, outflow in self._out.items():
            outflow.resume(received.get(stream, 0))

    def detach(self) -> None:
        """The connection is given up. Nothing is sent until the next one stands."""
        self.is_attached = False

    # -- out -------------------------------------------------------------------------

    def has_room(self, stream: str) -> bool:
        """Whether a frame should be put into this stream now."""
        return stream not in self._out or self._out[stream].has_room

    def put(self, stream: str, frame: Buffer) -> None:
        """Send a frame by this stream, once it is due."""
        if (outflow := self._out.get(stream)) is None:
            outflow = self._out[stream] = Outflow()
        outflow.put(frame)

    def due(self, stream: str) -> Iterator[tuple[Part, Buffer]]:
        """What is to be sent by this stream now."""
        if self.is_attached and (outflow := self._out.get(stream)) is not None:
            for piece in outflow.due():
                yield Part(stream, piece.number, piece.ends), piece.data

    def all_due(self) -> Iterator[tuple[Part, Buffer]]:
        """What is to be sent now, by whatever stream."""
        for stream in list(self._out):
            yield from self.due(stream)

    def acknowledge(self, taken: Positions) -> None:
        """The other side has taken the streams up to there."""
        for stream, number in taken.items():
            if (outflow := self._out.get(stream)) is not None:
                outflow.acknowledge(number)

    def outflows(self) -> set[str]:
        """The streams to the other host."""
        return set(self._out)

    def drop(self, stream: str) -> None:
        """This stream, either way, is over: what is in it is for nobody."""
        self._out.pop(stream, None)
        self._in.pop(stream, None)
        self._changed.discard(stream)

    # -- in --------------------------------------------------------------------------

    def take_in(self, part: Part, data: Buffer) -> None:
        """Note a piece that came. Gap where one before it is missing: the connection is of no use then."""
        if (inflow := self._in.get(part.stream)) is None:
            inflow = self._in[part.stream] = Inflow()
        self._changed.add(part.stream)
        inflow.take_in(Piece(part.number, data, part.ends))

    def first(self, stream: str) -> Buffer | None:
        """The frame that the node should get next to which this stream leads."""
        inflow = self._in.get(stream)
        return inflow.first if inflow is not None else None

    def took(self, stream: str) -> None:
        """It has got it."""
        self._changed.add(stream)
        self._in[stream].took()

    def news(self, *, anyway: bool = False) -> Taken | None:
        """What the other side should know to be taken; None where it knows all, unless `anyway`."""
        streams = self._in if anyway else self._changed
        found = {stream: taken for stream in streams if (taken := self._in[stream].news(anyway=anyway)) is not None}
        self._changed.clear()
        return Taken(found) if found else None
