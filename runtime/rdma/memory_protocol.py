"""The TCP protocol between a process and the host agent of another process. The only file that knows its bytes; pure.

    agent    greeting: magic, version, nonce
    process  nonce, proof                                both sides prove that they have the key, or are not served
    agent    proof
    process  length, TransferRequest (msgpack); for a write the pieces follow at once
    agent    length, status and text; for a successful read the pieces follow
    a piece  bytes: the rest, `PIECE` at most

After the handshake each of these parts is sealed (AES-256-GCM): encrypted, followed by a tag. Each side seals with its
own key, derived from the agent's key and both nonces, and numbers what it seals. So changes, replays and reordering are
detected. A failing read ends with the connection; the bytes that arrived before were read under the lease.
"""

from __future__ import annotations

import hmac
import struct

import msgspec

from meshbook.runtime.errors import BufferDropped, OwnerGone, RefusedMessage, TransferError, TransferTimeout
from meshbook.runtime.rdma.backends import BufferHandle, Unsuitable

MAGIC = b"mb-memory"
VERSION = 3
NONCE = 32  # bytes
PROOF = 32
TAG = 16
MOST_BYTES = 1 << 16  # of a request, and of an answer
_GREETING = struct.Struct(f"<{len(MAGIC)}sB{NONCE}s")
_LENGTH = struct.Struct("<I")
GREETING_BYTES, LENGTH_BYTES = _GREETING.size, _LENGTH.size
OK = 0
Buffer = bytes | bytearray | memoryview
_ERRORS: tuple[type[Exception], ...] = (BufferDropped, OwnerGone, TransferTimeout, Unsuitable, TransferError)


class TransferRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request to move `size` bytes to or from this memory, from its byte `offset` on, within `seconds`."""

    handle: BufferHandle
    offset: int
    size: int
    is_write: bool
    seconds: float

    def __post_init__(self) -> None:
        if self.offset < 0 or self.size < 1 or self.offset + self.size > self.handle.size:
            raise ValueError("it requests bytes outside the buffer")
        if not 0 <= self.seconds < float("inf"):
            raise ValueError("its time limit is invalid")


_decode_request = msgspec.msgpack.Decoder(TransferRequest).decode


# -- handshake -------------------------------------------------------------------------


def pack_greeting(nonce: bytes) -> bytes:
    return _GREETING.pack(MAGIC, VERSION, nonce)


def unpack_greeting(data: bytes | bytearray) -> bytes:
    """Return the agent's nonce. Raises RefusedMessage if it is not an agent of this version."""
    magic, version, nonce = _GREETING.unpack(data)
    if (magic, version) != (MAGIC, VERSION):
        raise RefusedMessage("the peer is not a host agent of this version")
    return bytes(nonce)


def prove(key: bytes, side: str, asked: bytes, own: bytes) -> bytes:
    """Return the proof that `side` ("agent", "process") has the key; `asked` is the nonce of the other side."""
    return hmac.digest(key, b"%s %s %s" % (side.encode(), asked, own), "sha256")


def is_proof(proof: bytes, key: bytes, side: str, asked: bytes, own: bytes) -> bool:
    return hmac.compare_digest(proof, prove(key, side, asked, own))


class DamagedData(ConnectionError):
    """Received bytes differ from those sent on this connection: they were changed on the way, or replayed."""


class Seal:
    """Seals what one side sends on one connection, in order; the other side opens it with a seal of its own.

    `nonces` are those of the handshake: without them the same key and number would seal two different messages, which
    AES-GCM does not allow.
    """

    def __init__(self, key: bytes, side: str, nonces: bytes) -> None:
        # Weight: 40 ms, only for data of other hosts.
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._invalid = InvalidTag
        self._cipher = AESGCM(hmac.digest(key, b"seal " + side.encode() + nonces, "sha256"))
        self._count = 0

    def seal(self, data: Buffer, sealed: Buffer) -> None:
        """Seal these bytes into a buffer that is `TAG` bytes larger. They may change meanwhile: they are read once."""
        self._cipher.encrypt_into(self._next(), data, None, sealed)

    def open(self, sealed: Buffer, data: Buffer) -> None:
        """Open sealed bytes into a buffer that is `TAG` bytes smaller.

        Raises DamagedData; the buffer's contents are then invalid.
        """
        try:
            self._cipher.decrypt_into(self._next(), sealed, None, data)
        except self._invalid:
            raise DamagedData("the received data was changed in transit, or replayed") from None

    def _next(self) -> bytes:
        self._count += 1
        return self._count.to_bytes(12, "big")


# -- requests and answers ------------------------------------------------------------------


def pack_request(request: TransferRequest) -> bytes:
    body = msgspec.msgpack.encode(request)
    if len(body) > MOST_BYTES:
        raise Unsuitable(f"the name of {request.handle.actor[:100]}... is too long for a request")
    return body


def unpack_request(data: Buffer) -> TransferRequest:
    try:
        return _decode_request(data)
    except (msgspec.DecodeError, ValueError) as error:
        raise RefusedMessage(f"a damaged request: {error}") from error


def pack_answer(error: Exception | None = None) -> bytes:
    """Return the answer: success, or this error."""
    if error is None:
        return bytes([OK])
    status = next((index for index, kind in enumerate(_ERRORS, 1) if isinstance(error, kind)), len(_ERRORS))
    return bytes([status]) + (str(error) or type(error).__name__).encode()[: MOST_BYTES - 1]


def unpack_answer(data: Buffer) -> Exception | None:
    """Return the error in the agent's answer; None on success."""
    if not data or data[0] > len(_ERRORS):
        raise TransferError("the host agent sent an invalid answer")
    status, text = data[0], bytes(data[1:])
    return None if status == OK else _ERRORS[status - 1](text.decode(errors="replace"))


def pack_length(length: int) -> bytes:
    """Return the length prefix of a request or an answer."""
    return _LENGTH.pack(length)


def unpack_length(data: Buffer) -> int:
    """Return the length of the request or answer. Raises DamagedData if it is over the limit."""
    (length,) = _LENGTH.unpack(data)
    if length > MOST_BYTES:
        raise DamagedData(f"a message of {length:,} bytes")
    return int(length)
