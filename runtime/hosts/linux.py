"""Calls to the operating system that Python does not offer. Each does nothing on a system that lacks it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Set
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LINE_BUFFERED = 1
_POLL_SECONDS = 0.002
_C = ctypes.CDLL(None)  # made once, since each one has classes of its own


def die_with_parent(parent: int) -> None:
    """SIGKILL this process when the thread that made it ends; `parent` is that thread's process.

    Only for children of a main thread that lasts as long as its process: the signal follows the thread.
    """
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)  # the parent has already ended, so the signal would never come


def outlive_parent() -> None:
    """Undo `die_with_parent`."""
    _prctl(_PR_SET_PDEATHSIG, 0)


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose parent ends, in any session, from now on."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_descendants(seconds: float = 1.0, spared: Set[int] = frozenset()) -> None:
    """SIGKILL all descendants of a process that adopts orphans, and wait until they are gone.

    This works by generation: with its parent dead a grandchild becomes a child. It does not wait longer than `seconds`
    for processes that the system does not release. The children in `spared`, and their descendants, stay.
    """
    end = time.monotonic() + seconds
    while (children := _children() - spared) and time.monotonic() < end:
        for pid in children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)  # grandchildren become children one generation later, and nothing signals when
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def skip_exit_handlers_so_far() -> None:
    """Skip the C library's exit handlers that are registered so far, when this process ends.

    In a forked worker they would unload what the fork server loaded: 0.13 s of computing for torch alone.
    """
    if hasattr(_C, "on_exit"):  # handlers run last in, first out; this one ends the process before the older ones
        _C.on_exit(_C._exit, None)


def buffer_c_output_by_line() -> None:
    """Buffer the output of C code by line. By default the C library writes to files in blocks of 4 KiB."""
    with contextlib.suppress(ValueError):  # no such symbol: another C library
        _C.setvbuf(ctypes.c_void_p.in_dll(_C, "stdout"), None, _LINE_BUFFERED, 0)


def flush_c_output() -> None:
    """Flush the C library's streams."""
    _C.fflush(None)


def exit_through_c(code: int) -> None:
    """Call `exit()`: the C library's exit handlers run, the interpreter's do not."""
    # PyDLL holds the GIL, so that no other Python thread uses objects while the handlers destroy them.
    ctypes.PyDLL(None).exit(code)


def _prctl(option: int, argument: int) -> None:
    if sys.platform == "linux":
        _C.prctl(option, argument, 0, 0, 0)


def _children() -> set[int]:
    pids: set[int] = set()
    with contextlib.suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            pids.update(map(int, (task / "children").read_text().split()))
    return pids
