"""The one file that knows bytes: a message and its body as a single frame, and back.

    magic "mb" | version | 0 | header length | body length | number of buffers | length of each buffer ...
    header (msgpack) | body (pickle stream) | buffers, each on a 64-byte boundary

One frame and not several, so that a send is atomic: a Ctrl-C between two parts of one message would make the peer
read the rest of the connection wrongly.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec

from meshbook.runtime.errors import MessageTooLarge, RefusedMessage
from meshbook.runtime.wire import messages

VERSION = 1
MAGIC = b"mb"
ALIGNMENT = 64
_PREFIX = struct.Struct("<2sBxIQI")
_LENGTH = struct.Struct("<Q")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(messages.Any).decode

Buffer = bytes | bytearray | memoryview
Body = Sequence[Buffer]  # the pickle stream, then its out-of-band buffers; empty for a message without a body


def pack(message: messages.Message, body: Body, limit: int) -> Buffer:
    """One frame of a message and its body. Raises MessageTooLarge over `limit` bytes."""
    header = _encode(message)
    if len(body) < 2:
        stream = body[0] if body else b""
        _check_size(len(header) + len(stream), limit, message)
        return b"".join((_PREFIX.pack(MAGIC, VERSION, len(header), len(stream), 0), header, stream))
    return _pack_buffers(message, header, body, limit)


def _pack_buffers(message: messages.Message, header: bytes, body: Body, limit: int) -> bytearray:
    stream, *buffers = body
    lengths = [memoryview(buffer).nbytes for buffer in buffers]
    head = b"".join(
        (
            _PREFIX.pack(MAGIC, VERSION, len(header), len(stream), len(buffers)),
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
    # The only copy on this side: what the caller changes after the call must not show.
    frame = bytearray(end)
    frame[: len(head)] = head
    view = memoryview(frame)
    for buffer, start, length in zip(buffers, starts, lengths, strict=True):
        view[start : start + length] = memoryview(buffer).cast("B")
    return frame


def unpack(frame: Buffer) -> tuple[messages.Any, list[Buffer]]:
    """The message and the body of a frame, without copying buffers. Raises RefusedMessage for anything else."""
    view = memoryview(frame)
    try:
        magic, version, header_length, stream_length, count = _PREFIX.unpack_from(view)
    except struct.error:
        raise RefusedMessage(f"a frame of {len(view)} bytes is no message") from None
    if magic != MAGIC:
        raise RefusedMessage(f"a frame that begins with {bytes(view[:4])!r} is no message of meshbook")
    if version != VERSION:
        raise RefusedMessage(
            f"the sender speaks wire version {version}, this process {VERSION}: install the same meshbook"
        )
    try:
        return _unpack_parts(view, header_length, stream_length, count)
    except (struct.error, msgspec.DecodeError, ValueError) as error:
        raise RefusedMessage(f"a damaged message: {error}") from error


def _unpack_parts(
    view: memoryview, header_length: int, stream_length: int, count: int
) -> tuple[messages.Any, list[Buffer]]:
    start = _PREFIX.size + count * _LENGTH.size
    end = start + header_length + stream_length
    if end > len(view):
        raise ValueError(f"{end} bytes announced, {len(view)} came")
    message = _decode(view[start : start + header_length])
    body: list[Buffer] = [view[start + header_length : end]] if stream_length else []
    for index in range(count):
        (length,) = _LENGTH.unpack_from(view, _PREFIX.size + index * _LENGTH.size)
        begin = _aligned(end)
        end = begin + length
        if end > len(view):
            raise ValueError(f"{end} bytes announced, {len(view)} came")
        body.append(view[begin:end])
    if end != len(view):
        raise ValueError(f"{end} bytes announced, {len(view)} came")
    return message, body


def _aligned(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT


def _check_size(size: int, limit: int, message: messages.Message) -> None:
    if size > limit:
        what = f"{message.actor}.{message.endpoint}" if isinstance(message, messages.Call) else type(message).__name__
        raise MessageTooLarge(
            f"a message of {size:,} bytes ({what}) is over the limit of {limit:,}: "
            f"send less at once, or raise MESHBOOK_MAX_MESSAGE_BYTES where the run starts"
        )
