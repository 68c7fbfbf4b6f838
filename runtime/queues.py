"""Waiting at a `SimpleQueue` for a limited time."""

from __future__ import annotations

import queue
from typing import TypeVar

T = TypeVar("T")


def get_within(items: queue.SimpleQueue[T], seconds: float) -> T:
    """What comes next; queue.Empty where nothing comes in time. For the only thread that takes from this queue.

    Python's own `get` may wait for ever (3.11 to 3.13): where its time is over when it has seen that the last call to
    `put` is outdated, it goes on with what is left, which is less than nothing, and that means no limit. A `get_nowait`
    that fails has seen it before.
    """
    try:
        return items.get_nowait()
    except queue.Empty:
        return items.get(timeout=max(0.0, seconds))
