"""ANSI colours in the text of ranks: removed, or converted to HTML with inline styles."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, replace

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_COLOUR = re.compile(r"\x1b\[([0-9;]*)m")
# Tones that are legible on light and on dark backgrounds: black, red, green, yellow, blue, magenta, cyan, white.
_TONES = ("#5c6370", "#d14d49", "#00a250", "#b8960c", "#208ffb", "#c050b4", "#2aa1a3", "#9a9789")
_BRIGHT_TONES = ("#7f848e", "#e75c58", "#1db954", "#c99a1a", "#4aa3ff", "#d160c4", "#3bb8ba", "#a1a6b2")
_STEPS = (0, 95, 135, 175, 215, 255)  # of the colour cube of the 256 colours


@dataclass(frozen=True, slots=True)
class _Style:
    colour: str = ""
    background: str = ""
    is_bold: bool = False
    is_italic: bool = False
    is_underlined: bool = False

    @property
    def css(self) -> str:
        parts = [
            f"color:{self.colour}" if self.colour else "",
            f"background:{self.background}" if self.background else "",
            "font-weight:bold" if self.is_bold else "",
            "font-style:italic" if self.is_italic else "",
            "text-decoration:underline" if self.is_underlined else "",
        ]
        return ";".join(filter(None, parts))


PLAIN = _Style()


def strip_colours(text: str) -> str:
    """Return the text without terminal control sequences."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def html_of(text: str) -> str:
    """Convert a worker's text to escaped HTML with its colours; each line is styled separately."""
    if "\x1b" not in text:
        return html.escape(text, quote=False)
    lines = []
    for line in text.split("\n"):
        parts: list[str] = []
        style, position = PLAIN, 0
        for found in _COLOUR.finditer(line):
            parts.append(_in_style(line[position : found.start()], style))
            style, position = _changed(style, found.group(1)), found.end()
        lines.append("".join([*parts, _in_style(line[position:], style)]))
    return "\n".join(lines)


def _in_style(text: str, style: _Style) -> str:
    shown = html.escape(strip_colours(text), quote=False)
    return f'<span style="{style.css}">{shown}</span>' if shown and style != PLAIN else shown


def _changed(style: _Style, codes: str) -> _Style:
    # Three digits are enough for all codes. int() raises for thousands of them.
    numbers = [int(code[:4] or 0) for code in codes.split(";")]
    while numbers:
        code = numbers.pop(0)
        match code:
            case 0:
                style = PLAIN
            case 1:
                style = replace(style, is_bold=True)
            case 3:
                style = replace(style, is_italic=True)
            case 4:
                style = replace(style, is_underlined=True)
            case 22:
                style = replace(style, is_bold=False)
            case 23:
                style = replace(style, is_italic=False)
            case 24:
                style = replace(style, is_underlined=False)
            case 38 | 39:
                style = replace(style, colour=_take_colour(numbers) if code == 38 else "")
            case 48 | 49:
                style = replace(style, background=_take_colour(numbers) if code == 48 else "")
            case _:
                style = _in_tone(style, code)
    return style


def _in_tone(style: _Style, code: int) -> _Style:
    tones = _BRIGHT_TONES if code >= 90 else _TONES
    match code // 10, code % 10:
        case (3 | 9, tone) if tone < 8:
            return replace(style, colour=tones[tone])
        case (4 | 10, tone) if tone < 8:
            return replace(style, background=tones[tone])
    return style


def _take_colour(numbers: list[int]) -> str:
    """Parse one of 256 colours (`5;n`) or any colour (`2;r;g;b`); remove its numbers from the front."""
    kind = numbers.pop(0) if numbers else 0
    if kind == 5 and numbers:
        return _one_of_256(numbers.pop(0))
    if kind == 2 and len(numbers) >= 3:
        rgb = [min(numbers.pop(0), 255) for _ in range(3)]
        return "#{:02x}{:02x}{:02x}".format(*rgb)
    numbers.clear()  # truncated: the remaining numbers have no meaning by themselves
    return ""


def _one_of_256(number: int) -> str:
    if number < 16:
        return (_TONES + _BRIGHT_TONES)[number]
    if number < 232:
        number -= 16
        return f"#{_STEPS[number // 36]:02x}{_STEPS[number // 6 % 6]:02x}{_STEPS[number % 6]:02x}"
    grey = min(8 + 10 * (number - 232), 255)
    return f"#{grey:02x}{grey:02x}{grey:02x}"
