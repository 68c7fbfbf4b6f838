"""Wait for several futures as one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from meshbook.runtime.actor.future import Future


def when_settled(futures: Sequence[Future[Any]], go_on: Callable[[], None]) -> None:
    """Call `go_on` once all of these futures are settled, with a value or an error."""
    lock = threading.Lock()  # guards `left`
    left = len(futures)

    def count() -> None:
        nonlocal left
        with lock:
            left -= 1
            is_last = not left
        if is_last:
            go_on()

    if not futures:
        go_on()
    for future in futures:
        future.when_done(count)
