"""A set of address ranges that answers whether another range overlaps any of them. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class IntervalSet:
    """A set of addresses, stored as disjoint ranges: a lookup takes logarithmic time."""

    def __init__(self) -> None:
        self._begins: list[int] = []  # sorted, as are the ends
        self._ends: list[int] = []

    def overlaps(self, begin: int, end: int) -> bool:
        """Return whether any address from `begin` to before `end` is in the set."""
        first = bisect_right(self._ends, begin)  # the first that does not end before `begin`
        return first < len(self._begins) and self._begins[first] < end

    def add(self, begin: int, end: int) -> None:
        """Add these addresses; merge the ranges that they touch."""
        first, last = bisect_left(self._ends, begin), bisect_right(self._begins, end)
        if first < last:
            begin, end = min(begin, self._begins[first]), max(end, self._ends[last - 1])
        self._begins[first:last], self._ends[first:last] = [begin], [end]
