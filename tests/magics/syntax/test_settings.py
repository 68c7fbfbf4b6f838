"""The settings of `%mesh config`: valid and invalid values, and their list."""

from __future__ import annotations

import pytest

from meshbook.magics.errors import UsageError
from meshbook.magics.syntax.cell_options import CellOptions, parse_cell_options
from meshbook.magics.syntax.settings import SETTINGS, NotebookSettings


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("group", "rank", "rank"),
        ("on-error", "finish", "finish"),
        ("on_error", "finish", "finish"),
        ("timeout", "2.5", 2.5),
        ("timeout", "none", None),
        ("block", "off", False),
        ("plain_time", "10", 10.0),
        ("nest_asyncio", "on", True),
    ],
)
def test_valid_settings(name: str, text: str, value: object) -> None:
    settings = NotebookSettings()
    settings.set(name, text)
    assert settings[name.replace("-", "_")] == value


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("group", "sometimes", "%mesh config group: 'sometimes' is not one of auto, same, rank, order, none"),
        ("block", "yes", "'yes' is not one of on, off"),
        ("plain_time", "-1", "'-1' is not a positive number of seconds"),
        ("grop", "rank", "unknown setting 'grop'. Did you mean 'group'? The settings are group, on_error,"),
    ],
)
def test_invalid_settings(name: str, text: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        NotebookSettings().set(name, text)
    assert problem in str(caught.value)


def test_options_of_a_line_override_settings() -> None:
    settings = NotebookSettings()
    assert settings.of_cells == ()
    settings.set("group", "rank")
    settings.set("block", "off")
    assert parse_cell_options("0", settings.of_cells) == CellOptions("0", group="rank", block=False)
    assert parse_cell_options("-b -g same", settings.of_cells) == CellOptions(group="same")
    settings.set("group", "default")
    assert settings.of_cells == (("block", False),)


def test_nested_loops_cannot_be_turned_off() -> None:
    settings = NotebookSettings()
    settings.set("nest_asyncio", "off")
    settings.set("nest_asyncio", "on")
    with pytest.raises(UsageError, match="cannot be turned off; restart the kernel"):
        settings.set("nest_asyncio", "off")


def test_settings_are_listed_with_their_meanings() -> None:
    lines = NotebookSettings().format().splitlines()
    assert [line.split()[0] for line in lines] == list(SETTINGS)
    assert lines[0] == "group         auto  how output is grouped: auto, same, rank, order, none"
    assert NotebookSettings().format(["plain_time"]).startswith("plain_time  2  seconds: ")
