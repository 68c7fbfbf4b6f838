"""Following a file that others append to, and giving its space back behind the reader.

A descriptor's file has no end in a long run. It cannot be truncated without a race: what comes between the last read
and the cut would be lost. A hole punched behind the reader costs nobody anything; the file's size grows, the space it
takes does not. Known limit: a file system without holes (some NFS) keeps the whole text until the worker ends; point
MESHBOOK_RUNTIME_DIR to another one there.
"""

from __future__ import annotations

import codecs
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from meshbook.runtime.telemetry.output import StreamName

READ_BYTES = 1 << 20
PUNCH_BYTES = 4 << 20  # how much is read before it is given back
KEPT_BYTES = 64 << 10  # what stays readable behind the reader: the agent looks there for a process's last words
_KEEP_SIZE, _PUNCH_HOLE = 1, 2


class Follower:
    """Reads what is appended to a file, as text, however a character is split."""

    def __init__(self, path: Path, stream: StreamName) -> None:
        self.stream: StreamName = stream
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._position = 0
        self._freed = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def size(self) -> int:
        """How many bytes the file has now."""
        return os.fstat(self._descriptor).st_size

    def read(self, end: int | None = None) -> Iterator[str]:
        """Yield the new text in pieces, up to the position `end`.

        The default is the file's size now: a fast writer would otherwise never let this reader finish.
        """
        if end is None:
            end = self.size
        if end < self._position:
            self._position = self._freed = 0  # somebody truncated it: what is there now is new
        while self._position < end:
            data = os.pread(self._descriptor, min(READ_BYTES, end - self._position), self._position)
            if not data:
                break
            self._position += len(data)
            if text := self._decoder.decode(data):
                yield text

    def give_back(self, end: int) -> None:
        """Free the space of what comes before this position."""
        if end - self._freed > PUNCH_BYTES:
            self._free(end - KEPT_BYTES)

    @property
    def position(self) -> int:
        """How many bytes have been read."""
        return self._position

    @property
    def has_news(self) -> bool:
        """Whether the file has another length than what has been read of it."""
        return self.size != self._position

    def close(self) -> None:
        os.close(self._descriptor)

    def _free(self, end: int) -> None:
        _punch_hole(self._descriptor, self._freed, end - self._freed)
        self._freed = end


def _punch_hole(descriptor: int, start: int, length: int) -> None:
    fallocate = getattr(ctypes.CDLL(None), "fallocate64", None)  # Linux only; it may also refuse, see above
    if fallocate is not None:
        mode = _KEEP_SIZE | _PUNCH_HOLE
        fallocate(descriptor, mode, ctypes.c_int64(start), ctypes.c_int64(length))
