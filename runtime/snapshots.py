"""Snapshots of tables that other threads change."""

from __future__ import annotations

from collections.abc import ItemsView
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def items_of(table: dict[K, V]) -> ItemsView[K, V]:
    """Return the keys and values of a dict that other threads may change meanwhile, without a lock.

    `list(table.items())` makes a tuple of each. Before Python 3.12 that may start a garbage collection, in which
    finalizers run and other threads are scheduled: "dictionary changed size during iteration". A copy is made in one
    step.
    """
    return table.copy().items()
