"""What a process and the host agent of another say to each other over TCP. The one file that knows its bytes; pure.

    agent    greeting: magic, version, nonce
    process  nonce, proof                                both prove that they know the key, and nobody else is served
    agent    proof

    process  length, Request (msgpack), tag; for a write the pieces follow at once
    agent    status, length of text, text, tag; for a read that goes well the pieces follow
    a piece  length, CRC-32 of its bytes, tag, bytes

A tag (HMAC) covers what is before it, its place on the connection, and the nonces. So a change or a replay of anything
but the bytes of a piece is detected; of these, damage is. A read is broken off by the end of the connection. What has
come by then was read under the lease.
"""

from __future__ import annotations

import hmac
import struct
import zlib

import msgspec

from meshbook.runtime.errors import BufferDropped, OwnerGone, RefusedMessage, TransferError, TransferTimeout
from meshbook.runtime.rdma.handle import Handle
from meshbook.runtime.rdma.ways import Unsuitable

MAGIC = b"mb-memory"
VERSION = 2
NONCE = 32  # bytes
PROOF = 32
TAG = 16
MOST_BYTES = 1 << 16  # of a request, and of a text
_GREETING = struct.Struct(f"<{len(MAGIC)}sB{NONCE}s")
_LENGTH = struct.Struct("<I")
_HEAD = struct.Struct("<BxxxI")
_PIECE = struct.Struct("<II")
GREETING_BYTES, LENGTH_BYTES, HEAD_BYTES, PIECE_BYTES = _GREETING.size, _LENGTH.size, _HEAD.size, _PIECE.size
OK = 0
Buffer = bytes | bytearray
_ERRORS: tuple[type[Exception], ...] = (BufferDropped, OwnerGone, TransferTimeout, Unsuitable, TransferError)


class Request(msgspec.Struct, frozen=True, array_like=True):
    """Move so many bytes from or to this memory, from its byte `offset` on, within these seconds."""

    handle: Handle
    offset: int
    size: int
    is_write: bool
    seconds: float

    def __post_init__(self) -> None:
        if self.offset < 0 or self.size < 1 or self.offset + self.size > self.handle.size:
            raise ValueError("it asks for bytes outside of the buffer")
        if not 0 <= self.seconds < float("inf"):
            raise ValueError("it names no time")


# -- who may ask -----------------------------------------------------------------------


def pack_greeting(nonce: bytes) -> bytes:
    return _GREETING.pack(MAGIC, VERSION, nonce)


def unpack_greeting(data: bytes | bytearray) -> bytes:
    """The nonce of the agent. RefusedMessage where that is none of this version."""
    magic, version, nonce = _GREETING.unpack(data)
    if (magic, version) != (MAGIC, VERSION):
        raise RefusedMessage("who answers is no host agent of this version")
    return bytes(nonce)


def prove(key: bytes, who: str, asked: bytes, own: bytes) -> bytes:
    """That `who` ("agent", "process") knows the key; `asked` is the nonce of the other side."""
    return hmac.digest(key, b"%s %s %s" % (who.encode(), asked, own), "sha256")


def is_proof(proof: bytes, key: bytes, who: str, asked: bytes, own: bytes) -> bool:
    return hmac.compare_digest(proof, prove(key, who, asked, own))


class Damaged(ConnectionError):
    """What came is not what was sent here: it was changed on the way, or sent before."""


class Tags:
    """The tags of what one side sends on one connection, in order. `nonces` are those of the handshake."""

    def __init__(self, key: bytes, who: str, nonces: bytes) -> None:
        self._key = hmac.digest(key, b"tags " + who.encode() + nonces, "sha256")
        self._count = 0

    def next(self, data: Buffer) -> bytes:
        """Return the tag of the next message."""
        self._count += 1
        return hmac.digest(self._key, self._count.to_bytes(8, "little") + data, "sha256")[:TAG]

    def check(self, data: Buffer, tag: Buffer) -> None:
        """Raise Damaged if this is not the tag of the next message."""
        if not hmac.compare_digest(self.next(data), tag):
            raise Damaged("a message was changed on the way, or sent before")


# -- requests and answers ------------------------------------------------------------------


def pack_request(request: Request) -> bytes:
    body = msgspec.msgpack.encode(request)
    if len(body) > MOST_BYTES:
        raise Unsuitable(f"the name of {request.handle.actor[:100]}... is too long for a request")
    return _LENGTH.pack(len(body)) + body


def unpack_length(data: bytes | bytearray) -> int:
    """How long the request is. RefusedMessage where none is so long."""
    (length,) = _LENGTH.unpack(data)
    if length > MOST_BYTES:
        raise RefusedMessage(f"a request of {length:,} bytes")
    return int(length)


def unpack_request(data: bytes | bytearray) -> Request:
    try:
        return msgspec.msgpack.decode(data, type=Request)
    except (msgspec.DecodeError, ValueError) as error:
        raise RefusedMessage(f"a damaged request: {error}") from error


def pack_head(error: Exception | None = None) -> bytes:
    """How it goes: well, or not for this reason."""
    if error is None:
        return _HEAD.pack(OK, 0)
    status = next((index for index, kind in enumerate(_ERRORS, 1) if isinstance(error, kind)), len(_ERRORS))
    text = (str(error) or type(error).__name__).encode()[:MOST_BYTES]
    return _HEAD.pack(status, len(text)) + text


def unpack_head(data: bytes | bytearray) -> tuple[int, int]:
    """The status, and the length of the text that follows."""
    status, length = _HEAD.unpack(data)
    if status > len(_ERRORS) or length > MOST_BYTES:
        raise TransferError("the host agent answered nonsense")
    return status, length


def pack_piece(data: Buffer | memoryview) -> bytes:
    """The head of a piece with these bytes."""
    return _PIECE.pack(len(data), zlib.crc32(data))


def unpack_piece(head: Buffer, most: int) -> tuple[int, int]:
    """The length of a piece, and the CRC-32 of its bytes. Raises Damaged where more come than are wanted."""
    length, crc = _PIECE.unpack(head)
    if not 0 < length <= most:
        raise Damaged(f"a piece of {length:,} bytes, where {most:,} were wanted")
    return length, crc


def check_piece(data: memoryview, crc: int) -> None:
    """Raise Damaged if these are not the bytes that were sent."""
    if zlib.crc32(data) != crc:
        raise Damaged("the bytes were damaged on the way: their CRC-32 differs")


def make_error(status: int, text: bytes | bytearray) -> Exception:
    """What the agent's answer means to who asked."""
    return _ERRORS[status - 1](text.decode(errors="replace"))
