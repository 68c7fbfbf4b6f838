"""The user's signal handlers on a worker: their exceptions are raised in user code only.

Python runs a handler between two instructions of the main thread, and raises its exception there. In the code of the
runtime it would end the serving of an actor, or lose a message. So outside of user code it is reported instead.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from meshbook.runtime.node.execution import is_of_user
from meshbook.runtime.traces import format_error
from meshbook.runtime.wire import pickling

Handler = Callable[[int, FrameType | None], object]


class SignalHandlers:
    """Guards the handlers of this process. `serving` is the code that serves actors on the main thread.

    `runs_user_code` decides by the interrupted frame, and `report` gets a text: on the main thread, at any instruction.
    """

    def __init__(self, serving: CodeType) -> None:
        self._serving = serving
        self.is_child = False  # a forked one, which serves no actors
        self.runs_user_code: Callable[[FrameType | None], bool] = self._has_user_frame
        self.report: Callable[[str], object] = lambda text: print(text, file=sys.stderr)

    def install(self) -> None:
        """Guard SIGINT's handler, and those that are set from now on; on the main thread."""
        set_handler, get_handler = signal.signal, signal.getsignal

        @functools.wraps(set_handler)
        def set_guarded(signalnum: int, handler: Any) -> Any:
            guarded = _Guarded(self, handler)._on_signal if callable(handler) else handler
            return _unguarded(set_handler(signalnum, guarded))

        @functools.wraps(get_handler)
        def get_unguarded(signalnum: int) -> Any:
            return _unguarded(get_handler(signalnum))

        signal.signal, signal.getsignal = set_guarded, get_unguarded
        signal.signal(signal.SIGINT, signal.getsignal(signal.SIGINT))
        os.register_at_fork(after_in_child=self._become_child)

    def _has_user_frame(self, frame: FrameType | None) -> bool:
        found = False
        while frame is not None and frame.f_code is not self._serving:
            # What pickling calls belongs to a message of the runtime: libraries, and methods of the user's values.
            found = (found or is_of_user(frame.f_code)) and frame.f_code.co_filename != pickling.__file__
            frame = frame.f_back
        return found or frame is None  # not yet, or no longer serving

    def _become_child(self) -> None:
        self.is_child = True


@dataclass(frozen=True)
class _Guarded:
    """A handler of the user. Python calls `_on_signal` instead, a name that tracebacks leave out."""

    handlers: SignalHandlers
    handler: Handler

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        try:
            self.handler(number, frame)
        except BaseException as error:
            if self.handlers.is_child or self.handlers.runs_user_code(frame):
                raise
            if not isinstance(error, KeyboardInterrupt):  # there is nothing to interrupt
                # Most real-time signals have no name.
                name = next((each.name for each in signal.Signals if each == number), f"signal {number}")
                self.handlers.report(f"the handler of {name} raised while no user code ran:\n{format_error(error)}")


def _unguarded(handler: Any) -> Any:
    guarded = getattr(handler, "__self__", None)
    return guarded.handler if isinstance(guarded, _Guarded) else handler
