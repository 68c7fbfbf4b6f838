"""Interrupts of cells: each is bound to one execution, and raised only in the user's code.

The main thread runs cells, and the control thread requests interrupts. They share the one object at the bottom, since a
process has one handler of SIGINT.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import Any

# Seconds after a signal, until it is sent again. A signal in the instant before a blocking call begins takes effect
# only when that call ends, which may be never. Few, because C code that waits may take each of them for a failure.
REPEAT_AFTER = (0.05, 0.2, 0.5, 1.0)
MOST_REQUESTS = 1000  # the table also holds requests for ended executions, which look like requests for later ones


class Interrupts:
    """The running cell, and whether it is to be interrupted."""

    def __init__(self) -> None:
        self.origin = ""  # the execution that runs now
        self.is_open = False  # whether its user code runs
        self._aborting = threading.Lock()  # held while process groups are broken
        self._aborted = ""  # the last execution for which they were broken
        self._requested: dict[str, None] = {}  # executions to interrupt, running or yet to come
        self._show_unraisable: Callable[[Any], object] = sys.unraisablehook
        self._main = threading.main_thread().ident or 0

    def install(self) -> None:
        """Install the handler of SIGINT and the hook for unraisable exceptions; on the main thread."""
        signal.signal(signal.SIGINT, self._on_signal)
        os.register_at_fork(after_in_child=self._become_child)
        self._show_unraisable = sys.unraisablehook
        sys.unraisablehook = self._on_unraisable

    def request(self, origin: str) -> bool:
        """Interrupt this execution, from any thread. False if it is not running.

        An execution that is yet to come ends before its user code begins. The cell waits for the main thread, maybe
        behind other cells, so the request may arrive before it.
        """
        self._add_request(origin)
        if self.origin != origin:
            return False
        interrupt_group()
        self._start_repeating(origin)
        return True

    def _add_request(self, origin: str) -> None:
        self._requested[origin] = None
        if len(self._requested) > MOST_REQUESTS:
            del self._requested[next(iter(self._requested))]

    def _signal(self) -> None:
        # To the thread and not to the process, so that a blocking call of the main thread returns.
        signal.pthread_kill(self._main, signal.SIGINT)

    def _start_repeating(self, origin: str) -> None:
        threading.Thread(target=self._repeat_signal, args=(origin,), name="meshbook interrupt", daemon=True).start()

    def _repeat_signal(self, origin: str) -> None:
        for pause in REPEAT_AFTER:
            time.sleep(pause)  # there is no event for a signal without effect
            if origin not in self._requested or self.origin != origin:
                return  # the signal has had its effect
            if signal.getsignal(signal.SIGINT) != self._on_signal:
                return  # a handler of the user's own, which gets each signal
            self._signal()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # Outside of user code a KeyboardInterrupt would break the runtime, or be swallowed by IPython. A late one, when
        # another cell already runs, is dropped.
        if self.is_open:
            self.raise_requested()

    def _become_child(self) -> None:
        # A forked child runs no cells; it may have been forked from another thread than the main one.
        if signal.getsignal(signal.SIGINT) == self._on_signal:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _on_unraisable(self, unraisable: Any) -> None:
        """Repeat an interrupt that was raised in a finalizer or a C callback, where Python drops it."""
        is_ours = unraisable.exc_type is KeyboardInterrupt and threading.get_ident() == self._main and self.origin
        if not is_ours:
            self._show_unraisable(unraisable)
            return
        self._add_request(self.origin)
        self._start_repeating(self.origin)  # not at once: this hook cannot raise it either

    @contextmanager
    def aborting(self, origin: str) -> Iterator[None]:
        """A context for breaking the process groups for this execution."""
        with self._aborting:
            self._aborted = origin
            yield

    def was_aborted(self, origin: str) -> bool:
        """Whether process groups were broken for this execution. Waits while they are being broken."""
        with self._aborting:
            return self._aborted == origin

    def during(self, origin: str) -> AbstractContextManager[None]:
        """A context for this execution, with the work of the runtime and IPython around it."""
        return _Execution(self, origin)

    def user_code(self) -> AbstractContextManager[None]:
        """A context for user code of the execution only. Raises a requested KeyboardInterrupt."""
        return _UserCode(self)

    def runtime_code(self) -> AbstractContextManager[None]:
        """A context for runtime code called by user code, which a KeyboardInterrupt would break.

        It does nothing on other threads, where KeyboardInterrupt is never raised. An interrupt that is requested
        meanwhile is raised at the end.
        """
        return _RuntimeCode(self) if threading.get_ident() == self._main else nullcontext()

    def raise_requested(self) -> None:
        """Raise KeyboardInterrupt, once, if this execution is to be interrupted."""
        if self.origin in self._requested:
            del self._requested[self.origin]
            raise KeyboardInterrupt

    def forget(self, origin: str) -> None:
        """Drop the request for this execution, which has ended."""
        self._requested.pop(origin, None)


def interrupt_group() -> None:
    """Send SIGINT to this process and its children, as Ctrl-C in a terminal; to this process alone if it is a child.

    The main thread may wait for a child, and ignores SIGINT while it waits in `os.system`.
    """
    pid = os.getpid()
    if os.getpgrp() == pid:
        os.killpg(pid, signal.SIGINT)
    else:
        os.kill(pid, signal.SIGINT)


# Classes, not generators: a generator that a signal cuts off before its `with` has begun is closed at some later time,
# in another cell.


class _Execution(AbstractContextManager[None]):
    def __init__(self, interrupts: Interrupts, origin: str) -> None:
        self._interrupts = interrupts
        self._origin = origin

    def __enter__(self) -> None:
        self._interrupts.origin = self._origin

    def __exit__(self, *raised: object) -> None:
        self._interrupts.is_open = False
        self._interrupts.origin = ""
        self._interrupts.forget(self._origin)


class _UserCode(AbstractContextManager[None]):
    """Restores the state of the outer cell at its end, since cells may run cells."""

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self._was_open = interrupts.is_open

    def __enter__(self) -> None:
        try:
            self._interrupts.is_open = True
            self._interrupts.raise_requested()
        except KeyboardInterrupt:
            self._interrupts.is_open = self._was_open
            raise

    def __exit__(self, *raised: object) -> None:
        self._interrupts.is_open = self._was_open


class _RuntimeCode(AbstractContextManager[None]):
    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self._was_open = interrupts.is_open

    def __enter__(self) -> None:
        self._interrupts.is_open = False

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        self._interrupts.is_open = self._was_open
        if self._was_open and kind is None:
            self._interrupts.raise_requested()


INTERRUPTS = Interrupts()
