"""What a cell publishes, before any front end is known: text, a display, the one live area."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from meshbook.magics.output.grouping import StreamName


@dataclass(frozen=True, slots=True)
class Stream:
    """Plain text, as a `stream` message."""

    name: StreamName
    text: str


@dataclass(frozen=True, slots=True)
class Display:
    """A rich output of its own, as a `display_data` message."""

    data: Mapping[str, Any]
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LiveDisplay:
    """An output that may change: `display_data` with its display_id, or `update_display_data`.

    `name` tells the outputs of a cell apart; without one it is the live area.
    """

    data: Mapping[str, Any]
    update: bool
    is_final: bool = False  # as it stays: a terminal, which cannot take a line back, prints only this
    name: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Error:
    """What went wrong, as an `error` message; the traceback in lines, colours included."""

    name: str
    value: str
    traceback: tuple[str, ...]


Publication: TypeAlias = Stream | Display | LiveDisplay | Error
