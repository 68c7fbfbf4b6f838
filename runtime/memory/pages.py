"""Large pages (2 MiB) for memory that is moved in bulk, where the system grants them on request.

Cross Memory Attach looks up each page of the other process: with 4 KiB pages that takes as long as the copy itself (64
MiB: 6.9 GB/s, with large pages 13). Memory that is written for the first time costs a page fault per page (1.7 GB/s,
with large pages 5.9). NumPy requests large pages by itself, torch does not. All of this is advice: if the system
declines, nothing is lost.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from pathlib import Path

LEAST = 4 << 20  # bytes from which it pays off
_PAGE, _SMALL = 2 << 20, 4096
_LIBRARY = ctypes.CDLL(None)
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25


@functools.cache
def are_available() -> bool:
    """Return whether the system grants large pages on request."""
    try:
        policy = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return False
    return sys.platform == "linux" and "[never]" not in policy


def want_large(address: int, size: int) -> None:
    """Request large pages for memory that is about to be written for the first time. Quick."""
    if size >= LEAST and are_available():
        start, end = _within(address, size)
        _madvise(start, end - start, _MADV_HUGEPAGE)


def make_large(address: int, size: int, is_wanted: Callable[[], bool]) -> None:
    """Move existing memory into large pages while `is_wanted()`. Takes about a third of a millisecond per page.

    The memory may be used meanwhile: bytes and addresses stay. Untouched pages are skipped.
    """
    if size < LEAST or not are_available():
        return
    start, end = _within(address, size)
    for at in range(start, end, _PAGE):
        if not is_wanted():
            return
        # Only if all of the large page has been touched: untouched memory is not allocated, and should stay so.
        seen = (ctypes.c_ubyte * (_PAGE // _SMALL))()
        if _call("mincore", at, _PAGE, ctypes.addressof(seen)) == 0 and all(seen):
            _madvise(at, _PAGE, _MADV_COLLAPSE)


def _within(address: int, size: int) -> tuple[int, int]:
    """Return the range of large pages that are entirely inside; those at the ends may contain other data."""
    start = -(-address // _PAGE) * _PAGE
    return start, max(start, (address + size) // _PAGE * _PAGE)


def _madvise(address: int, size: int, advice: int) -> None:
    if size:
        _call("madvise", address, size, advice)


def _call(name: str, address: int, size: int, last: int) -> int:
    return int(getattr(_LIBRARY, name)(ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_void_p(last)))
