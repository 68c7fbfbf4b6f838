"""One stream of a link between hosts, for one receiving node: numbered pieces, kept until they are taken. Pure.

A large frame travels in pieces, so that nothing else has to wait for the whole of it, and so that whoever receives it
over a slow line hears something all the time. The window bounds what is under way, and what waits at the other end for
a node that is slow to take it: that is how its slowness comes back to its senders.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from meshbook.runtime.wire.frames import Buffer

PIECE_BYTES = 256 << 10
WINDOW_BYTES = 4 << 20
WINDOW_PIECES = 4096


class Piece(NamedTuple):
    """A part of a frame; `ends` with the last one."""

    number: int
    data: Buffer
    ends: bool


class Gap(Exception):
    """A piece came before another one that is missing."""


class Outflow:
    """The sending end. Frames are put in, pieces come out when they are due, and stay until they are acknowledged."""

    def __init__(self, window_bytes: int = WINDOW_BYTES, piece_bytes: int = PIECE_BYTES) -> None:
        self._window = window_bytes
        self._piece_bytes = piece_bytes
        self._number = 0
        self._waiting: deque[Piece] = deque()
        self._under_way: deque[Piece] = deque()
        self._bytes = 0  # under way

    @property
    def has_room(self) -> bool:
        """Whether a frame should be put in: the ones before have left."""
        return not self._waiting

    @property
    def is_empty(self) -> bool:
        """Whether everything that was put in has been taken at the other end."""
        return not (self._waiting or self._under_way)

    def put(self, frame: Buffer) -> None:
        """Cut a frame into pieces. They share its memory."""
        view = memoryview(frame)
        for start in range(0, max(1, len(view)), self._piece_bytes):
            self._number += 1
            end = start + self._piece_bytes
            self._waiting.append(Piece(self._number, view[start:end], end >= len(view)))

    def due(self) -> list[Piece]:
        """What is to be sent now; it is under way from here on."""
        due = []
        while self._waiting and self._fits(self._waiting[0]):
            piece = self._waiting.popleft()
            self._under_way.append(piece)
            self._bytes += len(piece.data)
            due.append(piece)
        return due

    def _fits(self, piece: Piece) -> bool:
        if not self._under_way:
            return True  # whatever its size: else it would never go
        return self._bytes + len(piece.data) <= self._window and len(self._under_way) < WINDOW_PIECES

    def acknowledge(self, number: int) -> None:
        """Everything up to this number has been taken. An older number than before means nothing."""
        while self._under_way and self._under_way[0].number <= number:
            self._bytes -= len(self._under_way.popleft().data)

    def resume(self, received: int) -> None:
        """A new connection: what the other end has not received is due again."""
        while self._under_way and self._under_way[-1].number > received:
            piece = self._under_way.pop()
            self._bytes -= len(piece.data)
            self._waiting.appendleft(piece)


class Inflow:
    """The receiving end. Pieces come in, whole frames wait here until they are taken, one after the other."""

    def __init__(self) -> None:
        self.received = 0  # the last number; none before it is missing
        self._told = 0  # what the other end knows to be taken
        self._whole: Buffer = b""  # the frame that is not whole yet
        self._begun = 1  # the number of its first piece
        self._frames: deque[tuple[int, Buffer]] = deque()  # whole ones, each with the number of its first piece

    def take_in(self, piece: Piece) -> None:
        """Note a piece; one that came before is dropped. Gap where one before it is missing."""
        if piece.number <= self.received:
            return
        if piece.number > self.received + 1:
            raise Gap(f"piece {piece.number} after {self.received}")
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
        self._whole += data  # piece by piece: to join gigabytes at once would keep the gateway silent for seconds

    @property
    def first(self) -> Buffer | None:
        """The frame that is to be taken next."""
        return self._frames[0][1] if self._frames else None

    def took(self) -> None:
        """The first frame has been taken."""
        self._frames.popleft()

    def news(self, *, anyway: bool = False) -> int | None:
        """Up to where everything is taken, for an acknowledgement; None where the other end knows, unless `anyway`.

        The pieces of a frame that is not whole yet count as taken: it may be larger than the window.
        """
        taken = max(self._told, self._frames[0][0] - 1 if self._frames else self.received)
        if taken == self._told and not anyway:
            return None
        self._told = taken
        return taken
