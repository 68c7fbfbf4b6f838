"""Interrupts of cells: bound to one execution, raised in the user's code and nowhere else.

The main thread runs cells, the control thread asks for interrupts; what they share is the one object at the bottom,
because a process has one handler of SIGINT.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import Any

# Seconds after a signal, for another one: one that comes in the instant before a blocking call begins is felt only when
# that call ends, which may be never. Few, because C code that waits may take each of them for a failure.
INSIST = (0.05, 0.2, 0.5, 1.0)
MOST_WANTED = 1000  # a request for an execution that is over already is not told from one for one that is to come


class Interrupts:
    """Whether a cell runs, which, and whether it is to be interrupted."""

    def __init__(self) -> None:
        self.origin = ""  # the execution that runs now
        self.is_open = False  # whether user code of it does
        self._aborting = threading.Lock()  # held while process groups are broken
        self._aborted = ""  # the last execution for which they were
        self._wanted: dict[str, None] = {}  # executions that are to be interrupted, those that are yet to come as well
        self._show_unraisable: Callable[[Any], object] = sys.unraisablehook
        self._main = threading.main_thread().ident or 0

    def install(self) -> None:
        """Take over SIGINT, and what is lost of it; on the main thread."""
        signal.signal(signal.SIGINT, self._on_signal)
        self._show_unraisable = sys.unraisablehook
        sys.unraisablehook = self._on_unraisable

    def request(self, origin: str) -> bool:
        """Interrupt this execution, from any thread. False where it is not running.

        Where it is yet to come, its user code ends before it begins: the cell waits for the main thread, maybe behind
        other cells, and a request, which does not, may be here first.
        """
        self._want(origin)
        if self.origin != origin:
            return False
        self._signal()
        self._begin_to_insist(origin)
        return True

    def _want(self, origin: str) -> None:
        self._wanted[origin] = None
        if len(self._wanted) > MOST_WANTED:
            del self._wanted[next(iter(self._wanted))]

    def _signal(self) -> None:
        # To the thread and not to the process, so that a blocking call of the main thread returns.
        signal.pthread_kill(self._main, signal.SIGINT)

    def _begin_to_insist(self, origin: str) -> None:
        threading.Thread(target=self._insist, args=(origin,), name="meshbook interrupt", daemon=True).start()

    def _insist(self, origin: str) -> None:
        for pause in INSIST:
            time.sleep(pause)  # a signal that was not felt tells nobody
            if not self._is_unheard(origin):
                return
            self._signal()

    def _is_unheard(self, origin: str) -> bool:
        """Whether the signal has reached nobody; a handler of the user's own would get each, and cannot tell us."""
        is_wanted = origin in self._wanted and self.origin == origin
        return is_wanted and signal.getsignal(signal.SIGINT) == self._on_signal

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # Outside of user code a KeyboardInterrupt would break the runtime, or be swallowed by IPython. One that comes
        # late, when another cell runs already, is for nobody.
        if self.is_open:
            self.raise_wanted()

    def _on_unraisable(self, unraisable: Any) -> None:
        """Python drops what is raised in a finaliser or a callback of C's. An interrupt that came there comes again."""
        is_ours = unraisable.exc_type is KeyboardInterrupt and threading.get_ident() == self._main and self.origin
        if not is_ours:
            self._show_unraisable(unraisable)
            return
        self._want(self.origin)
        self._begin_to_insist(self.origin)  # not at once: this hook is no place to raise it either

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

    def during(self, origin: str) -> AbstractContextManager[None]:
        """Around this execution, with what the runtime and IPython do for it."""
        return _Execution(self, origin)

    def user_code(self) -> AbstractContextManager[None]:
        """Around user code of the execution, and nothing else. KeyboardInterrupt where that has been asked for."""
        return _UserCode(self)

    def runtime_code(self) -> AbstractContextManager[None]:
        """Around code of the runtime that user code has called, where KeyboardInterrupt would break something.

        On other threads, where it is never raised, it does nothing. One that has been asked for meanwhile is raised at
        the end.
        """
        return _RuntimeCode(self) if threading.get_ident() == self._main else nullcontext()

    def raise_wanted(self) -> None:
        """KeyboardInterrupt, once, if this execution is to be interrupted."""
        if self.origin in self._wanted:
            del self._wanted[self.origin]
            raise KeyboardInterrupt

    def forget(self, origin: str) -> None:
        """This execution is over."""
        self._wanted.pop(origin, None)


# No generators: one that a signal cuts off before its `with` has begun is closed at some later time, in another cell.


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
    """Cells may run cells: at the end of the inner one the outer one goes on."""

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self._was_open = interrupts.is_open

    def __enter__(self) -> None:
        try:
            self._interrupts.is_open = True
            self._interrupts.raise_wanted()
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
            self._interrupts.raise_wanted()


INTERRUPTS = Interrupts()
