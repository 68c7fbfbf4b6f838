"""A terminal emulation of one text stream: text that overwrites itself is sent only in its last state.

Progress bars return to the start of their line, or move up to the bars above. Pure: text goes in; lines that can no
longer change come out, with the rows that still may. `terminals` decides how often these are sent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST_ROWS = 32  # that the cursor can move back over
ROW_CHARACTERS = 1 << 14  # a row that reaches this length is settled

_MOVE = re.compile(r"[\r\x08]|\x1b\[[0-9;]*[A-HJK]")
_TOKEN = re.compile(r"[\n\x08]|\x1b\[([0-9;?]*)([A-Za-ln-z])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_HALF = re.compile(r"\x1b(?:\[[0-9;?]*)?\Z")  # an incomplete escape sequence


def has_moves(text: str) -> bool:
    """Return whether the text overwrites itself. CR LF line ends do not count."""
    if "\r" in text or "\x08" in text or "\x1b" in text:
        return _MOVE.search(text.replace("\r\n", "\n")) is not None
    return False


@dataclass(frozen=True, slots=True)
class Emission:
    """The text settled since the last emission, and the current rows; `live` is None where there are no rows."""

    text: str
    live: str | None = None


class Terminal:
    """One stream. Text passes unchanged until a sequence moves the cursor; from then on there are rows."""

    def __init__(self) -> None:
        self._rows: list[str] = []  # empty: text passes unchanged
        self._row = 0
        self._column = 0
        self._open = ""  # the last line that passed, without its end
        self._half = ""
        self._goes_up = False
        self._is_dirty = False

    @property
    def is_live(self) -> bool:
        """Whether there are rows that may still change."""
        return bool(self._rows)

    @property
    def is_blank(self) -> bool:
        """Whether the terminal is in its initial state."""
        return not self._rows and not self._open

    @property
    def is_complete(self) -> bool:
        """Whether the last line has an end, so that the rows are not an intermediate state."""
        return bool(self._rows) and self._row == len(self._rows) - 1 and not self._rows[self._row]

    @property
    def is_at_rest(self) -> bool:
        """Whether, in addition, the cursor has never moved up: the rows are most likely final."""
        return self.is_complete and not self._goes_up

    @classmethod
    def resumed(cls, rows: str) -> Terminal:
        """Return a terminal that shows these rows, with the cursor after the last of them."""
        terminal = cls()
        if rows:
            terminal.feed(f"\x1b[G{rows}")
        return terminal

    def feed(self, text: str) -> Emission:
        """Process written text."""
        if self._rows:
            return self._write_on(self._half + text)
        if has_moves(text):
            return self._begin(text)
        self._open = text.rpartition("\n")[2] if "\n" in text else (self._open + text)[-ROW_CHARACTERS:]
        return Emission(text)

    def settle(self) -> Emission:
        """Make all rows final."""
        if not self._rows:
            return Emission("")
        text = self._show()
        self._rows, self._row, self._column, self._half, self._goes_up = [], 0, 0, "", False
        self._open = text.rpartition("\n")[2]
        return Emission(text, "")

    def _begin(self, text: str) -> Emission:
        """Start rows at the first move: text before this line passes, and the line itself is the first row."""
        text = text.replace("\r\n", "\n")
        found = _MOVE.search(text)
        assert found is not None
        cut = text.rfind("\n", 0, found.start()) + 1
        # Readers treat the text before a carriage return as overwritten.
        passed = text[:cut] if cut or not self._open else "\r"
        self._rows, self._row, self._column = [""], 0, 0
        if not cut:
            self._put(self._open)
        self._open = ""
        on = self._write_on(text[cut:])
        return Emission(passed + on.text, on.live)

    def _write_on(self, text: str) -> Emission:
        half = _HALF.search(text)
        self._half = half.group() if half else ""
        text = text[: len(text) - len(self._half)]
        is_at_end = self._row == len(self._rows) - 1 and self._column == len(_COLOUR.sub("", self._rows[-1]))
        if not has_moves(text) and text.count("\n") >= MOST_ROWS and is_at_end:
            settled = self._show() + text  # a program that prints lines has left its bars
            self._rows = []
            self._open = settled.rpartition("\n")[2]
            return Emission(settled, "")
        self._apply(text)
        settled = self._cut_off()
        return Emission(settled, self._show() if self._rows else "")

    def _apply(self, text: str) -> None:
        position = 0
        for token in _TOKEN.finditer(text):
            self._write(text[position : token.start()])
            position = token.end()
            if token.group() == "\n":
                self._move_down(1)
                self._column = 0
            elif token.group() == "\x08":
                self._column = max(0, self._column - 1)
            elif token.group(2):
                numbers = [int(part) if part.isdigit() else 0 for part in token.group(1).split(";")]
                self._move(token.group(2), numbers)
        self._write(text[position:])

    def _write(self, text: str) -> None:
        """Write text whose only moves are carriage returns."""
        if "\r" not in text:
            return self._put(text)
        first, *states = text.split("\r")
        self._put(first)
        plain = "\x1b" not in text
        for state in [_overlay(states)] if plain else states:
            self._column = 0
            self._put(state)
        self._column = len(states[-1]) if plain else self._column
        return None

    def _put(self, text: str) -> None:
        if text:
            row = self._rows[self._row]
            width = len(_COLOUR.sub("", text)) if "\x1b" in text else len(text)
            before, _ = _split_at(row, self._column)
            _, after = _split_at(row, self._column + width)
            self._rows[self._row] = before.ljust(self._column) + text + after
            self._column += width

    def _move(self, final: str, numbers: list[int]) -> None:
        count = max(numbers[0], 1)
        match final:
            case "A" | "F":
                self._goes_up = True
                self._row = max(0, self._row - count)
            case "B" | "E":
                self._move_down(count)
            case "C":
                self._column += min(count, ROW_CHARACTERS)
            case "D":
                self._column = max(0, self._column - count)
            case "G":
                self._column = min(count, ROW_CHARACTERS) - 1
            case "H":
                self._goes_up = True
                self._row = self._column = 0
            case "J" | "K":
                self._erase(final, numbers[0])
        if final in "EF":
            self._column = 0

    def _move_down(self, count: int) -> None:
        self._row += min(count, MOST_ROWS)
        self._rows += [""] * (self._row + 1 - len(self._rows))

    def _erase(self, final: str, which: int) -> None:
        row = self._rows[self._row]
        before, after = _split_at(row, self._column)
        self._rows[self._row] = {0: before, 1: " " * self._column + after}.get(which, "")
        if final == "J" and which == 0:
            del self._rows[self._row + 1 :]
        elif final == "J":
            kept = self._rows[self._row + 1 :] if which == 1 else [""] * len(self._rows[self._row + 1 :])
            self._rows = [""] * self._row + [self._rows[self._row], *kept]

    def _cut_off(self) -> str:
        """Remove and return the rows that the cursor can no longer reach."""
        if len(self._rows[self._row]) > ROW_CHARACTERS:
            return self.settle().text
        count = max(0, len(self._rows) - MOST_ROWS)
        gone, self._rows = self._rows[:count], self._rows[count:]
        self._row = max(0, self._row - count)
        return "".join(f"{row.rstrip(' ')}\n" for row in gone)

    def _show(self) -> str:
        rows = [row.rstrip(" ") for row in self._rows]
        while len(rows) > self._row + 1 and not rows[-1]:
            rows.pop()  # an erased bar below
        return "\n".join(rows)


def _overlay(states: list[str]) -> str:
    """Return what a line shows that was repeatedly rewritten from its start."""
    shown = ""
    for state in reversed(states):
        if len(state) > len(shown):
            shown += state[len(shown) :]
    return shown


def _split_at(row: str, column: int) -> tuple[str, str]:
    """Split a row at a column; each part keeps its colours."""
    if "\x1b" not in row:
        return row[:column], row[column:]
    seen, position, style = 0, 0, ""
    for colour in _COLOUR.finditer(row):
        width = colour.start() - position
        if seen + width >= column:
            break
        seen, position = seen + width, colour.end()
        style = "" if colour.group() in ("\x1b[m", "\x1b[0m") else style + colour.group()
    cut = position + column - seen
    reset = "\x1b[0m" if style else ""
    before, after = row[:cut], row[cut:]
    return before + reset, (style + after if _COLOUR.sub("", after) else "")
