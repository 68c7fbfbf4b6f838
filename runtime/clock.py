"""The clock of the runtime, bound at import: programs replace the functions of `time`, and messages must still flow.

The functions are default arguments, since freezegun replaces those that are in the namespace of a module.
"""

from __future__ import annotations

import time
from collections.abc import Callable


def monotonic(_monotonic: Callable[[], float] = time.monotonic) -> float:
    """Return the seconds of a clock that never goes back."""
    return _monotonic()


def sleep(seconds: float, _sleep: Callable[[float], None] = time.sleep) -> None:
    """Suspend the calling thread for so many seconds."""
    _sleep(seconds)


def thread_time(_thread_time: Callable[[], float] = time.thread_time) -> float:
    """Return the seconds of processor time that the calling thread has used."""
    return _thread_time()
