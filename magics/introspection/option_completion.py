"""Completion of an option line: options, their values, verbs. It reads the parsers themselves, and no rank."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from meshbook.hosts import setup_names
from meshbook.magics.introspection.selector_completion import (
    SelectorScope,
    complete_mesh,
    complete_rank,
    complete_selector,
)
from meshbook.magics.syntax.argparsing import (
    Parser,
    host_name,
    hosts_text,
    job_name,
    mesh_name,
    pull_specs,
    push_names,
    remote_variable,
    section_words,
    selector,
    setting_name,
)
from meshbook.magics.syntax.cell_options import cell_parser
from meshbook.magics.syntax.settings import SETTINGS, UNSET
from meshbook.magics.variables.reduce import REDUCTIONS
from meshbook.magics.verbs.verb_table import VERBS
from meshbook.runtime.cells.completion import Match
from meshbook.runtime.error_page import sections


def _complete_pulled(text: str, start: int, scope: SelectorScope) -> list[Match]:
    last = text.rpartition(",")[2]
    _, at, how = last.partition("@")
    if not at:
        return _complete_list(text, start, scope.remote)
    begun = start + len(text) - len(how)
    ways = [Match(way, begun, begun + len(how), "choice") for way in REDUCTIONS if way.startswith(how)]
    return [*ways, *complete_rank(how, begun, scope)]


def _offer(names: Iterable[str], text: str, start: int, kind: str) -> list[Match]:
    return [Match(name, start, start + len(text), kind) for name in names if name.startswith(text)]


def _complete_list(text: str, start: int, names: Sequence[str]) -> list[Match]:
    """Complete the last of several comma-separated names; none is offered twice."""
    before, _, last = text.rpartition(",")
    begun, taken = start + len(text) - len(last), before.split(",")
    offered = (name for name in names if name.startswith(last) and name not in taken)
    return [Match(name, begun, begun + len(last), "variable") for name in offered]


def _complete_hosts(text: str, start: int, scope: SelectorScope) -> list[Match]:
    """Complete a launcher, the name of a set-up, or a mesh whose hosts are shared."""
    offered = ["slurm:", "ssh:", "ray:", "local:", *setup_names(), *scope.meshes]
    return _offer(dict.fromkeys(offered), text, start, "choice")


def _complete_section(text: str, start: int, scope: SelectorScope) -> list[Match]:
    """Complete the name of an error in the case in which it begins: `gro` or `Gro`."""
    classes = [each.heading for each in sections().values() if each.heading.isidentifier()]
    return _offer(sections() if text == text.lower() else classes, text, start, "choice")


# The completion of a value by its type; other types (numbers, new names) have none.
_BY_TYPE: Mapping[Any, Callable[[str, int, SelectorScope], list[Match]]] = {
    selector: complete_selector,
    mesh_name: complete_mesh,
    push_names: lambda text, start, scope: _complete_list(text, start, scope.local),
    pull_specs: _complete_pulled,
    remote_variable: lambda text, start, scope: _offer(scope.remote, text, start, "variable"),
    job_name: lambda text, start, scope: _offer(scope.jobs, text, start, "job"),
    host_name: lambda text, start, scope: _offer(scope.hosts, text, start, "choice"),
    hosts_text: _complete_hosts,
    setting_name: lambda text, start, scope: _offer(SETTINGS, text, start, "setting"),
    section_words: _complete_section,
}
_WORD = re.compile(r"\S+")
_NUMBER = re.compile("-[0-9]")


def complete_cell_options(text: str, start: int, scope: SelectorScope) -> list[Match]:
    """Complete after `%%mesh`: `text` is the line up to the cursor, `start` its offset in the cell."""
    return _complete(cell_parser(), text, start, scope)


def complete_verb(text: str, start: int, scope: SelectorScope) -> list[Match]:
    """Complete after `%mesh`: a verb, or its arguments."""
    *done, last = [*_WORD.findall(text), ""] if not text or text[-1].isspace() else _WORD.findall(text)
    at = start + len(text) - len(last)
    match done:
        case []:
            return _offer([*VERBS, "help"], last, at, "verb")
        case ["help"]:
            return _offer(VERBS, last, at, "verb")
        case ["config", key] if (known := SETTINGS.get(key.replace("-", "_"))) is not None:
            return _offer([*known.offers, UNSET], last, at, "choice")
        case [verb, *_] if verb in VERBS:
            after = text.index(verb) + len(verb)
            return _complete(VERBS[verb].parser(), text[after:], start + after, scope)
        case _:
            return []


def _complete(parser: Parser, text: str, start: int, scope: SelectorScope) -> list[Match]:
    if text.count("'") % 2 or text.count('"') % 2:
        return []  # anything may occur within a quotation
    *done, last = [*_WORD.findall(text), ""] if not text or text[-1].isspace() else _WORD.findall(text)
    line = _Line(parser, done)
    at = start + len(text) - len(last)
    if line.wanting is not None:
        return _values(line.wanting, last, at, scope)
    if _is_option(last):
        return _after_dash(line, last, at, scope)
    values = [] if line.next_value is None else _values(line.next_value, last, at, scope)
    return values if last else [*values, *_options(line, "--", at, at)]


class _Line:
    """The options and arguments used by the words before the one that is being typed."""

    def __init__(self, parser: Parser, words: list[str]) -> None:
        self.parser = parser
        self.used: list[argparse.Action] = []
        self.wanting: argparse.Action | None = None  # an option that lacks its value
        self._values = [action for action in parser.actions if not action.option_strings]
        for word in words:
            self._take(word)

    @property
    def next_value(self) -> argparse.Action | None:
        """The next positional argument."""
        return self._values[0] if self._values else None

    def _take(self, word: str) -> None:
        if self.wanting is not None:
            self.wanting = None
        elif _is_option(word):
            name, equals, _ = word.partition("=")
            # Short options may be joined, `-Tq`, and so may an option and its value, `-gnone`.
            option = self.parser.option(name) or self.parser.option(word[:2])
            if option is not None:
                self.used.append(option)
                self.wanting = option if not equals and name in option.option_strings and takes_value(option) else None
        elif self._values and self._values[0].nargs not in ("*", "+", argparse.REMAINDER):
            self._values.pop(0)


def _after_dash(line: _Line, word: str, at: int, scope: SelectorScope) -> list[Match]:
    name, equals, value = word.partition("=")
    option = line.parser.option(name)
    if equals:
        return [] if option is None else _values(option, value, at + len(name) + 1, scope)
    return _options(line, word, at, at + len(word))


def _options(line: _Line, word: str, start: int, end: int) -> list[Match]:
    shut = {id(action) for used in line.used for action in (used, *line.parser.rivals(used))}
    names = [name for action in line.parser.actions if id(action) not in shut for name in action.option_strings]
    return [Match(name, start, end, "option") for name in names if name.startswith(word)]


def _values(action: argparse.Action, word: str, at: int, scope: SelectorScope) -> list[Match]:
    if action.choices is not None:
        return [Match(str(each), at, at + len(word), "choice") for each in action.choices if str(each).startswith(word)]
    complete = _BY_TYPE.get(action.type)
    return complete(word, at, scope) if complete is not None else []


def takes_value(action: argparse.Action) -> bool:
    """Whether a value follows this option."""
    return action.nargs != 0


def _is_option(word: str) -> bool:
    return word.startswith("-") and not _NUMBER.match(word)
