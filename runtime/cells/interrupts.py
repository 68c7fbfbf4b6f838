"""Interrupts of cells: bound to one execution, raised in the user's code and nowhere else.

The main thread runs cells, the control thread asks for interrupts; what they share is the one object at the bottom,
because a process has one handler of SIGINT.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

# Seconds after a signal, for another one: one that comes in the instant before a blocking call begins is felt only when
# that call ends, which may be never. Few, because C code that waits may take each of them for a failure.
INSIST = (0.05, 0.2, 0.5, 1.0)


class Interrupts:
    """Whether a cell runs, which, and whether it is to be interrupted."""

    def __init__(self) -> None:
        self.origin = ""  # the execution that runs user code now
        self._aborting = threading.Lock()  # held while process groups are broken
        self._aborted = ""  # the last execution for which they were
        self._wanted = ""
        self._main = threading.main_thread().ident or 0

    def install(self) -> None:
        """Take over SIGINT; on the main thread."""
        signal.signal(signal.SIGINT, self._on_signal)

    def request(self, origin: str) -> bool:
        """Interrupt this execution, from any thread. False where it is not (or no longer) running."""
        if self.origin != origin:
            return False
        self._wanted = origin
        self._signal()
        threading.Thread(target=self._insist, args=(origin,), name="meshbook interrupt", daemon=True).start()
        return True

    def _signal(self) -> None:
        # To the thread and not to the process, so that a blocking call of the main thread returns.
        signal.pthread_kill(self._main, signal.SIGINT)

    def _insist(self, origin: str) -> None:
        for pause in INSIST:
            time.sleep(pause)
            if not self._is_unheard(origin):
                return
            self._signal()

    def _is_unheard(self, origin: str) -> bool:
        """Whether the signal has reached nobody; a handler of the user's own would get each, and cannot tell us."""
        return self._wanted == self.origin == origin and signal.getsignal(signal.SIGINT) == self._on_signal

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # Outside of user code a KeyboardInterrupt would break the runtime; and one that comes late, when another cell
        # runs already, is for nobody.
        if self.origin and self.origin == self._wanted:
            self._wanted = ""
            raise KeyboardInterrupt

    @contextmanager
    def aborting(self, origin: str) -> Iterator[None]:
        """Around the breaking of process groups for this execution."""
        with self._aborting:
            self._aborted = origin
            yield

    def was_aborted(self, origin: str) -> bool:
        """Whether process groups were broken for this execution; waits for the end of that."""
        with self._aborting:
            return self._aborted == origin

    def during(self, origin: str) -> _Window:
        """`with interrupts.during(origin):` around user code, and nothing but user code."""
        return _Window(self, origin)


class _Window:
    def __init__(self, interrupts: Interrupts, origin: str) -> None:
        self._interrupts = interrupts
        self._origin = origin

    def __enter__(self) -> None:
        self._interrupts.origin = self._origin

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._interrupts.origin = ""


INTERRUPTS = Interrupts()
