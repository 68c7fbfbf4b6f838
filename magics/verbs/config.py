"""`%mesh config`: show or change settings of the running notebook."""

from __future__ import annotations

from dataclasses import dataclass

from meshbook.magics.notebook import Notebook
from meshbook.magics.syntax.argparsing import Parser, setting_name
from meshbook.magics.syntax.settings import NEST_ASYNCIO, SETTINGS, UNSET, find_setting
from meshbook.magics.verbs.base import Verb


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
            notebook.preferences.set(self.key, self.value)
            if notebook.preferences[NEST_ASYNCIO]:
                _let_loops_nest()
        names = list(SETTINGS) if self.key is None else [find_setting(self.key).name]
        print(notebook.preferences.describe(names))


def _let_loops_nest() -> None:
    """Let event loops nest; a second call changes nothing."""
    # Imported only on request: it replaces asyncio's tasks in the whole process.
    import nest_asyncio2  # type: ignore[import-untyped]

    nest_asyncio2.apply()
