"""A bell for the main thread: other threads ring it, and so does any signal. Other threads need none.

The main thread cannot wait for a lock alone. If a signal comes just before the wait, or another thread of the process
takes it, its handler runs only after the wait. In both cases Python writes a byte to its wakeup descriptor. So a wait
for that descriptor misses no signal and needs no timeout.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import socket

MOST_SECONDS = 1e6  # a longer time is no limit: the system cannot count its milliseconds
RING = b"\0"  # the number of no signal


class SignalBell:
    """Hears rings, and signals from `listen` to `close`. Afterwards an event loop gets the signals that it expects."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._theirs.setblocking(False)
        self._listens = False
        self._before = -1  # the wakeup descriptor of an event loop, or none
        self._signals = b""

    def listen(self) -> None:
        """Hear signals from now on; on the main thread. Call `close` in any case."""
        # First the flag: a signal may raise right after the call, and the descriptor must not outlive the sockets.
        self._listens = True
        try:
            self._before = signal.set_wakeup_fd(self._theirs.fileno(), warn_on_full_buffer=False)
        except ValueError:  # an embedded interpreter, whose signals go to another thread
            self._listens = False

    def ring(self) -> None:
        """End the wait; from any thread, and also after `close`."""
        with contextlib.suppress(OSError):  # it is closed, or full of rings
            self._theirs.send(RING)

    def wait(self, seconds: float) -> None:
        """Return after a ring, a signal, or so many seconds. Handlers of signals may raise from here."""
        poll = select.poll()
        poll.register(self._ours, select.POLLIN)
        poll.poll(None if seconds > MOST_SECONDS else math.ceil(seconds * 1000))
        self._take()

    def close(self) -> None:
        """Stop listening, and pass the signals on to the event loop that heard them before."""
        if self._listens:
            signal.set_wakeup_fd(self._before)
        self._take()
        if self._before >= 0 and self._signals:
            with contextlib.suppress(OSError):  # the loop is closed, or has as many as it can hold
                os.write(self._before, self._signals)
        self._ours.close()
        self._theirs.close()

    def _take(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._signals += self._ours.recv(4096).replace(RING, b"")
