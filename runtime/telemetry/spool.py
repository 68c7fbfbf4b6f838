"""Stores of what one rank wrote or displayed: first in memory, then in an unnamed file that its owner closes."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import tempfile
from typing import IO

from meshbook.runtime.telemetry.output import DisplayChunk

logger = logging.getLogger(__name__)

MEMORY_BYTES = 256 << 10
DISPLAY_BYTES = 256 << 20  # of one rank in one cell


class Spool:
    """An append-only store of text, read as a whole. If the disk is full, the rest is lost, and `note` reports it."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        self._memory_bytes = memory_bytes
        self._beginning = bytearray()
        self._rest: IO[bytes] | None = None
        self.live = ""  # rows after the text that may still change
        self.note = ""

    def write(self, text: str) -> None:
        if self.note:
            return
        try:
            self._keep(text.encode("utf-8", "replace"))
        except OSError as error:
            where = tempfile.gettempdir()
            self.note = f"\n[meshbook: cannot store more output in {where}: {error.strerror}]\n"

    def _keep(self, data: bytes) -> None:
        if self._rest is None:
            if len(self._beginning) + len(data) <= self._memory_bytes:
                self._beginning += data
                return
            # Unbuffered, so that a full disk raises here and not when the text is read.
            self._rest = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # closed with this object
        while data:
            data = data[self._rest.write(data) :]

    def read(self) -> str:
        """Return all text that was written, and the current rows."""
        data = bytes(self._beginning)
        if self._rest is not None:
            self._rest.seek(0)
            data += self._rest.read()
        return data.decode("utf-8", "replace") + self.live + self.note


class DisplaySpool:
    """An append-only store of displays, read in their last state. Displays beyond the limit are lost.

    So are displays that the disk has no room for.
    """

    def __init__(self, memory_bytes: int = MEMORY_BYTES, limit: int = DISPLAY_BYTES) -> None:
        self._room = memory_bytes
        self._left = limit
        self._first: list[bytes] = []
        self._rest: IO[bytes] | None = None
        self._updates: dict[str, DisplayChunk] = {}  # the last of each id: an animation has thousands

    def add(self, chunk: DisplayChunk) -> None:
        """Keep a display; an update replaces the one before."""
        if chunk.update:
            self._updates[chunk.display_id] = chunk
            return
        data = pickle.dumps(chunk, 5)
        self._left -= len(data)
        if self._left < 0:
            return
        self._room -= len(data)
        if self._room >= 0 and self._rest is None:
            self._first.append(data)
        else:
            self._write(data)

    def _write(self, data: bytes) -> None:
        try:
            if self._rest is None:
                self._rest = tempfile.TemporaryFile()  # noqa: SIM115  # closed with this object
            self._rest.write(data)
        except OSError as error:
            self._left = 0
            logger.warning("cannot store displays in %s: %s", tempfile.gettempdir(), error)

    def read(self) -> list[DisplayChunk]:
        """Return all displays, in order."""
        chunks: list[DisplayChunk] = [pickle.loads(data) for data in self._first]
        if self._rest is not None:
            self._rest.seek(0)
            with contextlib.suppress(EOFError):
                while True:
                    chunks.append(pickle.load(self._rest))
            self._rest.seek(0, os.SEEK_END)
        return [self._updates.get(chunk.display_id, chunk) for chunk in chunks]
