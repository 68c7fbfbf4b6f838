"""Cells that begin with another tool's magic, rewritten to cells that begin with ours. Pure, but for its defaults."""

from __future__ import annotations

import re
from collections.abc import Callable

from meshbook.magics.compat.translation import PxDefaults, translate_px, translate_rank
from meshbook.magics.syntax.argparsing import HelpAsked, UsageError

REFUSE = "__mesh_refuse__"
_MAGICS = re.compile(r"%%(?P<name>px|distributed|rank)(?P<line>(?![\w]).*)$")


class Rewriting:
    """An input transformer that goes before ours. `defaults` are those of `%pxconfig`."""

    has_side_effects = True  # as ours: completeness is that of what the user typed

    def __init__(self) -> None:
        self.defaults = PxDefaults()

    def __call__(self, lines: list[str]) -> list[str]:
        first = next((index for index, line in enumerate(lines) if line.strip()), None)
        found = _MAGICS.match(lines[first].rstrip("\r\n")) if first is not None else None
        if first is None or found is None:
            return lines
        try:
            ours = self._translations()[found["name"]](found["line"])
        except UsageError as error:
            return [f"{REFUSE}({str(error)!r})\n"]
        except HelpAsked as asked:
            return [f"print({asked.text!r})\n"]
        return [*lines[:first], f"%%mesh {ours}\n", *lines[first + 1 :]]

    def _translations(self) -> dict[str, Callable[[str], str]]:
        return {
            "px": lambda line: translate_px(line, self.defaults),
            "rank": translate_rank,
            "distributed": lambda line: "all",
        }


def refuse(text: str) -> None:
    """What a cell becomes whose magic's line cannot be read."""
    raise UsageError(text)
