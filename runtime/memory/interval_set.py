"""Stretches of memory that were noted, and whether another one overlaps any of them. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class IntervalSet:
    """A set of addresses, as stretches that do not touch: a question costs the logarithm of their number."""

    def __init__(self) -> None:
        self._begins: list[int] = []  # sorted, and so are the ends
        self._ends: list[int] = []

    def overlaps(self, begin: int, end: int) -> bool:
        """Whether any address from `begin` to before `end` is in it."""
        first = bisect_right(self._ends, begin)  # the first that does not end before
        return first < len(self._begins) and self._begins[first] < end

    def add(self, begin: int, end: int) -> None:
        """Note these addresses; what they touch becomes one with them."""
        first, last = bisect_left(self._ends, begin), bisect_right(self._begins, end)
        if first < last:
            begin, end = min(begin, self._begins[first]), max(end, self._ends[last - 1])
        self._begins[first:last], self._ends[first:last] = [begin], [end]
