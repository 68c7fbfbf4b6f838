"""The memory of another process of this host, by Cross Memory Attach: `process_vm_readv` and `process_vm_writev`.

The kernel copies between the processes. The other process takes no part: it may hold its GIL, sleep, or be stopped.
ctypes releases this process's GIL meanwhile. Errors are the system's: ProcessLookupError (it has ended),
PermissionError (ptrace is not allowed), OSError with EFAULT (nothing is mapped there).
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Sequence
from typing import Any

Piece = tuple[int, int, int]  # address here, address there, bytes
MOST_BYTES = 0x7FFFF000  # of one call, by its manual page
_PR_SET_PTRACER, _PR_SET_PTRACER_ANY = 0x59616D61, -1


def _load(name: str) -> Any:
    function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if function is not None:
        arrays = ctypes.c_void_p, ctypes.c_ulong
        function.argtypes = [ctypes.c_int, *arrays, *arrays, ctypes.c_ulong]
        function.restype = ctypes.c_ssize_t
    return function


_readv = _load("process_vm_readv")
_writev = _load("process_vm_writev")


def is_available() -> bool:
    """Return whether this system has the calls; whether it permits them shows when they are used."""
    return _readv is not None and _writev is not None


def read(pid: int, pieces: Sequence[Piece]) -> None:
    """Copy from there to here, one piece after the other, in this order."""
    _copy(_readv, pid, pieces)


def write(pid: int, pieces: Sequence[Piece]) -> None:
    """Copy from here to there, one piece after the other, in this order."""
    _copy(_writev, pid, pieces)


def allow_everyone() -> None:
    """Let processes of the same user access this one where Yama (Ubuntu's default) forbids it; otherwise do nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(_PR_SET_PTRACER_ANY), 0, 0, 0)


def _copy(function: Any, pid: int, pieces: Sequence[Piece]) -> None:
    """Copy all bytes or raise OSError: the system stops at the first unreachable page, and returns the bytes copied."""
    here: list[int] = []
    there: list[int] = []
    count, wanted = len(pieces), 0
    for local, remote, size in pieces:
        here += local, size
        there += remote, size
        wanted += size
    # An array of `struct iovec`: an address and a length each, both as wide as a pointer.
    vectors = ctypes.c_size_t * (2 * count)
    copied = function(pid, vectors(*here), count, vectors(*there), count, 0)
    if copied < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if copied != wanted:
        raise OSError(errno.EFAULT, f"only {copied:,} of {wanted:,} bytes could be copied")
