"""Runs of equal neighbours among values. Values that are costly or unusual to compare are not compared."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

MOST_ITEMS = 16  # of a tuple whose items are compared
MOST_DEPTH = 4  # of nested tuples; beyond that, comparing costs more than it saves


def runs_of(values: Iterable[T]) -> tuple[list[T], list[int]]:
    """Return the first value of each run of equal neighbours, and the lengths of the runs."""
    kept: list[T] = []
    counts: list[int] = []
    for value in values:
        if kept and are_same(kept[-1], value):
            counts[-1] += 1
        else:
            kept.append(value)
            counts.append(1)
    return kept, counts


def are_same(one: object, other: object, depth: int = MOST_DEPTH) -> bool:
    """Return whether one value can replace the other without a visible difference.

    Only plain numbers, strings and tuples of them are compared. Any other object, above all a tensor or an array,
    equals only itself. 1, 1.0 and True differ; so do 0.0 and -0.0, and two NaN.
    """
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, float) and isinstance(other, float):
        return type(one) is float and one == other and math.copysign(1.0, one) == math.copysign(1.0, other)
    if type(one) in (int, str, bytes):
        return one == other
    if type(one) is tuple and type(other) is tuple:
        small = len(one) == len(other) <= MOST_ITEMS and depth > 0
        return small and all(are_same(a, b, depth - 1) for a, b in zip(one, other, strict=True))
    return False
