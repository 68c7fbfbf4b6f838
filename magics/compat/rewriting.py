"""Rewrite cells that begin with another tool's magic to begin with `%%mesh`. Pure, but for its defaults."""

from __future__ import annotations

import re
from collections.abc import Callable

from meshbook.magics.compat.translation import PxDefaults, translate_px, translate_rank
from meshbook.magics.syntax.argparsing import HelpRequested, UsageError

REFUSE = "__mesh_refuse__"
_MAGICS = re.compile(r"%%(?P<name>px|distributed|rank)(?P<line>(?![\w]).*)$")


class Rewriting:
    """An input transformer that runs before meshbook's. `defaults` are those of `%pxconfig`."""

    has_side_effects = True  # as meshbook's transformer: completeness is checked on the text that the user typed

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
        except HelpRequested as asked:
            return [f"print({asked.text!r})\n"]
        return [*lines[:first], f"%%mesh {ours}\n", *lines[first + 1 :]]

    def _translations(self) -> dict[str, Callable[[str], str]]:
        return {
            "px": lambda line: translate_px(line, self.defaults),
            "rank": translate_rank,
            "distributed": lambda line: "all",
        }


def refuse(text: str) -> None:
    """Raise the usage error of a cell whose magic line is invalid."""
    raise UsageError(text)
