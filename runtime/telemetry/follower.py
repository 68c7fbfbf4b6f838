"""A reader of a file that other processes append to; it frees the space of text that it has read.

In a long run a descriptor's file grows without bound. Truncating it is a race: bytes appended between the last read and
the cut would be lost. A hole punched behind the reader loses nothing: the file's size grows, its disk usage does not.
Known limit: a file system without holes (some NFS) keeps the whole text until the worker ends. Point
MESHBOOK_RUNTIME_DIR to another file system there.
"""

from __future__ import annotations

import codecs
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from meshbook.runtime.telemetry.output import StreamName

READ_BYTES = 1 << 20
PUNCH_BYTES = 4 << 20  # how much is read before its space is freed
KEPT_BYTES = 64 << 10  # stays readable behind the reader: the agent reads a process's last words there
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
# Keeps the GIL, unlike `os.lseek`, after which a thread that prints would wait for the GIL at each piece of text. Half
# as expensive as `fstat`.
_seek = ctypes.PyDLL(None, use_errno=True).lseek
_seek.argtypes, _seek.restype = (ctypes.c_int, ctypes.c_int64, ctypes.c_int), ctypes.c_int64


class Follower:
    """Reads text that is appended to a file; a character may be split over reads."""

    def __init__(self, path: Path, stream: StreamName) -> None:
        self.stream: StreamName = stream
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._position = 0
        self._freed = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def size(self) -> int:
        """The current size of the file in bytes; each piece of text needs it."""
        size: int = _seek(self._descriptor, 0, os.SEEK_END)
        if size < 0:  # the user's code has closed the descriptor
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return size

    def read(self, end: int | None = None) -> Iterator[str]:
        """Yield the new text in pieces, up to the position `end`.

        The default is the file's current size; otherwise a fast writer would never let the reader finish.
        """
        size = self.size
        if size < self._position:
            self._position = self._freed = 0  # another process truncated the file: its content is new
        end = size if end is None else min(end, size)
        while self._position < end:
            data = os.pread(self._descriptor, min(READ_BYTES, end - self._position), self._position)
            if not data:
                break
            self._position += len(data)
            if text := self._decoder.decode(data):
                yield text

    def free_before(self, end: int) -> None:
        """Free the space before this position."""
        if end - self._freed <= PUNCH_BYTES:
            return
        start, self._freed = self._freed, end - KEPT_BYTES
        fallocate = getattr(ctypes.CDLL(None), "fallocate64", None)  # Linux only; may fail, see the module docstring
        if fallocate is not None:
            length = ctypes.c_int64(self._freed - start)
            fallocate(self._descriptor, _KEEP_SIZE | _PUNCH_HOLE, ctypes.c_int64(start), length)

    @property
    def position(self) -> int:
        """The number of bytes read."""
        return self._position

    @property
    def has_news(self) -> bool:
        """Whether the file's length differs from what has been read."""
        return self.size != self._position

    def close(self) -> None:
        os.close(self._descriptor)
