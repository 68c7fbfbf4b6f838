"""Unsent output of a process, in a file that outlives it: the worker writes it, its agent reads it.

The file is mapped, so keeping a piece is one copy in memory, without a system call:

    header    how much of the descriptors' files was sent; the mesh, rank and cell of the process
    2 halves  pieces, one after the other, up to a length of 0

The worker writes to one half. Once all pieces of the other half have left the process, it clears that half and switches
to it. So the file may hold pieces that were sent; a `SentMark` in each chunk gives the controller's position.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

from meshbook.runtime.telemetry.output import LogOptions, SentMark, StreamName, UnsentOutput

HALF_BYTES = 256 << 10
PIECE_CHARACTERS = 16 << 10  # a longer text is kept in several pieces
PAST_BYTES = 4 << 20  # how much of a descriptor's unsent bytes is kept, from the end
_HEADER_BYTES = mmap.ALLOCATIONGRANULARITY
_SENT = struct.Struct("=QQ")  # bytes of the file of stdout, of that of stderr
_LENGTH = struct.Struct("=I")
_PIECE = struct.Struct("=IQ?H")  # bytes of the text, number, whether it is stderr, bytes of the origin
_pack_piece = _PIECE.pack


class OutputOwner(msgspec.Struct, frozen=True, array_like=True):
    """The owner of output: a rank of a mesh. `origin` is the running cell."""

    mesh: str
    rank: int
    options: LogOptions
    origin: str = ""


_decode_owner = msgspec.msgpack.Decoder(OutputOwner).decode


def unsent_file(folder: Path, node: str) -> Path:
    return folder / f"{node}.unsent"


class UnsentFile:
    """The worker's side. If the disk has no room for the file, nothing is kept."""

    def __init__(self, folder: Path, node: str) -> None:
        maps = _map(unsent_file(folder, node))
        self._is_on = bool(maps)
        if self._is_on:
            self._header, self._current, self._other = maps
        self._is_full = False  # new pieces are dropped until there is room
        self._last: int | None = None  # no piece in the other half has a higher number; None: not known yet

    def add(self, number: int, origin: str, stream: StreamName, text: str) -> bool:
        """Keep a piece of at most `PIECE_CHARACTERS`; return whether there was room. For any thread and handler.

        `number` counts the pieces that this process has written.
        """
        if self._is_full or not self._is_on:
            return True
        data = text.encode() if text.isascii() else text.encode("utf-8", "surrogatepass")
        name = origin.encode()
        try:
            # One call, which copies and advances the position: no other thread can interleave.
            self._current.write(_pack_piece(len(data), number, stream == "stderr", len(name)) + name + data)
        except ValueError:
            return False
        return True

    def pause(self) -> None:
        """Keep nothing until the next `switch_halves` makes room."""
        self._is_full = True

    def switch_halves(self, taken: int, left: SentMark) -> None:
        """Make room before more is read: everything up to the mark `left` has left this process.

        `taken` is the highest number that was read. For one thread at a time.
        """
        if not self._is_on:
            return
        _SENT.pack_into(self._header, 0, left.stdout, left.stderr)
        if self._last is None:
            self._last = taken
        if left.number < self._last:
            return
        if used := self._other.tell():
            self._other[:used] = bytes(used)
            self._other.seek(0)
        if self._current.tell():
            # By the next `switch_halves`, all its pieces have been read.
            self._current, self._other, self._last = self._other, self._current, None
            self._is_full = False

    def set_owner(self, owner: OutputOwner) -> None:
        """Record the owner of output from now on."""
        if self._is_on:
            data = msgspec.msgpack.encode(owner)[: _HEADER_BYTES - _SENT.size - _LENGTH.size]
            _LENGTH.pack_into(self._header, _SENT.size, 0)  # if the process is killed now, its output has no owner
            start = _SENT.size + _LENGTH.size
            self._header[start : start + len(data)] = data
            _LENGTH.pack_into(self._header, _SENT.size, len(data))


def _map(path: Path) -> list[mmap.mmap]:
    """Return the header and the halves of a new file; an empty list if it cannot be created."""
    descriptor = -1
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        # The file must have no holes: on a full disk, a write to a mapped hole raises SIGBUS.
        os.posix_fallocate(descriptor, 0, _HEADER_BYTES + 2 * HALF_BYTES)
        header = mmap.mmap(descriptor, _HEADER_BYTES)
        return [header, *(mmap.mmap(descriptor, HALF_BYTES, offset=_HEADER_BYTES + i * HALF_BYTES) for i in (0, 1))]
    except (OSError, AttributeError):  # macOS has no posix_fallocate
        path.unlink(missing_ok=True)
        return []
    finally:
        if descriptor >= 0:
            os.close(descriptor)


# -- the agent's side ------------------------------------------------------------------


def read_unsent(folder: Path, node: str) -> UnsentOutput | None:
    """Return output that an ended process may not have sent; None if there is none."""
    try:
        # Mapped: most of it is unused, and reading that would take most of the time.
        with (
            open(unsent_file(folder, node), "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            sent = _SENT.unpack_from(data)
            (length,) = _LENGTH.unpack_from(data, _SENT.size)
            start = _SENT.size + _LENGTH.size
            owner = _decode_owner(data[start : start + length])
            halves = (_pieces(data, _HEADER_BYTES + at) for at in (0, HALF_BYTES))
            pieces = sorted(itertools.chain.from_iterable(halves), key=lambda piece: piece[0])
    except (OSError, ValueError, struct.error, msgspec.DecodeError):  # a ValueError: it is empty
        return None
    past = [_read_from(folder / f"{node}.{suffix}", at) for suffix, at in zip(("out", "err"), sent, strict=True)]
    if not pieces and not any(data for _, data in past):
        return None
    return UnsentOutput(node, owner.mesh, owner.rank, owner.options, owner.origin, pieces, past)


def _pieces(data: mmap.mmap, at: int) -> Iterator[tuple[int, str, StreamName, str]]:
    """Yield the pieces of the half that begins at this position."""
    end = min(at + HALF_BYTES, len(data))
    while at + _PIECE.size <= end:
        length, number, is_stderr, of_origin = _PIECE.unpack_from(data, at)
        at += _PIECE.size
        if not length:
            return
        origin = data[at : at + of_origin].decode("utf-8", "replace")
        at += of_origin
        text = _decode(data[at : at + length])
        at += length
        yield number, origin, "stderr" if is_stderr else "stdout", text


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:  # the process was killed while it wrote the piece
        return data.decode("utf-8", "replace")


def _read_from(path: Path, start: int) -> tuple[int, bytes]:
    """Return the position and content of a file from `start` on, but at most its last `PAST_BYTES`."""
    try:
        with open(path, "rb") as file:
            start = max(start, file.seek(0, os.SEEK_END) - PAST_BYTES)
            file.seek(start)
            return start, file.read(PAST_BYTES)
    except OSError:
        return start, b""
