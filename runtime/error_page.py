"""The sections of docs/errors.md, which `meshbook explain` and `%mesh explain` show: Markdown -> text.

Each section explains an error class or a frequent message.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).with_name("errors.md")  # in a checkout a link to docs/errors.md
WIDTH = 100  # of texts, unless the terminal is narrower
MOST_NAMES = 3  # in a message, as difflib gives
_INDENT = " " * 27  # of the second column of the list
_LINK = re.compile(r"\[([^]]+)]\(([^)]+)\)")


@dataclass(frozen=True, slots=True)
class Section:
    """A section: its heading, and its Markdown without links."""

    heading: str
    markdown: str

    @property
    def name(self) -> str:
        """The anchor of the heading, as GitHub and the site make it: `grouperror`."""
        return re.sub(r"[^\w\- ]", "", self.heading).lower().replace(" ", "-")

    @property
    def summary(self) -> str:
        """The first sentence."""
        return re.split(r"(?<=\.)\s|\n\n", self.markdown, maxsplit=1)[0]

    def format(self, width: int = WIDTH) -> str:
        """Format the section as plain text."""
        return "\n\n".join([self.heading, *(_fill(block, width) for block in self.markdown.split("\n\n"))])


@functools.cache
def sections() -> Mapping[str, Section]:
    """Return the sections by name, in the order of the page."""
    _, *parts = re.split(r"^##+ (.+)$", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    texts = zip(parts[::2], map(str.strip, parts[1::2]), strict=True)
    found = [Section(heading, _LINK.sub(_name_page, text)) for heading, text in texts if text]  # else a group of them
    return {section.name: section for section in found}


def section_name(text: str) -> str:
    """Return the name of the section that a text means: `GroupError`, `group`, or a part of a frequent message.

    A type of argparse: raises ArgumentTypeError, with close names, if it means none or several.
    """
    words = Section(re.sub(r"^(\w+\.)+", "", text.strip()), "").name
    known = sections()
    for name in (words, f"{words}error"):
        if name in known:
            return name
    containing = [name for name in known if words in name]
    if len(containing) == 1:
        return containing[0]
    close = containing[:MOST_NAMES] or difflib.get_close_matches(words, known)
    hint = f"did you mean {' or '.join(close)}?" if close else "without a name, all sections are listed"
    raise argparse.ArgumentTypeError(f"no section is about {text!r}; {hint}")


def format_list(width: int = WIDTH) -> str:
    """Format the names of all sections, each with its first sentence."""
    return "\n".join(_format_row(section, width) for section in sections().values())


def _format_row(section: Section, width: int) -> str:
    summary = textwrap.fill(section.summary, width, initial_indent=_INDENT, subsequent_indent=_INDENT)
    if len(section.name) >= len(_INDENT):
        return f"{section.name}\n{summary}"
    return f"{section.name.ljust(len(_INDENT))}{summary.removeprefix(_INDENT)}"


def _name_page(link: re.Match[str]) -> str:
    """Return a link as text: another section has the name of its error, another page its file in the repository."""
    return link[1] if link[2].startswith("#") else f"{link[1]} (docs/{link[2]})"


def _fill(block: str, width: int) -> str:
    """Wrap a paragraph or a list anew."""
    items = re.split(r"\n(?=- )", block)
    return "\n".join(
        textwrap.fill(item, width, subsequent_indent="  " * item.startswith("- "), break_on_hyphens=False)
        for item in items
    )
