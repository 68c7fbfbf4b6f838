"""Queues that are waited at for a limited time."""

from __future__ import annotations

import contextlib
import queue
import threading

import pytest

from meshbook.runtime.queues import get_within
from tests.support import PATIENCE


def test_what_is_there_or_comes_is_taken() -> None:
    items: queue.SimpleQueue[int] = queue.SimpleQueue()
    items.put(1)
    assert get_within(items, 0.0) == 1
    threading.Timer(0.01, items.put, [2]).start()
    assert get_within(items, PATIENCE) == 2


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 0.001])
def test_where_nothing_comes_it_ends(seconds: float) -> None:
    items: queue.SimpleQueue[int] = queue.SimpleQueue()
    with pytest.raises(queue.Empty):
        get_within(items, seconds)


def test_a_limit_holds_however_soon_it_is_over() -> None:
    """Python's own `get` hangs after some thousand rounds of this."""
    items: queue.SimpleQueue[int] = queue.SimpleQueue()
    done = threading.Event()

    def take() -> None:
        for number in range(8_000):
            items.put(number)
            items.get()
            with contextlib.suppress(queue.Empty):
                get_within(items, 1e-6)
        done.set()

    threading.Thread(target=take, daemon=True).start()
    assert done.wait(PATIENCE)
