"""The calls to the operating system that Python does not offer. Each does nothing where the system has none of it."""

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


def die_with_parent(parent: int) -> None:
    """SIGKILL this process when the thread that made it ends; `parent` is that thread's process.

    Only for children of a main thread that lives as long as its process: the signal follows the thread.
    """
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)  # it ended before, and the signal would never come


def outlive_parent() -> None:
    """Take `die_with_parent` back."""
    _prctl(_PR_SET_PDEATHSIG, 0)


def adopt_orphans() -> None:
    """From now on descendants whose parent ends become children of this process, in whatever session they are."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_descendants(seconds: float = 1.0, spared: Set[int] = frozenset()) -> None:
    """SIGKILL all descendants of a process that adopts orphans, and wait until they are gone.

    Generation by generation: with its parent dead a grandchild becomes a child. A process that the system holds for
    longer than `seconds` is left to it. The children in `spared`, and theirs, stay.
    """
    end = time.monotonic() + seconds
    while (children := _children() - spared) and time.monotonic() < end:
        for pid in children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)  # grandchildren come one generation later, and nothing tells when
        _reap()


def skip_exit_handlers_so_far() -> None:
    """Let this process end without the C library's exit handlers that are registered already.

    In a forked worker they would take apart what the fork server loaded: 0.13 s of computing for torch alone.
    """
    c = ctypes.CDLL(None)
    if hasattr(c, "on_exit"):  # handlers run last in, first out; this one ends the process before the older ones
        c.on_exit(c._exit, None)


def buffer_c_output_by_line() -> None:
    """Let what C code prints leave at each line's end. The C library writes to files in blocks of 4 KiB."""
    c = ctypes.CDLL(None)
    with contextlib.suppress(ValueError):  # no such symbol: another C library
        c.setvbuf(ctypes.c_void_p.in_dll(c, "stdout"), None, _LINE_BUFFERED, 0)


def flush_c_output() -> None:
    """Write out what the C library's streams still hold."""
    ctypes.CDLL(None).fflush(None)


def exit_through_c(code: int) -> None:
    """`exit()`: the C library's exit handlers run, the interpreter's do not."""
    # With the interpreter locked meanwhile: no other thread of Python's runs into what is being taken apart.
    ctypes.PyDLL(None).exit(code)


def _prctl(option: int, argument: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, argument, 0, 0, 0)


def _children() -> set[int]:
    pids: set[int] = set()
    with contextlib.suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            pids.update(map(int, (task / "children").read_text().split()))
    return pids


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
