"""Ctrl-C and the operations that change a run: start, heal, resize, detach, attach, join, stop, close.

Python raises KeyboardInterrupt between any two instructions of the main thread. An operation that is cut off there
leaves a run that neither works nor is gone. So such an operation holds SIGINT, except in the waits that it names:

    with hold_interrupts("mesh was resized"):      changes, which send messages and wait for no other process
        with allow_interrupts():                   a wait; the code around it undoes what has been done so far
            future.get()

An interrupt that was held is raised at the next such wait, or at the end. The note says what became of the operation.
While interrupts are held, a send does not wait for a full queue (`runtime.threads.HighWaterMark`): nothing could end
that wait. On threads other than the main one, which get no signals, both contexts do nothing.

The cells of ranks have their own rules (`runtime.cells.interrupts`); an interrupt of a rank is held here as well.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class _Hold:
    """The handler of SIGINT while interrupts are held; there is one, since a process has one handler."""

    def __init__(self) -> None:
        self.is_open = False  # within a wait that may be interrupted
        self.is_pending = False  # a signal was held
        self.note = ""  # of an inner context that has ended since
        self.previous: Callable[[int, FrameType | None], Any] = signal.default_int_handler

    def is_in_force(self) -> bool:
        """Whether this is the handler, and the calling thread the one that runs handlers."""
        is_handler = signal.getsignal(signal.SIGINT) == self.on_signal
        return is_handler and threading.current_thread() is threading.main_thread()

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self.is_open:
            self.is_pending = True
            return
        # Closed before the exception is raised: the code that undoes the operation must not be cut off by a second one.
        self.is_open = False
        self.previous(number, frame)
        self.is_open = True

    def raise_pending(self) -> None:
        """Pass on a signal that was held to the handler in force."""
        if self.is_pending:
            self.is_pending = False
            signal.raise_signal(signal.SIGINT)


_HOLD = _Hold()


def _in_forked_child() -> None:
    # The operation continues in the parent only. The forking thread need not be the one that holds SIGINT.
    if signal.getsignal(signal.SIGINT) == _HOLD.on_signal:
        signal.signal(signal.SIGINT, _HOLD.previous)


os.register_at_fork(after_in_child=_in_forked_child)


def holds_interrupts() -> bool:
    """Whether the calling thread holds interrupts, and is in no wait that they may end."""
    return _HOLD.is_in_force() and not _HOLD.is_open


# Classes, not generators: an interrupt in a generator's own code, before its `with` has begun, would leave its state.


class hold_interrupts:
    """A context in which SIGINT is held. `note` is added to a KeyboardInterrupt that leaves it.

    Contexts may be nested; the end of the outermost one raises. A handler that a user has set is called then. SIGINT is
    not held where it has no handler of Python's.
    """

    def __init__(self, note: str = "") -> None:
        self.note = note  # may be changed as the operation proceeds
        self._is_outermost = False
        self._was_open = False

    def __enter__(self) -> hold_interrupts:
        self._was_open = False
        if _HOLD.is_in_force():
            self._was_open = _HOLD.is_open
            _HOLD.is_open = False
        elif threading.current_thread() is threading.main_thread():
            previous = signal.getsignal(signal.SIGINT)
            if callable(previous):
                _HOLD.previous, _HOLD.is_open, _HOLD.is_pending, _HOLD.note = previous, False, False, ""
                self._is_outermost = True
                signal.signal(signal.SIGINT, _HOLD.on_signal)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, KeyboardInterrupt):
            self._add_note(error)
        try:
            if self._is_outermost:
                if _HOLD.is_in_force():  # unless user code has set another handler
                    signal.signal(signal.SIGINT, _HOLD.previous)
                _HOLD.raise_pending()
            elif self._was_open:
                _HOLD.is_open = True
                _HOLD.raise_pending()
            elif _HOLD.is_pending:
                _HOLD.note = self.note
        except KeyboardInterrupt as interrupt:
            self._add_note(interrupt)
            raise

    def _add_note(self, interrupt: KeyboardInterrupt) -> None:
        note = self.note or _HOLD.note
        if note and note not in getattr(interrupt, "__notes__", ()):
            interrupt.add_note(note)


class allow_interrupts:
    """A wait within `hold_interrupts` that an interrupt ends, also one that was held before. Later ones are held."""

    def __init__(self) -> None:
        self._is_inner = False

    def __enter__(self) -> None:
        if holds_interrupts():
            self._is_inner = True
            _HOLD.is_open = True
            _HOLD.raise_pending()

    def __exit__(self, *raised: object) -> None:
        if self._is_inner:
            _HOLD.is_open = False
