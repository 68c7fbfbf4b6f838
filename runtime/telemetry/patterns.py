"""Matching of log lines: by text, or by a regular expression within limits of time and size. Pure.

A pattern may take forever to match, and gigabytes to compile. So matching has a time limit and releases the GIL;
patterns that are longer than a person writes, or repeat too much, are refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

PIECE_SECONDS = 0.1  # time limit for one search of many lines
QUICK = 0.005  # seconds for a line during which the GIL is not released
MOST_CHARACTERS = 1000  # in a regular expression
MOST_REPEATED = 100_000  # expanded characters: compiling a pattern writes its repeats out

# Constructs that may match in a line alone but not among other lines: ends of the text, lookarounds, possessive and
# atomic groups; and flags, some of which have the same effect.
_LOOKS_AROUND = re.compile(r"\\[AZzG]|\(\?|[*+?}]\+|\(\*")
_REPEAT = re.compile(r"(?P<group>\)\s*)?\{(?P<count>[0-9]+)")

Holds = Callable[[str], bool]


class QueryError(ValueError):
    """An invalid query; the message has the reason."""


def comparisons_of(
    text: str, seconds_left: Callable[[], float], *, regex: bool, case: bool
) -> tuple[Holds | None, Holds | None]:
    """Return a predicate for one line and one for many lines at once; None where everything matches.

    The first raises TimeoutError when no time is left. `case`: match case. Raises QueryError for an invalid regular
    expression.
    """
    if not text:
        return None, None
    if regex:
        return _pattern(text, seconds_left, case=case)
    wanted = text if case else text.casefold()
    holds: Holds = (lambda line: wanted in line) if case else (lambda line: wanted in line.casefold())
    return holds, holds


def _pattern(text: str, seconds_left: Callable[[], float], *, case: bool) -> tuple[Holds, Holds | None]:
    pattern, of_many = _compiled(text, case=case)

    def is_in(line: str, pattern: Any, seconds: Callable[[], float]) -> bool:
        try:
            return pattern.search(line, timeout=QUICK) is not None
        except TimeoutError:
            # Releasing the GIL for each line would mean waiting for it after each, while other threads compute.
            return pattern.search(line, timeout=max(1e-3, seconds()), concurrent=True) is not None

    def holds(line: str) -> bool:
        return is_in(line, pattern, seconds_left)

    def may_be_in(lines: str) -> bool:
        try:
            # The search line by line gets the rest of the time.
            return is_in(lines, of_many, lambda: min(PIECE_SECONDS, seconds_left() / 2))
        except TimeoutError:
            return True

    return holds, None if _LOOKS_AROUND.search(text) else may_be_in


def _compiled(text: str, *, case: bool) -> tuple[Any, Any]:
    """Return the pattern for one line, and that for many lines."""
    # Not `re`: it holds the GIL for the whole match, which may be forever. Imported here for its weight.
    import regex

    _check_size(text)
    flags = 0 if case else regex.IGNORECASE
    try:
        return regex.compile(text, flags), regex.compile(text, flags | regex.MULTILINE)
    except regex.error as error:
        raise QueryError(f"invalid regular expression: {error}") from error


def _check_size(text: str) -> None:
    """Refuse patterns that are slow to compile: in the worst case each repeated group multiplies its content."""
    if len(text) > MOST_CHARACTERS:
        raise QueryError(f"the regular expression has {len(text)} characters; the maximum is {MOST_CHARACTERS}")
    found = [(each["group"], int(each["count"])) for each in _REPEAT.finditer(text)]
    written = len(text) + sum(count for group, count in found if not group)
    if written * math.prod(max(1, count) for group, count in found if group) > MOST_REPEATED:
        raise QueryError("the regular expression repeats too often; use smaller counts in {}")
