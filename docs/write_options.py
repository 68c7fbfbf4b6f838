"""Writes docs/options.md, the reference of all options, from the parsers that read them.

    python docs/write_options.py [--check]

With `--check` it writes nothing, and fails if the file is out of date.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from meshbook import __main__ as command
from meshbook import spmd
from meshbook.magics.syntax.cell_options import cell_parser
from meshbook.magics.syntax.settings import SETTINGS, NotebookSettings
from meshbook.magics.verbs.verb_table import VERBS

PATH = Path(__file__).parent / "options.md"
HEAD = """# Options

The options of `%%mesh` cells, of each `%mesh` verb and of the commands, as `--help` shows them.
[notebook.md](notebook.md) explains their use.
`python docs/write_options.py` writes this file from the parsers.
"""


def reference() -> str:
    """Return the text of the file."""
    cell = cell_parser()
    lines = [HEAD, *section("## `%%mesh`", cell)]
    lines += ["## Settings", "", "`%mesh config NAME VALUE` sets them for the cells that follow.", ""]
    lines += ["| setting | default | meaning |", "|---|---|---|"]
    defaults = {line.split()[0]: line.split()[1] for line in NotebookSettings().format().splitlines()}
    lines += [
        f"| {anchored('settings', name, name)} | `{defaults[name]}` | {escaped(each.meaning)} |"
        for name, each in SETTINGS.items()
    ]
    lines += ["", "## `%mesh` verbs", ""]
    for word, verb in VERBS.items():
        lines += section(f"### `%mesh {word}`", verb.parser())
    lines += ["## Commands", ""]
    for parser in command_parsers():
        lines += section(f"### `{parser.prog}`", parser)
    return "\n".join(lines).rstrip() + "\n"


def command_parsers() -> Iterator[argparse.ArgumentParser]:
    """Yield the parsers of the commands, one for each."""
    parser = command.build_parser()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.values()
    yield spmd.build_parser()


def section(heading: str, parser: argparse.ArgumentParser) -> list[str]:
    """Return the lines about one parser: its description, and a table of its arguments."""
    lines = [heading, "", escaped(parser.description or ""), ""]
    anchor = anchor_of(heading)
    rows = [row(action, anchor) for action in documented_actions(parser)]
    if rows:
        lines += ["| argument | meaning |", "|---|---|", *rows, ""]
    if parser.epilog:
        lines += [escaped(parser.epilog), ""]
    return lines


def documented_actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the arguments of a parser that its `--help` lists, without `--help` itself."""
    return [action for action in parser._actions if action.dest != "help" and action.help is not argparse.SUPPRESS]


def anchor_of(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and the site make it."""
    return re.sub(r"[^\w\- ]", "", heading.lstrip("# ")).strip().lower().replace(" ", "-")


def option_anchor(section_anchor: str, name: str) -> str:
    """Return the anchor of an argument: `mesh-up--gpus`. Two dashes, as `mesh-push` is the anchor of a verb."""
    return f"{section_anchor}--{name.strip('-').lower()}"


def anchored(section_anchor: str, name: str, shown: str) -> str:
    """Return the first cell of a row, with the anchor of its argument."""
    return f'<a id="{option_anchor(section_anchor, name)}"></a>`{escaped(shown)}`'


def row(action: argparse.Action, section_anchor: str) -> str:
    """Return the row of one argument."""
    takes_value = action.nargs != 0
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    name = ", ".join(action.option_strings) or str(value)
    if action.option_strings and takes_value:
        name += f" {value}"
    meaning = (action.help or "") % {"default": action.default, "prog": ""}
    word = action.option_strings[-1] if action.option_strings else action.dest
    return f"| {anchored(section_anchor, word, name)} | {escaped(meaning)} |"


def escaped(text: str) -> str:
    """Return the text as it has to stand in a cell of a table."""
    return text.replace(sys.prefix, "sys.prefix").replace("|", "\\|").replace("\n", " ")


def main() -> None:
    """Write the file, or with `--check` compare it."""
    text = reference()
    if "--check" not in sys.argv[1:]:
        PATH.write_text(text, "utf-8")
    elif not PATH.exists() or PATH.read_text("utf-8") != text:
        sys.exit("docs/options.md is out of date; run python docs/write_options.py")


if __name__ == "__main__":
    main()
