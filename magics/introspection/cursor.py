"""The location of the cursor in a cell: on an option line, on a line of `%mesh`, in code for ranks. Pure.

Offsets count code points, as in Jupyter and Python.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from meshbook.magics.syntax.mode import count_local_lines
from meshbook.magics.syntax.transform import HERE, find_first_line, next_line, read_first_line, read_timer

_FIRST = re.compile(r"%%mesh[ \t]+|# ?mesh:")
_ASSIGNED = r"\s*(?:[^\W\d][\w., \t]*=\s*)?"
_VERB = re.compile(_ASSIGNED + r"%mesh[ \t]+")
_ON = re.compile(_ASSIGNED + r"%on[ \t]+(?P<selector>\S*)(?P<blank>[ \t]+)?")


@dataclass(frozen=True)
class OnOptions:
    """On the line of `%%mesh` or `#mesh:`: its text up to the cursor, and the start of that text in the cell."""

    text: str
    start: int


@dataclass(frozen=True)
class OnVerb:
    """On a line of `%mesh`: the text after it up to the cursor, and the start of that text in the cell."""

    text: str
    start: int


@dataclass(frozen=True)
class OnSelector:
    """In the selector of `%on`: its text up to the cursor, and the start of that text in the cell."""

    text: str
    start: int


@dataclass(frozen=True)
class InBody:
    """In code for ranks: the cell with all other text masked, so that offsets are those of the cell."""

    options: str
    source: str


CursorPlace: TypeAlias = OnOptions | OnVerb | OnSelector | InBody


def runs_on_ranks(cell: str, mode: str | None = None) -> bool:
    """Whether the cell runs on ranks."""
    end = len(cell.rstrip())
    return isinstance(place_of(f"{cell[:end]}\n", end + 1, mode), InBody)


def place_of(cell: str, cursor: int, mode: str | None = None) -> CursorPlace | None:
    """Return the location of the cursor; None if IPython's own completion and inspection apply.

    `mode` is the option line of mesh mode, if that is on.
    """
    start, end = _option_line(cell)
    options = read_first_line(cell[start:end].rstrip("\r"))
    if options is None:
        return _on_line(cell, cursor) or (None if mode is None else _by_mode(cell, cursor, mode))
    if cursor > end:
        return InBody(options, cell[:start] + "#" * (end - start) + cell[end:])
    found = _FIRST.match(cell, start, max(cursor, start))
    return OnOptions(cell[found.end() : cursor], found.end()) if found else None


def _option_line(cell: str) -> tuple[int, int]:
    """Return start and end of the line for `%%mesh`: the first one after comments and a timing line."""
    lines = cell.split("\n")
    first = find_first_line(lines)
    if first is not None and read_timer(lines[first].rstrip()):
        first = next_line(lines, first + 1)
    start = _count_characters(lines[:first])
    return start, start + len(lines[first or 0])


def _on_line(cell: str, cursor: int) -> CursorPlace | None:
    """Return the location on a line of `%mesh` or `%on`."""
    start = cell.rfind("\n", 0, cursor) + 1
    if (verb := _VERB.match(cell, start, cursor)) is not None:
        return OnVerb(cell[verb.end() : cursor], verb.end())
    if (on := _ON.match(cell, start, cursor)) is None:
        return None
    if on["blank"] is None:
        return OnSelector(on["selector"], on.start("selector"))
    return InBody(on["selector"], _mask(cell[:start]) + " " * (on.end() - start) + cell[on.end() :])


def _by_mode(cell: str, cursor: int, mode: str) -> InBody | None:
    lines = cell.split("\n")
    at = find_first_line(lines) or 0
    if HERE.match(lines[at]):
        return None
    local = _count_characters(lines[: 1 + at if read_timer(lines[at].rstrip()) else count_local_lines(lines)])
    return InBody(mode, _mask(cell[:local]) + cell[local:]) if cursor >= local <= len(cell) else None


def _mask(text: str) -> str:
    return re.sub(r"[^\n]", "#", text)


def _count_characters(lines: list[str]) -> int:
    return sum(len(line) + 1 for line in lines)
