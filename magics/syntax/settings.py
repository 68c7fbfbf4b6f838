"""The settings of the running notebook (`%mesh config`): each has a name, a meaning, and a default.

Most are defaults of `%%mesh`'s options. They apply to later cells, until the kernel ends. This module only stores them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, get_args

from meshbook.magics.errors import UsageError
from meshbook.magics.output.grouping import GroupMode
from meshbook.magics.output.model import OutputLimits
from meshbook.magics.syntax.argparsing import quoted, seconds, suggestion
from meshbook.magics.syntax.cell_options import OnError

UNSET = "default"  # the word that resets a setting
SWITCH = ("on", "off")
NEST_ASYNCIO = "nest_asyncio"  # cannot be undone


@dataclass(frozen=True)
class NotebookSetting:
    """One setting. `read` parses its value from a word, or raises ArgumentTypeError."""

    name: str
    default: Any
    meaning: str
    read: Callable[[str], Any]
    is_option: bool = True  # an option of `%%mesh`, whose default it sets
    offers: tuple[str, ...] = ()  # possible values, for completion


def _choice(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise argparse.ArgumentTypeError(f"{quoted(text)} is not one of {', '.join(words)}")
        return text

    return read


def _switch(text: str) -> bool:
    return _choice(*SWITCH)(text) == "on"


def _limit(text: str) -> float | None:
    return None if text == "none" else seconds(text)


_ALL_SETTINGS = (
    NotebookSetting(
        "group",
        "auto",
        f"how output is grouped: {', '.join(get_args(GroupMode))}",
        _choice(*get_args(GroupMode)),
        offers=get_args(GroupMode),
    ),
    NotebookSetting(
        "on_error",
        "stop",
        f"effect of the first error on the other ranks: {', '.join(get_args(OnError))}",
        _choice(*get_args(OnError)),
        offers=get_args(OnError),
    ),
    NotebookSetting("timeout", None, "seconds after which a cell is interrupted, or none", _limit, offers=("none",)),
    NotebookSetting(
        "block",
        True,
        "whether a cell waits for its ranks (on) or runs as a job, as with -a (off)",
        _switch,
        offers=SWITCH,
    ),
    NotebookSetting(
        "plain_time",
        OutputLimits().plain_time,
        "seconds: a cell that ends sooner prints plain text, a longer one has a live area",
        seconds,
        is_option=False,
    ),
    NotebookSetting(
        NEST_ASYNCIO,
        False,
        "whether asyncio.run() works inside cells (on); this patches asyncio until the kernel ends",
        _switch,
        is_option=False,
        offers=SWITCH,
    ),
)
SETTINGS = {each.name: each for each in _ALL_SETTINGS}


def find_setting(name: str) -> NotebookSetting:
    """Return the setting of this name, in which hyphens may replace underscores. UsageError if there is none."""
    known = name.replace("-", "_")
    if known not in SETTINGS:
        hint = suggestion(known, SETTINGS)
        raise UsageError(f"%mesh config: unknown setting {quoted(name)}{hint} The settings are {', '.join(SETTINGS)}.")
    return SETTINGS[known]


class NotebookSettings:
    """The settings of one notebook."""

    def __init__(self) -> None:
        self._values = {each.name: each.default for each in _ALL_SETTINGS}

    def __getitem__(self, name: str) -> Any:
        """The value of a setting."""
        return self._values[name]

    def set(self, name: str, text: str) -> None:
        """Set a value by a word of the user. UsageError if it is invalid."""
        setting = find_setting(name)
        try:
            value = setting.default if text == UNSET else setting.read(text)
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"%mesh config {setting.name}: {error}") from None
        if setting.name == NEST_ASYNCIO and self._values[NEST_ASYNCIO] and not value:
            raise UsageError(f"%mesh config {NEST_ASYNCIO}: it cannot be turned off; restart the kernel")
        self._values[setting.name] = value

    @property
    def of_cells(self) -> tuple[tuple[str, Any], ...]:
        """The defaults of `%%mesh`'s options that the user has changed."""
        return tuple(
            (each.name, self._values[each.name])
            for each in _ALL_SETTINGS
            if each.is_option and self._values[each.name] != each.default
        )

    def format(self, names: Iterable[str] = SETTINGS) -> str:
        """Return a line for each of these: its name, its value, and its meaning."""
        rows = []
        for name in names:
            value = self._values[name]
            if isinstance(value, bool):
                text = "on" if value else "off"
            else:
                text = "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
            rows.append((name, text, SETTINGS[name].meaning))
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        return "\n".join(f"{name:<{widths[0]}}  {value:<{widths[1]}}  {meaning}" for name, value, meaning in rows)
