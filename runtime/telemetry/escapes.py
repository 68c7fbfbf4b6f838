"""Escape sequences in output: colours stay, all others go, so that no output can change a terminal or a page.

Pure. Sequences as in ECMA-48; `ESC [ ... m` (SGR) are the colours.
"""

from __future__ import annotations

import re

MOST_CHARACTERS = 4096  # of a sequence whose end is still to come; a longer one is text
_COLOUR = r"\x1b\[[0-9;:]*m"
_COMMAND = r"\x1b\[[0-?]*[ -/]*[@-~]"
_STRING = r"\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC, DCS, SOS, PM, APC: titles, links, the clipboard
_OTHER = r"\x1b[ -/]*[0-~]?"
_EIGHT_BITS = r"[\x80-\x84\x86-\x9f]"  # C1, of which U+0085 is the end of a line
_SEQUENCE = re.compile(f"({_COLOUR})|{_COMMAND}|{_STRING}|{_OTHER}|{_EIGHT_BITS}")
_EIGHT_BIT = re.compile(_EIGHT_BITS)
_HALF = re.compile(rf"\x1b(?:\[[0-?]*[ -/]*|[ -/]+|[\]PX^_][^\x07\x1b]{{0,{MOST_CHARACTERS}}}\x1b?)?\Z")


def has_escapes(text: str) -> bool:
    """Whether the text has a control character that begins a sequence. Cheap."""
    return "\x1b" in text or not (text.isascii() or _EIGHT_BIT.search(text) is None)


def only_colours(text: str) -> str:
    """The text without its other sequences."""
    return _SEQUENCE.sub(r"\1", text) if has_escapes(text) else text


def split_half(text: str) -> tuple[str, str]:
    """Return the text, and of a sequence at its end the part that has come, if its end is still to come."""
    half = _HALF.search(text)
    return (text[: half.start()], half.group()) if half is not None else (text, "")
