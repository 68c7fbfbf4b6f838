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
from types import CodeType, FrameType
from typing import Any

from meshbook.runtime.node.execution import is_of_user
from meshbook.runtime.traces import format_error


class SignalHandlers:
    """Guards the handlers of this process. `serving` is the code that serves actors on the main thread.

    `runs_user_code` decides by the interrupted frame, and `report` gets a text: on the main thread, at any instruction.
    """

    def __init__(self, serving: CodeType) -> None:
        self._serving = serving
        self._is_child = False
        self.runs_user_code: Callable[[FrameType | None], bool] = self._has_user_frame
        self.report: Callable[[str], object] = lambda text: print(text, file=sys.stderr)

    def install(self) -> None:
        """Guard SIGINT's handler, and those that are set from now on; on the main thread."""
        set_handler, get_handler = signal.signal, signal.getsignal

        @functools.wraps(set_handler)
        def set_guarded(signalnum: int, handler: Any) -> Any:
            return _unguarded(set_handler(signalnum, self._guard(handler) if callable(handler) else handler))

        @functools.wraps(get_handler)
        def get_unguarded(signalnum: int) -> Any:
            return _unguarded(get_handler(signalnum))

        signal.signal, signal.getsignal = set_guarded, get_unguarded
        signal.signal(signal.SIGINT, signal.getsignal(signal.SIGINT))
        os.register_at_fork(after_in_child=self._become_child)

    def _guard(self, handler: Callable[[int, FrameType | None], object]) -> Callable[[int, FrameType | None], None]:
        def _on_signal(number: int, frame: FrameType | None) -> None:
            try:
                handler(number, frame)
            except BaseException as error:
                if self._is_child or self.runs_user_code(frame):
                    raise
                if not isinstance(error, KeyboardInterrupt):  # there is nothing to interrupt
                    # Most real-time signals have no name.
                    name = next((each.name for each in signal.Signals if each == number), f"signal {number}")
                    self.report(f"the handler of {name} raised while nothing ran:\n{format_error(error)}")

        _on_signal.handler = handler  # type: ignore[attr-defined]
        return _on_signal

    def _has_user_frame(self, frame: FrameType | None) -> bool:
        while frame is not None and frame.f_code is not self._serving:
            if is_of_user(frame.f_code):
                return True
            frame = frame.f_back
        return frame is None  # not yet, or no longer serving

    def _become_child(self) -> None:
        self._is_child = True  # it serves no actors


def _unguarded(handler: Any) -> Any:
    return getattr(handler, "handler", handler) if getattr(handler, "__name__", "") == "_on_signal" else handler
