"""Durations in the notation of Monarch's configuration: `500ms`, `30s`, `1m 30s`, `1day 2h`. Exact to a nanosecond."""

from __future__ import annotations

import re
from decimal import Decimal

SECOND = 1_000_000_000
# In descending order. The first name is the one written; the last flag: whether it takes a plural s.
_UNITS: tuple[tuple[int, tuple[str, ...], bool], ...] = (
    (31_557_600 * SECOND, ("year", "years", "y"), True),  # 365.25 days
    (2_630_016 * SECOND, ("month", "months", "M"), True),  # 30.44 days
    (86_400 * SECOND, ("day", "days", "d"), True),
    (3_600 * SECOND, ("h", "hr", "hour", "hours"), False),
    (60 * SECOND, ("m", "min", "minute", "minutes"), False),
    (SECOND, ("s", "sec", "second", "seconds"), False),
    (1_000_000, ("ms", "msec", "millis"), False),
    (1_000, ("us", "usec", "micros"), False),
    (1, ("ns", "nsec", "nanos"), False),
)
_WEEKS = dict.fromkeys(("w", "week", "weeks"), 7 * 86_400 * SECOND)  # read, and written as days
_SIZES = {name: size for size, names, _ in _UNITS for name in names} | _WEEKS
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")


def read_duration(text: str) -> int:
    """Return the nanoseconds of a duration; ValueError if the text is invalid."""
    place, total = 0, Decimal(0)
    while (part := _PART.match(text, place)) and part[2] in _SIZES:
        total += Decimal(part[1]) * _SIZES[part[2]]
        place = part.end()
    if not place or place < len(text):
        raise ValueError(f"invalid duration {text!r}; examples: 500ms, 30s, 1m 30s")
    return int(total)


def write_duration(nanoseconds: int) -> str:
    """Format a duration in the largest possible units."""
    if not nanoseconds:
        return "0s"
    parts = []
    for size, names, has_plural in _UNITS:
        count, nanoseconds = divmod(nanoseconds, size)
        if count:
            parts.append(f"{count}{names[0]}{'s' if has_plural and count > 1 else ''}")
    return " ".join(parts)
