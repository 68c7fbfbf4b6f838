"""Large pages (2 MiB) for memory that is moved in bulk, where the system gives them to who asks.

Cross Memory Attach looks up each page of the other process: with pages of 4 KiB that takes as long as the copy itself
(64 MiB: 6.9 GB/s, with large ones 13), and memory that is written for the first time costs a fault for each (1.7 GB/s,
with large ones 5.9). NumPy asks for large pages by itself, torch does not. All of this is advice: where the system
declines, nothing is lost.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from pathlib import Path

LEAST = 4 << 20  # bytes for which it is worth while
_PAGE, _SMALL = 2 << 20, 4096
_LIBRARY = ctypes.CDLL(None)
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25


@functools.cache
def are_available() -> bool:
    """Whether the system gives them to who asks."""
    try:
        policy = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return False
    return sys.platform == "linux" and "[never]" not in policy


def want_large(address: int, size: int) -> None:
    """Let memory that is about to be written for the first time come in large pages. Quick."""
    if size >= LEAST and are_available():
        start, end = _within(address, size)
        _madvise(start, end - start, _MADV_HUGEPAGE)


def make_large(address: int, size: int, is_wanted: Callable[[], bool]) -> None:
    """Put memory that is there into large pages, while that is wanted. Takes about a third of a millisecond for each.

    Whoever uses the memory meanwhile goes on: bytes and addresses stay. What was never touched is left alone.
    """
    if size < LEAST or not are_available():
        return
    start, end = _within(address, size)
    for at in range(start, end, _PAGE):
        if not is_wanted():
            return
        if _is_there(at):
            _madvise(at, _PAGE, _MADV_COLLAPSE)


def _is_there(address: int) -> bool:
    """Whether all of a large page has been touched: what has not takes no memory, and is not to."""
    seen = (ctypes.c_ubyte * (_PAGE // _SMALL))()
    return _call("mincore", address, _PAGE, ctypes.addressof(seen)) == 0 and all(seen)


def _within(address: int, size: int) -> tuple[int, int]:
    """The large pages that are all inside: those at both ends may belong to others as well."""
    start = -(-address // _PAGE) * _PAGE
    return start, max(start, (address + size) // _PAGE * _PAGE)


def _madvise(address: int, size: int, advice: int) -> None:
    if size:
        _call("madvise", address, size, advice)


def _call(name: str, address: int, size: int, last: int) -> int:
    return int(getattr(_LIBRARY, name)(ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_void_p(last)))
