"""Interrupts of cells: bound to one execution, raised in the user's code and nowhere else.

The main thread runs cells, the control thread asks for interrupts; what they share is the one object at the bottom,
because a process has one handler of SIGINT.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class Interrupts:
    """Whether a cell runs, which, and whether it is to be interrupted."""

    def __init__(self) -> None:
        self.origin = ""  # the execution that runs user code now
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
        # To the thread and not to the process, so that a blocking call of the main thread returns.
        signal.pthread_kill(self._main, signal.SIGINT)
        return True

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # Outside of user code a KeyboardInterrupt would break the runtime; and one that comes late, when another cell
        # runs already, is for nobody.
        if self.origin and self.origin == self._wanted:
            self._wanted = ""
            raise KeyboardInterrupt

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
