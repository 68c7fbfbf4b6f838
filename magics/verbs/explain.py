"""`%mesh explain`: the sections of docs/errors.md."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from meshbook.magics.notebook import Notebook
from meshbook.magics.output.publisher import Display, publisher_for
from meshbook.magics.syntax.argparsing import Parser, section_words
from meshbook.magics.verbs import Verb
from meshbook.runtime.error_page import format_list, section_name, sections


class _Section(argparse.Action):
    """Takes the words of a name, which need no quotes."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: object) -> None:
        try:
            setattr(namespace, self.dest, section_name(" ".join(values)) if values else None)
        except argparse.ArgumentTypeError as error:
            parser.error(str(error))


@dataclass(frozen=True)
class ExplainVerb(Verb):
    """Show the section of this name, or list all sections."""

    word = "explain"
    description = "Explain an error class or a frequent message: what it means, its usual causes, and what to do."

    name: str | None = None

    @staticmethod
    def add_arguments(parser: Parser) -> None:
        parser.add_argument(
            "name",
            metavar="NAME",
            nargs="*",
            type=section_words,
            action=_Section,
            help="an error class in any case, or words of a message (default: list all)",
        )

    def run(self, notebook: Notebook) -> None:
        if self.name is None:
            print(format_list())
            return
        section = sections()[self.name]
        data = {"text/plain": section.format(), "text/markdown": f"### {section.heading}\n\n{section.markdown}"}
        publisher_for(notebook.shell).publish([Display(data, {})])
