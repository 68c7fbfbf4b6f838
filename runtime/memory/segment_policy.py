"""Which segment is taken for a message, and which of the idle ones are let go. Pure: sizes and times are passed in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

LEAST_BYTES = 1 << 20
IDLE_SECONDS = 10.0  # without use, after which the memory goes back
IDLE_BYTES = 512 << 20  # that one process keeps for its next messages
MOST_SEGMENTS = 256
RESERVE = 64  # descriptors that are left to others


class IdleSegment(Protocol):
    """A segment that nobody uses: how many bytes it has room for, and since when it is idle."""

    room: int
    idle_since: float


S = TypeVar("S", bound=IdleSegment)


def size_class(size: int) -> int:
    """The room of the segment for so many bytes: few sizes, so that one that was used before fits.

    To be larger costs nothing: what is never touched takes no memory.
    """
    return max(LEAST_BYTES, 1 << (size - 1).bit_length())


def fitting(idle: Iterable[S], size: int) -> S | None:
    """The one that was used last, of that class: its memory is the warmest."""
    fit = (each for each in idle if each.room == size_class(size))
    return max(fit, key=lambda each: each.idle_since, default=None)


def surplus(idle: Iterable[S], now: float) -> list[S]:
    """What is let go: what was idle for long, and the oldest of what is too much."""
    gone, kept = [], 0
    for each in sorted(idle, key=lambda each: -each.idle_since):
        kept += each.room
        if now - each.idle_since >= IDLE_SECONDS or kept > IDLE_BYTES:
            gone.append(each)
            kept -= each.room
    return gone


def most_segments(soft_limit: int) -> int:
    """How many segments a process may have that may have so many descriptors."""
    return min(MOST_SEGMENTS, soft_limit // 4)


def is_too_near(descriptor: int, soft_limit: int) -> bool:
    """Whether there is too little room for others above this one, the lowest number that was free."""
    return descriptor >= soft_limit - min(RESERVE, soft_limit // 4)
