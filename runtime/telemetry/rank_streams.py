"""`sys.stdout` and `sys.stderr` of a rank: text files that pass on each piece with the execution that wrote it."""

from __future__ import annotations

import codecs
import io
from typing import Any, Protocol

from meshbook.runtime.actor.context import current_origin
from meshbook.runtime.telemetry.output import StreamName


class TextSink(Protocol):
    """The receiver of the text (`capture.Capture`)."""

    def write(self, origin: str, stream: StreamName, text: str) -> None: ...
    def flush_soon(self) -> None: ...


class RankStream(io.TextIOBase):
    """A text stream for any thread and any signal handler; it never waits for the network."""

    encoding = "utf-8"
    errors = "replace"
    line_buffering = True
    mode = "w"

    def __init__(self, sink: TextSink, stream: StreamName, descriptor: int) -> None:
        self._sink = sink
        self._stream: StreamName = stream
        self._descriptor = descriptor
        self._bytes = RankBytes(self)

    @property
    def name(self) -> str:
        return f"<{self._stream}>"

    @property
    def buffer(self) -> RankBytes:
        """The stream for bytes; they take the same path as text."""
        return self._bytes

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if text:
            self._sink.write(current_origin(), self._stream, text)
        return len(text)

    def flush(self) -> None:
        """Request a send, without waiting: the caller may be a signal handler."""
        self._sink.flush_soon()

    def close(self) -> None:
        """Flush only: a library may close a stream that others still print to."""
        self.flush()

    def reconfigure(self, **settings: Any) -> None:
        """Do nothing: encoding and buffering are fixed. For scripts that request line buffering."""

    def fileno(self) -> int:
        return self._descriptor

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False


class RankBytes(io.RawIOBase):
    """`sys.stdout.buffer`: UTF-8, whose characters may arrive split; invalid bytes become U+FFFD."""

    def __init__(self, stream: RankStream) -> None:
        self._text = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def raw(self) -> RankBytes:
        return self

    @property
    def name(self) -> str:
        return self._text.name

    def write(self, data: Any) -> int:
        with memoryview(data) as view:
            self._text.write(self._decoder.decode(view.tobytes()))
            return view.nbytes

    def flush(self) -> None:
        self._text.flush()

    def close(self) -> None:
        self.flush()

    def fileno(self) -> int:
        return self._text.fileno()

    def writable(self) -> bool:
        return True
