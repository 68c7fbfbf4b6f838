"""Whether a line of a log has what somebody looks for: words, or a regular expression that cannot do harm. Pure.

A pattern may take for ever to be matched, and gigabytes to be compiled. So matching has a limit of time and lets others
to the interpreter meanwhile; and what is longer than a person writes, or repeats itself too often, is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

PIECE_SECONDS = 0.1  # that one look at many lines takes at most
QUICK = 0.005  # of these for a line nobody else is let to the interpreter
MOST_CHARACTERS = 1000  # of a regular expression
MOST_REPEATED = 100_000  # characters that it may amount to: what is repeated is written out when it is compiled

# What may match in a line alone, and not where others stand around it: ends of the text, lookarounds, what never gives
# back (possessive, atomic); and flags, of which some do the same.
_LOOKS_AROUND = re.compile(r"\\[AZzG]|\(\?|[*+?}]\+|\(\*")
_REPEAT = re.compile(r"(?P<group>\)\s*)?\{(?P<count>[0-9]+)")

Holds = Callable[[str], bool]


class QueryError(ValueError):
    """A query that cannot be read; the message says what is wrong with it."""


def comparisons_of(
    text: str, seconds_left: Callable[[], float], *, regex: bool, case: bool
) -> tuple[Holds | None, Holds | None]:
    """What says whether a line has the text, and whether any of many lines may; None where all do.

    The first raises TimeoutError when no time is left. `case`: capital letters differ from small ones. QueryError for a
    regular expression that cannot be read.
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
            # To let the interpreter go for each line would mean to wait for it, line by line, while others compute.
            return pattern.search(line, timeout=max(1e-3, seconds()), concurrent=True) is not None

    def holds(line: str) -> bool:
        return is_in(line, pattern, seconds_left)

    def may_be_in(lines: str) -> bool:
        try:
            # Its lines one by one get the rest of the time.
            return is_in(lines, of_many, lambda: min(PIECE_SECONDS, seconds_left() / 2))
        except TimeoutError:
            return True

    return holds, None if _LOOKS_AROUND.search(text) else may_be_in


def _compiled(text: str, *, case: bool) -> tuple[Any, Any]:
    """For a line, and for many of them."""
    # Not `re`: that holds the interpreter for as long as a pattern takes, which may be for ever. Here for its weight.
    import regex

    _check_size(text)
    flags = 0 if case else regex.IGNORECASE
    try:
        return regex.compile(text, flags), regex.compile(text, flags | regex.MULTILINE)
    except regex.error as error:
        raise QueryError(f"the regular expression cannot be read: {error}") from error


def _check_size(text: str) -> None:
    """Refuse what would take long to compile: of repeated groups each multiplies what is in it, at the worst."""
    if len(text) > MOST_CHARACTERS:
        raise QueryError(f"a regular expression has {MOST_CHARACTERS} characters at most, and this one {len(text)}")
    found = [(each["group"], int(each["count"])) for each in _REPEAT.finditer(text)]
    written = len(text) + sum(count for group, count in found if not group)
    if written * math.prod(max(1, count) for group, count in found if group) > MOST_REPEATED:
        raise QueryError("the regular expression repeats too much: give smaller numbers in {}")
