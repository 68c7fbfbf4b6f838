"""What a process and the host agent of another say to each other over TCP. The one file that knows its bytes; pure.

    agent    greeting: magic, version, nonce
    process  nonce, proof                                both prove that they know the key, and nobody else is served
    agent    proof

    process  length, Request (msgpack); for a write the bytes follow at once
    agent    status, length of text, text; for a read that goes well the bytes follow

A read is broken off by the end of the connection. What has come by then was read under the lease.
"""

from __future__ import annotations

import hmac
import struct

import msgspec

from meshbook.runtime.errors import BufferDropped, OwnerGone, RefusedMessage, TransferError, TransferTimeout
from meshbook.runtime.rdma.handle import Handle
from meshbook.runtime.rdma.ways import Unsuitable

MAGIC = b"mb-memory"
VERSION = 1
NONCE = 32  # bytes
PROOF = 32
MOST_BYTES = 1 << 16  # of a request, and of a text
_GREETING = struct.Struct(f"<{len(MAGIC)}sB{NONCE}s")
_LENGTH = struct.Struct("<I")
_HEAD = struct.Struct("<BxxxI")
GREETING_BYTES, LENGTH_BYTES, HEAD_BYTES = _GREETING.size, _LENGTH.size, _HEAD.size
OK = 0
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


def make_error(status: int, text: bytes | bytearray) -> Exception:
    """What the agent's answer means to who asked."""
    return _ERRORS[status - 1](text.decode(errors="replace"))
