"""The publications of a cell (text, displays, the live area, errors), and the publishers that send them.

A publisher sends a cell's output under that cell's own parent header, at any time, from any thread. In a kernel it does
not use `print` or `display()`: those follow the last parent that was set, which any widget message changes.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TextIO, TypeAlias

from IPython.core.displaypub import CapturingDisplayPublisher

from meshbook.magics.output.grouping import StreamName
from meshbook.runtime.formats import encodable, whole


@dataclass(frozen=True, slots=True)
class StreamText:
    """Plain text, published as a `stream` message."""

    name: StreamName
    text: str


@dataclass(frozen=True, slots=True)
class Display:
    """A separate rich output, published as a `display_data` message."""

    data: Mapping[str, Any]
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LiveDisplay:
    """An output that may change: `display_data` with a display_id, or `update_display_data`.

    `name` distinguishes the outputs of a cell; an empty name is the live area.
    """

    data: Mapping[str, Any]
    update: bool
    is_final: bool = False  # its last state: a terminal, which cannot replace a line, prints only this
    name: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Error:
    """A failure, published as an `error` message; the traceback as lines with ANSI colours."""

    name: str
    value: str
    traceback: tuple[str, ...]


Publication: TypeAlias = StreamText | Display | LiveDisplay | Error


class Publisher(Protocol):
    """Publishes for one cell. `updates`: whether a published output can be replaced."""

    updates: bool

    def publish(self, publications: Sequence[Publication]) -> None: ...


class KernelPublisher:
    """Publishes over IOPub for the cell that runs when this is created."""

    updates = True

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._parent = kernel.get_parent("shell")
        self._display_id = ""  # of the live area, once it exists

    def publish(self, publications: Sequence[Publication]) -> None:
        for publication in publications:
            kind, content = self._message(publication)
            self._kernel.session.send(
                self._kernel.iopub_socket,
                kind,
                content,
                parent=self._parent,
                ident=self._kernel._topic(kind),
            )

    def _message(self, publication: Publication) -> tuple[str, dict[str, Any]]:
        match publication:
            case StreamText(name, text):
                return "stream", {"name": name, "text": text}
            case Display(data, metadata):
                return "display_data", _bundle(data, metadata)
            case LiveDisplay(data, update, _, name, metadata):
                kind = "update_display_data" if update else "display_data"
                if not (self._display_id and (update or name)):  # after a prompt the cell has a new live area
                    self._display_id = uuid.uuid4().hex
                return kind, _bundle(data, metadata) | {"transient": {"display_id": f"{self._display_id}{name}"}}
            case Error(name, value, traceback):
                return "error", {"ename": name, "evalue": value, "traceback": list(traceback)}


def _bundle(data: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {"data": dict(data), "metadata": dict(metadata), "transient": {}}


class TerminalPublisher:
    """Publishes text to a terminal in plain IPython; of a live area only the final state."""

    updates = False

    def publish(self, publications: Sequence[Publication]) -> None:
        for publication in publications:
            match publication:
                case StreamText(name, text):
                    self._write(text, sys.stderr if name == "stderr" else sys.stdout)
                case Display(data, _) | LiveDisplay(data, is_final=True):
                    self._write(f"{data.get('text/plain', '')}\n", sys.stdout)
                case Error(_, _, traceback):
                    self._write("\n".join((*traceback, "")), sys.stderr)

    def _write(self, text: str, file: TextIO) -> None:
        file.write(encodable(text, file))


class CapturedPublisher:
    """Publishes where the code around the cell has redirected streams, displays or both; the rest as `others` does."""

    updates = False

    def __init__(self, others: Publisher, streams: Mapping[StreamName, TextIO], displays: Any = None) -> None:
        self._others = others
        self._streams = streams
        self._displays = displays  # IPython's publisher, or None

    def publish(self, publications: Sequence[Publication]) -> None:
        for publication in publications:
            match publication:
                case StreamText(name, text):
                    self._write(name, text)
                case LiveDisplay(data, is_final=True, name=""):  # of a longer cell, as text
                    self._write("stdout", data.get("text/plain", ""))
                case Display(data, metadata) | LiveDisplay(data, is_final=True, metadata=metadata):
                    if self._displays is not None:
                        self._displays.publish(dict(data), dict(metadata))
                    else:
                        self._others.publish([Display(data, metadata)])
                case Error(_, _, traceback):
                    self._write("stderr", "".join(f"{line}\n" for line in traceback))

    def _write(self, name: StreamName, text: str) -> None:
        if name in self._streams:
            self._streams[name].write(text)
        else:
            self._others.publish([StreamText(name, text)])


def send_any_text(session: Any) -> None:
    """Make a kernel send messages with any text. One that UTF-8 cannot encode would cost a cell its output or reply.

    Surrogates come from names of files, from broken JSON and from errors that quote such a text.
    """
    pack = session.pack

    def pack_any_text(content: Any) -> Any:
        try:
            return pack(content)
        except UnicodeEncodeError:
            return pack(_with_whole_text(content))

    session.pack = pack_any_text


def _with_whole_text(content: Any) -> Any:
    if isinstance(content, str):
        return whole(content)
    if isinstance(content, Mapping):
        return {_with_whole_text(key): _with_whole_text(value) for key, value in content.items()}
    return [*map(_with_whole_text, content)] if isinstance(content, list | tuple) else content


def publisher_for(shell: Any, *, is_within: bool = False) -> Publisher:
    """Return a publisher for the cell that runs now; `is_within`: for a part of it, whose output it may capture."""
    kernel = getattr(shell, "kernel", None)
    plain: Publisher = TerminalPublisher() if kernel is None else KernelPublisher(kernel)
    displays = getattr(shell, "display_pub", None)
    captured = displays if isinstance(displays, CapturingDisplayPublisher) else None
    streams: dict[StreamName, TextIO] = {}
    if captured is not None or (is_within and kernel is not None):
        own = getattr(kernel, "iopub_thread", None)
        given: dict[StreamName, TextIO] = {"stdout": sys.stdout, "stderr": sys.stderr}
        # A stream of the kernel is written to through its messages, which name the cell.
        streams = {
            name: stream
            for name, stream in given.items()
            if own is None or getattr(stream, "pub_thread", None) is not own
        }
    if captured is None and (not streams or kernel is None):
        return plain
    return CapturedPublisher(plain, streams, captured)
