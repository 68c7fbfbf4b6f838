"""Ctrl-C while a coroutine of ours waits."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


async def run_interruptible(work: Coroutine[Any, Any, T], act: Callable[[], object]) -> T:
    """Await this to its end; Ctrl-C does what `act` does, in the loop, and nothing else.

    A signal that comes before we have taken it over lets the kernel cancel the cell. That is an interrupt like any
    other: a cell that was just dropped would leave its ranks running.
    """
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
    with interruptible(lambda: loop.call_soon_threadsafe(act)):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                if (caller := asyncio.current_task()) is not None:
                    caller.uncancel()
                act()
    return task.result()


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


def let_signals_wake(loop: asyncio.AbstractEventLoop) -> None:
    """Have a signal wake this loop, so that what its handler cancels there is cancelled now, and not seconds later."""
    ours, pythons = socket.socketpair()
    for end in (ours, pythons):
        end.setblocking(False)
    signal.set_wakeup_fd(pythons.fileno(), warn_on_full_buffer=False)
    pythons.detach()  # it lasts as long as the process
    loop.add_reader(ours, lambda: ours.recv(4096))
