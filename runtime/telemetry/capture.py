"""A worker's output, all of it: Python's streams, and what C code and subprocesses write to descriptors 1 and 2.

Python's streams know on whose behalf they are written to (the context). The descriptors are files; a thread follows
them, and a cell that ends reads them to their end, so nothing of it can come after its reply.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from meshbook.runtime.actor.context import current_origin
from meshbook.runtime.telemetry.output import OutputChunk, StreamName

FLUSH_SECONDS = 0.05
FLUSH_CHARACTERS = 32 << 10
FOLLOW_SECONDS = 0.2
READ_BYTES = 1 << 20
LAST_WORDS_BYTES = 64 << 10

Send = Callable[[OutputChunk], None]


class Capture:
    """Owns the streams of this process: installs them, follows the descriptors' files, flushes."""

    def __init__(self, send: Send, mesh: str, rank: int, folder: Path, node: str) -> None:
        self._send = send
        self._mesh = mesh
        self._rank = rank
        self.main_origin: Callable[[], str] = lambda: ""  # the cell that runs: the best guess for C code's output
        last_words = os.open(folder / f"{node}.last", os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.stdout = RankStream(self, "stdout", 1)
        self.stderr = RankStream(self, "stderr", 2, last_words)
        self._files = [Follower(folder / f"{node}.out", "stdout"), Follower(folder / f"{node}.err", "stderr")]
        self._lock = threading.Lock()  # guards _files: the thread and a cell's end both read them
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="meshbook output", daemon=True)
        self._thread.pydev_do_not_trace = True  # type: ignore[attr-defined]

    def install(self) -> None:
        """Replace Python's streams and begin to follow."""
        sys.stdout, sys.stderr = self.stdout, self.stderr
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self.flush()

    def flush(self) -> None:
        """Send everything that has been written so far, by Python or by anything else in this process."""
        self.stdout.flush()
        self.stderr.flush()
        self.follow_now()

    def follow_now(self) -> None:
        with self._lock:
            for file in self._files:
                while text := file.read():
                    self.send(self.main_origin(), file.stream, text)

    def send(self, origin: str, stream: StreamName, text: str) -> None:
        self._send(OutputChunk(origin, self._mesh, self._rank, stream, text))

    def _follow(self) -> None:
        rounds = 0
        while not self._ended.wait(FLUSH_SECONDS):
            self.stdout.flush()
            self.stderr.flush()
            rounds += 1
            if rounds % int(FOLLOW_SECONDS / FLUSH_SECONDS) == 0:
                self.follow_now()


class RankStream(io.TextIOBase):
    """`sys.stdout` or `sys.stderr` of a rank: sends chunks, each with the execution that wrote it.

    A line after a pause leaves at once; in a flood, chunks of `FLUSH_CHARACTERS` or of `FLUSH_SECONDS` do.
    """

    encoding = "utf-8"
    errors = "surrogateescape"

    def __init__(self, capture: Capture, stream: StreamName, descriptor: int, last_words: int = -1) -> None:
        self._capture = capture
        self._stream: StreamName = stream
        self._descriptor = descriptor
        self._last_words = last_words
        self._lock = threading.RLock()  # guards the buffer; re-entrant, since a signal handler may print
        self._parts: list[str] = []
        self._size = 0
        self._origin = ""
        self._sent_at = 0.0

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"<{self._stream}>"

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        origin = current_origin() or self._capture.main_origin()
        if self._last_words >= 0:
            self._keep_last_words(text)
        with self._lock:
            if origin != self._origin:
                self._flush()
                self._origin = origin
            self._parts.append(text)
            self._size += len(text)
            if self._size >= FLUSH_CHARACTERS or (
                text.endswith("\n") and time.monotonic() - self._sent_at > FLUSH_SECONDS
            ):
                self._flush()
        return len(text)

    def flush(self) -> None:
        if self._parts:
            with self._lock:
                self._flush()

    def _flush(self) -> None:
        if not self._parts:
            return
        text = "".join(self._parts)
        self._parts, self._size = [], 0
        self._sent_at = time.monotonic()
        self._capture.send(self._origin, self._stream, text)

    def _keep_last_words(self, text: str) -> None:
        """Also into a file: what a process said just before SIGKILL would otherwise die in its buffers."""
        try:
            if os.fstat(self._last_words).st_size > LAST_WORDS_BYTES:
                os.ftruncate(self._last_words, 0)
            os.write(self._last_words, text.encode("utf-8", "surrogateescape"))
        except OSError:
            self._last_words = -1  # a full disk: the text still goes to the notebook

    def fileno(self) -> int:
        return self._descriptor

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    @property
    def buffer(self) -> Any:
        return _Bytes(self)


class _Bytes(io.RawIOBase):
    """`sys.stdout.buffer`: bytes, as text."""

    def __init__(self, stream: RankStream) -> None:
        self._text = stream

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._text.write(bytes(data).decode("utf-8", "surrogateescape"))
        return len(data)

    def flush(self) -> None:
        self._text.flush()


class Follower:
    """Reads what is appended to a file, as text, however a character is split."""

    def __init__(self, path: Path, stream: StreamName) -> None:
        self.stream: StreamName = stream
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._position = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self) -> str:
        """New text, or the empty string."""
        data = os.pread(self._descriptor, READ_BYTES, self._position)
        self._position += len(data)
        return self._decoder.decode(data)
