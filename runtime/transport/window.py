"""The sliding window of one stream of a link: numbered pieces, kept until they are acknowledged. Does no I/O.

A stream leads to one receiving node. A large frame is sent in pieces, so that other frames need not wait for all of it
and a slow line never looks silent. The window bounds the unacknowledged bytes: those in flight and those that the
receiving host holds for a slow node. So a slow node slows its senders.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from meshbook.runtime.wire.frames import Buffer

PIECE_BYTES = 256 << 10
WINDOW_BYTES = 4 << 20
WINDOW_PIECES = 4096


class StreamPiece(NamedTuple):
    """A part of a frame; `ends` marks the last one."""

    number: int
    data: Buffer
    ends: bool


class MissingPiece(Exception):
    """A piece arrived while an earlier one is missing."""


class Outflow:
    """The sending end: cuts frames into pieces, and keeps each piece until it is acknowledged."""

    def __init__(self, window_bytes: int = WINDOW_BYTES, piece_bytes: int = PIECE_BYTES) -> None:
        self._window = window_bytes
        self._piece_bytes = piece_bytes
        self._number = 0
        self._waiting: deque[StreamPiece] = deque()
        self._under_way: deque[StreamPiece] = deque()
        self._bytes = 0  # in flight

    @property
    def has_room(self) -> bool:
        """Whether another frame should be put in: all earlier pieces have been sent."""
        return not self._waiting

    @property
    def is_empty(self) -> bool:
        """Whether the other end has acknowledged everything."""
        return not (self._waiting or self._under_way)

    def put(self, frame: Buffer) -> None:
        """Queue a frame, cut into pieces that share its memory."""
        view = memoryview(frame)
        for start in range(0, max(1, len(view)), self._piece_bytes):
            self._number += 1
            end = start + self._piece_bytes
            self._waiting.append(StreamPiece(self._number, view[start:end], end >= len(view)))

    def due(self) -> list[StreamPiece]:
        """Return the pieces to send now, and count them as in flight."""
        due = []
        while self._waiting:
            has_room = self._bytes + len(self._waiting[0].data) <= self._window and len(self._under_way) < WINDOW_PIECES
            # A piece that is larger than the window is sent on its own.
            if self._under_way and not has_room:
                break
            piece = self._waiting.popleft()
            self._under_way.append(piece)
            self._bytes += len(piece.data)
            due.append(piece)
        return due

    def acknowledge(self, number: int) -> None:
        """Drop the pieces up to this number. An outdated number has no effect."""
        while self._under_way and self._under_way[0].number <= number:
            self._bytes -= len(self._under_way.popleft().data)

    def resume(self, received: int) -> None:
        """Queue the pieces again that the other end has not received, for a new connection."""
        while self._under_way and self._under_way[-1].number > received:
            piece = self._under_way.pop()
            self._bytes -= len(piece.data)
            self._waiting.appendleft(piece)


class Inflow:
    """The receiving end: joins pieces to frames, and holds the frames until the node takes them."""

    def __init__(self) -> None:
        self.received = 0  # number of the last piece; none before it is missing
        self._told = 0  # the last acknowledged number
        self._whole: Buffer = b""  # the incomplete frame
        self._begun = 1  # the number of its first piece
        self._frames: deque[tuple[int, Buffer]] = deque()  # complete frames, each with the number of its first piece

    def take_in(self, piece: StreamPiece) -> None:
        """Add a piece; drop a duplicate. Raises MissingPiece if an earlier one is missing."""
        if piece.number <= self.received:
            return
        if piece.number > self.received + 1:
            raise MissingPiece(f"piece {piece.number} after {self.received}")
        self.received = piece.number
        self._add(piece.data)
        if piece.ends:
            self._frames.append((self._begun, self._whole))
            self._whole, self._begun = b"", piece.number + 1

    def _add(self, data: Buffer) -> None:
        if not self._whole:
            self._whole = data
            return
        if not isinstance(self._whole, bytearray):
            self._whole = bytearray(self._whole)
        self._whole += data  # piece by piece: joining gigabytes at the end would block the gateway for seconds

    @property
    def first(self) -> Buffer | None:
        """The next frame for the node, or None."""
        return self._frames[0][1] if self._frames else None

    def took(self) -> None:
        """Remove the first frame, which the node has taken."""
        self._frames.popleft()

    def news(self, *, anyway: bool = False) -> int | None:
        """Return the number to acknowledge, or None if it was sent before and not `anyway`.

        The pieces of an incomplete frame count as taken, since a frame may be larger than the window.
        """
        taken = max(self._told, self._frames[0][0] - 1 if self._frames else self.received)
        if taken == self._told and not anyway:
            return None
        self._told = taken
        return taken
