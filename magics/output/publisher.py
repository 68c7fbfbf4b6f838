"""The publications of a cell (text, displays, the live area, errors), and the publishers that send them.

A publisher sends a cell's output under that cell's own parent header, at any time, from any thread. In a kernel it does
not use `print` or `display()`: those follow the last parent that was set, which any widget message changes.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from IPython.core.displaypub import CapturingDisplayPublisher

from meshbook.magics.output.grouping import StreamName


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
                    (sys.stderr if name == "stderr" else sys.stdout).write(text)
                case Display(data, _):
                    print(data.get("text/plain", ""))
                case LiveDisplay(data, is_final=is_final):
                    if is_final:
                        print(data.get("text/plain", ""))
                case Error(_, _, traceback):
                    print(*traceback, sep="\n", file=sys.stderr)


class CapturedPublisher:
    """Publishes into an active `%%capture`, which captures streams, displays or both."""

    updates = False

    def __init__(self, shell: Any) -> None:
        self._streams = {"stdout": sys.stdout, "stderr": sys.stderr}
        self._displays = shell.display_pub

    def publish(self, publications: Sequence[Publication]) -> None:
        for publication in publications:
            match publication:
                case StreamText(name, text):
                    self._streams[name].write(text)
                case LiveDisplay(data, is_final=True, name=""):  # of a longer cell, as text
                    self._streams["stdout"].write(data.get("text/plain", ""))
                case Display(data, metadata) | LiveDisplay(data, is_final=True, metadata=metadata):
                    self._displays.publish(dict(data), dict(metadata))
                case Error(_, _, traceback):
                    print(*traceback, sep="\n", file=self._streams["stderr"])


def publisher_for(shell: Any) -> Publisher:
    """Return a publisher for the cell that runs now."""
    if isinstance(getattr(shell, "display_pub", None), CapturingDisplayPublisher):
        return CapturedPublisher(shell)
    kernel = getattr(shell, "kernel", None)
    return TerminalPublisher() if kernel is None else KernelPublisher(kernel)
