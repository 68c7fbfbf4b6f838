"""Ranges of memory, against a set of addresses."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshbook.runtime.memory.interval_set import IntervalSet

RANGE = st.tuples(st.integers(0, 30), st.integers(1, 6)).map(lambda pair: (pair[0], sum(pair)))


@given(st.lists(RANGE, max_size=12), RANGE)
def test_they_are_the_addresses_that_were_noted(noted: list[tuple[int, int]], asked: tuple[int, int]) -> None:
    ranges, addresses = IntervalSet(), set[int]()
    for begin, end in noted:
        ranges.add(begin, end)
        addresses.update(range(begin, end))
    assert ranges.overlaps(*asked) is not addresses.isdisjoint(range(*asked))
