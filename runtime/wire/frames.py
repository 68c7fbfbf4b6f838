"""The only file that knows bytes: packs a message and its body into a single frame, and unpacks it.

    magic "mb" | version | 0 | header length | body length | number of buffers | length of each buffer ...
    header (msgpack) | body (pickle stream) | buffers, each on a 64-byte boundary

A body may lie elsewhere, in memory that the receiver maps. Then its frame has a 1 instead of the 0, and ends with

    header (msgpack) | location of the body (msgpack)

One frame and not several, so that a send is atomic: a Ctrl-C between two parts of one message would make the peer
misread the rest of the connection.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence

import msgspec

from meshbook.runtime.errors import MessageTooLarge, RefusedMessage
from meshbook.runtime.memory.layout import SegmentReference
from meshbook.runtime.wire import messages

VERSION = 5
MAGIC = b"mb"
ALIGNMENT = 64
HERE, ELSEWHERE = 0, 1
_PREFIX = struct.Struct("<2sBBIQI")
_SIZES = struct.Struct("<IQI")  # the prefix without its first four bytes
_USUAL = MAGIC + bytes((VERSION, HERE))  # those of a message whose body is in the frame
SMALL_BYTES = 4096  # up to this size, a copy of a part of a frame is cheaper than a view
_LENGTH = struct.Struct("<Q")
_NUMBER = struct.Struct(">Q")  # as in msgpack
_RANK = struct.Struct(">I")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(messages.Any).decode
_decode_reference = msgspec.msgpack.Decoder(SegmentReference).decode

Buffer = bytes | bytearray | memoryview
Body = Sequence[Buffer]  # the pickle stream, then its out-of-band buffers; empty for a message without a body


class BodyElsewhere(msgspec.Struct, frozen=True):
    """Replaces a body that is not in its frame: the lengths of its parts, and their location."""

    lengths: list[int]
    reference: SegmentReference

    @property
    def size(self) -> int:
        return sum(self.lengths)


class LostBody(bytes):
    """Replaces a body that cannot be reached; `why` is the reason. Its length is that of the body, for byte counts."""

    size: int
    why: str

    @classmethod
    def body(cls, size: int, why: str) -> list[Buffer]:
        lost = cls()
        lost.size, lost.why = size, why
        return [lost]

    def __len__(self) -> int:
        return self.size


def pack(message: messages.Message, body: Body, limit: int, header: bytes | None = None) -> Buffer:
    """Return the frame of a message and its body. `header` is the encoded message.

    Raises MessageTooLarge over `limit` bytes.
    """
    if header is None:
        header = _encode(message)
    if len(body) < 2:
        stream = body[0] if body else b""
        _check_size(len(header) + len(stream), limit, message)
        return b"".join((_PREFIX.pack(MAGIC, VERSION, HERE, len(header), len(stream), 0), header, stream))
    return _pack_buffers(message, header, body, limit)


def _pack_buffers(message: messages.Message, header: bytes, body: Body, limit: int) -> bytearray:
    stream, *buffers = body
    lengths = [memoryview(buffer).nbytes for buffer in buffers]
    head = b"".join(
        (
            _PREFIX.pack(MAGIC, VERSION, HERE, len(header), len(stream), len(buffers)),
            *map(_LENGTH.pack, lengths),
            header,
            stream,
        )
    )
    starts = []
    end = len(head)
    for length in lengths:
        starts.append(_aligned(end))
        end = starts[-1] + length
    _check_size(end, limit, message)
    # The only copy on this side, so that changes by the caller after the call do not show.
    frame = bytearray(end)
    frame[: len(head)] = head
    view = memoryview(frame)
    for buffer, start, length in zip(buffers, starts, lengths, strict=True):
        view[start : start + length] = memoryview(buffer).cast("B")
    return frame


@functools.lru_cache(256)
def _header_template(
    sender: str,
    actor: str,
    endpoint: str,
    shape: tuple[tuple[str, ...], tuple[int, ...]],
    origin: str,
    manner: messages.Manner,
    reply_to: messages.Address | None,
    by: str,
) -> tuple[bytes, int, int]:
    """Return the header of such calls, and the positions of the number and of the rank in it."""
    # The largest numbers: msgpack encodes them in full width, so every other number fits in their place.
    number, rank = (1 << 64) - 1, (1 << 32) - 1
    header = _encode(messages.Call(sender, number, actor, endpoint, (rank, *shape), origin, manner, reply_to, by))
    # No text contains these bytes, since UTF-8 has no 0xff.
    number_at = header.index(b"\xcf" + b"\xff" * 8) + 1
    return header, number_at, header.index(b"\xce" + b"\xff" * 4, number_at + 8) + 1


class CallFrames:
    """The frames of one call to several ranks: encoded once; only the number and the rank differ."""

    def __init__(self, call: messages.Call, body: Body, limit: int) -> None:
        header, number_at, rank_at = _header_template(
            *(call.sender, call.actor, call.endpoint, call.place[1:], call.origin, call.manner, call.reply_to, call.by)
        )
        self.template = pack(call, body, limit, header)
        start = _PREFIX.size + _LENGTH.size * max(0, len(body) - 1)
        self.number_at, self.rank_at = start + number_at, start + rank_at

    def make(self, number: int, rank: int) -> bytearray:
        """Return the frame for one rank."""
        return fill_in(self.template, self.number_at, number, self.rank_at, rank)


def fill_in(template: Buffer, number_at: int, number: int, rank_at: int, rank: int) -> bytearray:
    """Return the frame of a call to one rank: the template with this number and rank at these positions.

    Raises RefusedMessage if a position is outside the template.
    """
    frame = bytearray(template)
    try:
        _NUMBER.pack_into(frame, number_at, number)
        _RANK.pack_into(frame, rank_at, rank)
    except struct.error as error:
        raise RefusedMessage(f"a damaged cast: {error}") from error
    return frame


def pack_elsewhere(message: messages.Message, lengths: Sequence[int], reference: SegmentReference) -> Buffer:
    """Return the frame of a message whose body, of parts of these lengths, lies at the reference."""
    header = _encode(message)
    stream_length, *others = lengths
    prefix = _PREFIX.pack(MAGIC, VERSION, ELSEWHERE, len(header), stream_length, len(others))
    return b"".join((prefix, *map(_LENGTH.pack, others), header, _encode(reference)))


def is_whole(frame: Buffer) -> bool:
    """Return whether all of a message is in its frame."""
    return len(frame) < _PREFIX.size or _PREFIX.unpack_from(frame)[2] == HERE


def unpack(frame: Buffer) -> tuple[messages.Any, list[Buffer] | BodyElsewhere]:
    """Return the message and the body of a frame, without copying buffers. Raises RefusedMessage for invalid ones."""
    if _PREFIX.size <= len(frame) <= SMALL_BYTES and frame[:4] == _USUAL and type(frame) is bytes:
        # Nearly every message. `bytes` instead of views: the garbage collector does not track them.
        header_length, stream_length, count = _SIZES.unpack_from(frame, 4)
        start = _PREFIX.size + header_length
        if not count and len(frame) == start + stream_length:
            try:
                return _decode(frame[_PREFIX.size : start]), [frame[start:]] if stream_length else []
            except (msgspec.DecodeError, ValueError) as error:
                raise RefusedMessage(f"a damaged message: {error}") from error
    view = memoryview(frame)
    try:
        magic, version, place, header_length, stream_length, count = _PREFIX.unpack_from(view)
    except struct.error:
        raise RefusedMessage(f"a frame of {len(view)} bytes is not a message") from None
    if magic != MAGIC:
        raise RefusedMessage(f"a frame that begins with {bytes(view[:4])!r} is not a meshbook message")
    if version != VERSION:
        raise RefusedMessage(
            f"the sender uses wire version {version}, this process {VERSION}: install the same meshbook version"
        )
    try:
        if place == ELSEWHERE:
            return _unpack_elsewhere(view, header_length, stream_length, count)
        return _unpack_parts(view, header_length, stream_length, count)
    except (struct.error, msgspec.DecodeError, ValueError) as error:
        raise RefusedMessage(f"a damaged message: {error}") from error


def _unpack_parts(
    view: memoryview, header_length: int, stream_length: int, count: int
) -> tuple[messages.Any, list[Buffer]]:
    start = _PREFIX.size + count * _LENGTH.size
    end = start + header_length + stream_length
    if end > len(view):
        raise ValueError(f"{end} bytes announced, {len(view)} received")
    message = _decode(view[start : start + header_length])
    body: list[Buffer] = [view[start + header_length : end]] if stream_length else []
    for index in range(count):
        (length,) = _LENGTH.unpack_from(view, _PREFIX.size + index * _LENGTH.size)
        begin = _aligned(end)
        end = begin + length
        if end > len(view):
            raise ValueError(f"{end} bytes announced, {len(view)} received")
        body.append(view[begin:end])
    if end != len(view):
        raise ValueError(f"{end} bytes announced, {len(view)} received")
    return message, body


def _unpack_elsewhere(
    view: memoryview, header_length: int, stream_length: int, count: int
) -> tuple[messages.Any, BodyElsewhere]:
    lengths = [
        stream_length,
        *(_LENGTH.unpack_from(view, _PREFIX.size + each * _LENGTH.size)[0] for each in range(count)),
    ]
    start = _PREFIX.size + count * _LENGTH.size
    end = start + header_length
    return _decode(view[start:end]), BodyElsewhere(lengths, _decode_reference(view[end:]))


def _aligned(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT


def _check_size(size: int, limit: int, message: messages.Message) -> None:
    if size > limit:
        what = f"{message.actor}.{message.endpoint}" if isinstance(message, messages.Call) else type(message).__name__
        raise MessageTooLarge(
            f"a message of {size:,} bytes ({what}) is over the limit of {limit:,}: "
            f"send less at once, or raise MESHBOOK_MAX_MESSAGE_BYTES where the run starts"
        )
