"""The publications of a cell, independent of front ends: text, displays, the live area, errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

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
