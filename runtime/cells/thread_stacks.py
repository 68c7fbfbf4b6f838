"""The stacks of a rank's threads, read from another thread while they run: for whereabouts and `%mesh stack`.

Frames of errors come from their tracebacks (`failures`). For a process that does not answer, the host reads what it can
(`meshbook.runtime.hosts.observer`).
"""

from __future__ import annotations

import linecache
import sys
import threading
import traceback
from collections.abc import Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from meshbook.runtime.cells.failures import is_user_code
from meshbook.runtime.cells.outcome import Frame
from meshbook.runtime.collectives.abort import find_collective
from meshbook.runtime.node.execution import RunningEndpoint
from meshbook.runtime.traces import is_ours

MAIN = "main thread"
MOST_FRAMES = 200  # of one stack; of a deeper recursion, the innermost


@dataclass(frozen=True, slots=True)
class MainThreadState:
    """The state of a rank's main thread: idle, or in a cell with these frames (outermost first).

    A cell that just begins has no frames. `pause` is set while it waits for a person: `in input()`, `in the debugger`.
    """

    is_idle: bool = False
    frames: tuple[Frame, ...] = ()
    pause: str = ""

    @property
    def is_in_collective(self) -> bool:
        """Whether it may be waiting for other ranks."""
        return find_collective((frame.filename, frame.function) for frame in self.frames) is not None


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """One thread, the outermost frame first; `remark` adds a state such as `idle` or `in all_reduce`.

    `seconds` is how long an endpoint has run; equal stacks of several ranks may differ in it.
    """

    thread: str
    frames: tuple[Frame, ...]
    remark: str = ""
    seconds: float | None = field(default=None, compare=False)


def stack_of_main(awaiting: Coroutine[Any, Any, Any] | None) -> list[tuple[FrameType, int]]:
    """Return frames and lines of the main thread from the cell's first on; empty if no cell runs.

    `awaiting` is the coroutine of a cell with top-level await: while that waits, the thread is in its event loop.
    """
    here = sys._current_frames().get(threading.main_thread().ident or 0)
    return _from_the_cell(_walk(here)) or _from_the_cell(_suspended(awaiting))


def stack_of_endpoint(running: RunningEndpoint, thread: int, coroutine: Any) -> ThreadStack:
    """Return the stack of an endpoint on this thread, or of this coroutine, from the user's first frame on."""
    found = [] if coroutine is None else _suspended(coroutine)
    if coroutine is None or getattr(coroutine, "cr_running", False):
        found = _walk(sys._current_frames().get(thread))
    name = f"actor {running.actor}"
    return ThreadStack(
        name, read_frames(_from_the_users(found), with_source=True), f"in {running}", round(running.seconds, 3)
    )


def _from_the_users(found: list[tuple[FrameType, int]]) -> list[tuple[FrameType, int]]:
    first = next((at for at, (frame, _) in enumerate(found) if is_user_code(frame.f_code.co_filename)), len(found))
    return found[first:]


def stacks_of_others() -> Iterator[ThreadStack]:
    """Yield the other threads that run code of the user's, by name, from the first frame of that code on."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    for ident in sorted(frames.keys() - {threading.main_thread().ident}):
        if found := _from_the_users(_walk(frames[ident])):
            name = names.get(ident, f"thread {ident}").removeprefix("meshbook ")
            yield ThreadStack(name, read_frames(found, with_source=True))


def collective_of(found: Iterable[tuple[FrameType, int]]) -> str:
    """Return the operation of torch.distributed that a stack is in, or the empty string."""
    return find_collective((frame.f_code.co_filename, frame.f_code.co_name) for frame, _ in found) or ""


def read_frames(found: Iterable[tuple[FrameType, int]], *, with_source: bool = False) -> tuple[Frame, ...]:
    """Convert frames to data, without the runtime's own."""
    codes = [(frame.f_code, line) for frame, line in found if not is_ours(frame.f_code.co_filename)]
    return tuple(
        Frame(
            filename=code.co_filename,
            line=line,
            function=code.co_name,
            source=linecache.getline(code.co_filename, line).strip() if with_source else "",
            is_user=is_user_code(code.co_filename),
        )
        for code, line in codes[-MOST_FRAMES:]
    )


def _walk(frame: FrameType | None) -> list[tuple[FrameType, int]]:
    return [(each, line or 0) for each, line in traceback.walk_stack(frame)][::-1] if frame is not None else []


def _suspended(awaiting: Any) -> list[tuple[FrameType, int]]:
    """The frames of a waiting coroutine, along the chain of its awaits."""
    found = []
    while awaiting is not None:
        frame = getattr(awaiting, "cr_frame", None) or getattr(awaiting, "gi_frame", None)
        if frame is None:  # it has just ended, or is implemented in C
            break
        found.append((frame, frame.f_lineno or 0))
        awaiting = getattr(awaiting, "cr_await", None) or getattr(awaiting, "gi_yieldfrom", None)
    return found


def is_of_cell(frame: FrameType) -> bool:
    """Whether its code is in a cell."""
    return frame.f_code.co_filename.startswith("<cell")


def _from_the_cell(found: list[tuple[FrameType, int]]) -> list[tuple[FrameType, int]]:
    first = next((at for at, (frame, _) in enumerate(found) if is_of_cell(frame)), None)
    return [] if first is None else found[first:]
