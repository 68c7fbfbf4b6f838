"""Removal of escape sequences from output: only colours stay, so that output cannot change a terminal or a page.

Pure. Sequences as in ECMA-48; `ESC [ ... m` (SGR) are the colours.
"""

from __future__ import annotations

import re

MOST_CHARACTERS = 4096  # of an incomplete sequence; a longer one is text
_COLOUR = r"\x1b\[[0-9;:]*m"
_COMMAND = r"\x1b\[[0-?]*[ -/]*[@-~]"
_STRING = r"\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC, DCS, SOS, PM, APC: titles, links, the clipboard
_OTHER = r"\x1b[ -/]*[0-~]?"
_EIGHT_BITS = r"[\x80-\x84\x86-\x9f]"  # C1, in which U+0085 is a line end
_SEQUENCE = re.compile(f"({_COLOUR})|{_COMMAND}|{_STRING}|{_OTHER}|{_EIGHT_BITS}")
_EIGHT_BIT = re.compile(_EIGHT_BITS)
_HALF = re.compile(rf"\x1b(?:\[[0-?]*[ -/]*|[ -/]+|[\]PX^_][^\x07\x1b]{{0,{MOST_CHARACTERS}}}\x1b?)?\Z")


def has_escapes(text: str) -> bool:
    """Return whether the text has a control character that begins a sequence. Cheap."""
    return "\x1b" in text or not (text.isascii() or _EIGHT_BIT.search(text) is None)


def only_colours(text: str) -> str:
    """Return the text without sequences other than colours."""
    return _SEQUENCE.sub(r"\1", text) if has_escapes(text) else text


def split_half(text: str) -> tuple[str, str]:
    """Split off an incomplete sequence at the end of the text, and return both parts."""
    half = _HALF.search(text)
    return (text[: half.start()], half.group()) if half is not None else (text, "")
