"""`%mesh mode` and `config`: where cells run, and the settings of the running notebook."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import dataclass

from meshbook.magics.errors import UsageError
from meshbook.magics.notebook import Notebook
from meshbook.magics.syntax.argparsing import Parser, selector, setting_name
from meshbook.magics.syntax.cell_options import parse_cell_options
from meshbook.magics.syntax.settings import NEST_ASYNCIO, SETTINGS, UNSET, find_setting
from meshbook.magics.verbs import Verb


@dataclass(frozen=True)
class ModeVerb(Verb):
    """Run cells without a magic on the mesh (`state` is "on" or "off"), with these options; or show the mode."""

    word = "mode"
    description = (
        "Run every cell on the mesh. Magics and shell commands at the top of a cell, and cells that begin with"
        " %%here, still run in the notebook."
    )

    state: str | None = None
    options: tuple[str, ...] = ()

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        parser.add_argument(
            "state", nargs="?", choices=("on", "off"), help="turn the mode on or off (default: show it)"
        )
        parser.add_argument(
            "options",
            nargs=argparse.REMAINDER,
            type=selector,
            metavar="SEL, options",
            help="options of %%%%mesh for all of these cells",
        )

    def run(self, notebook: Notebook) -> None:
        line = shlex.join(self.options)
        if self.state == "on":
            parse_cell_options(line)
            notebook.mode.line = line
        elif line:
            raise UsageError(f"%mesh mode {self.state} takes no options: {line!r}")
        elif self.state == "off":
            notebook.mode.line = None
        print(format_mode(notebook.mode.line))


def format_mode(line: str | None) -> str:
    """Format where a cell without a magic runs."""
    if line is None:
        return "mesh mode is off: cells run in the notebook, unless they begin with %%mesh"
    like = f"%%mesh {line}".rstrip()
    return f"mesh mode is on: cells run as with {like}; %%here runs one in the notebook, %mesh mode off turns it off"


@dataclass(frozen=True)
class ConfigVerb(Verb):
    """Show all settings (`key` None) or one, or change one."""

    word = "config"
    description = "Show or change the settings of this notebook. Changes apply to later cells."

    key: str | None = None
    value: str | None = None

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        parser.add_argument("key", metavar="KEY", nargs="?", type=setting_name, help=f"one of {', '.join(SETTINGS)}")
        parser.add_argument("value", metavar="VALUE", nargs="?", help=f"new value; {UNSET} restores the default")

    def run(self, notebook: Notebook) -> None:
        if self.key is not None and self.value is not None:
            notebook.settings.set(self.key, self.value)
            if notebook.settings[NEST_ASYNCIO]:
                # Imported only on request: it replaces asyncio's tasks in the whole process.
                import nest_asyncio2  # type: ignore[import-untyped]

                nest_asyncio2.apply()  # a second call changes nothing
        names = list(SETTINGS) if self.key is None else [find_setting(self.key).name]
        print(notebook.settings.format(names))
