"""The policy for segments: which one a message uses, and which idle ones are freed. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

LEAST_BYTES = 1 << 20
IDLE_SECONDS = 10.0  # without use, after which the memory is freed
IDLE_BYTES = 512 << 20  # that one process keeps for its next messages
MOST_SEGMENTS = 256
RESERVE = 64  # descriptors that are left for other code


class IdleSegment(Protocol):
    """An unused segment: its capacity in bytes, and since when it is idle."""

    room: int
    idle_since: float


S = TypeVar("S", bound=IdleSegment)


def size_class(size: int) -> int:
    """Return the capacity of the segment for this many bytes: few sizes, so that segments can be reused.

    A larger segment costs nothing: untouched memory is not allocated.
    """
    return max(LEAST_BYTES, 1 << (size - 1).bit_length())


def fitting(idle: Iterable[S], size: int) -> S | None:
    """Return the last used segment of that size class: its memory is most likely cached."""
    fit = (each for each in idle if each.room == size_class(size))
    return max(fit, key=lambda each: each.idle_since, default=None)


def surplus(idle: Iterable[S], now: float) -> list[S]:
    """Return the segments to free: those idle for long, and the oldest beyond the limit."""
    gone, kept = [], 0
    for each in sorted(idle, key=lambda each: -each.idle_since):
        kept += each.room
        if now - each.idle_since >= IDLE_SECONDS or kept > IDLE_BYTES:
            gone.append(each)
            kept -= each.room
    return gone


def most_segments(soft_limit: int) -> int:
    """Return how many segments a process with this descriptor limit may have."""
    return min(MOST_SEGMENTS, soft_limit // 4)


def is_too_near(descriptor: int, soft_limit: int) -> bool:
    """Return whether too few descriptors remain above this one, the lowest free number."""
    return descriptor >= soft_limit - min(RESERVE, soft_limit // 4)
