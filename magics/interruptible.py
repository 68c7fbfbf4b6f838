"""Ctrl-C while a coroutine of ours waits."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interruptible(act: Callable[[], object]) -> Iterator[None]:
    """Ctrl-C does this, and nothing else: the kernel's own handler does not wake the loop, and is seconds late."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, lambda number, frame: act())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
