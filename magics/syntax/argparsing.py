"""argparse for a notebook, and the types of arguments in option lines: text -> values.

Help is a value (`HelpText`) and a mistake is an exception (`UsageError`), since a notebook must not exit.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import keyword
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from meshbook.magics.errors import UsageError
from meshbook.magics.variables.reduce import REDUCTIONS, Reduction
from meshbook.runtime.geometry import Extent

# argparse takes a word that begins with "-" for an option, unless it looks like *one* negative number. `-1,0` and `-2:`
# do not, so another character replaces their minus. No option begins with a digit.
_HIDDEN_MINUS = "\N{MINUS SIGN}"
_LONGEST_QUOTE = 60


@dataclass(frozen=True)
class HelpText:
    """The line has a help option: show the text, and do nothing else."""

    text: str


# --- the types of arguments ---


def selector(text: str) -> str:
    """A selector, not yet parsed."""
    return text


def mesh_name(text: str) -> str:
    """The name of a mesh; the lookup checks whether the mesh exists."""
    return text


def hosts_text(text: str) -> str:
    """A description of hosts, such as slurm:4; starting them checks it."""
    return text


def host_name(text: str) -> str:
    """The name of a host; the lookup checks whether a mesh is on it."""
    return text


def job_name(text: str) -> str:
    """The number of a job, or the variable that holds it; the lookup checks whether the job exists."""
    return text


def setting_name(text: str) -> str:
    """The name of a setting; the lookup checks whether it exists."""
    return text


def section_words(text: str) -> str:
    """A word of the name of a section of the page on errors; the lookup checks whether there is one."""
    return text


def remote_variable(text: str) -> str:
    """The name of a variable of the ranks."""
    return variable(text)


def variable(text: str) -> str:
    """A valid variable name."""
    if not text.isidentifier() or keyword.iskeyword(text):
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not a valid variable name")
    return text


def count(text: str) -> int:
    """A count: one at least."""
    return _whole_number(text, least=1)


def _whole_number(text: str, least: int) -> int:
    # At most nine digits: more is a typing error, and int() rejects thousands of digits with an error of its own.
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) < least:
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not a whole number of {least} or more")
    return int(text)


def port(text: str) -> int:
    """A port of this machine; 0 selects a free one."""
    number = _whole_number(text, least=0)
    if number > 65535:
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not a valid port (0 to 65535)")
    return number


def seconds(text: str) -> float:
    """A number of seconds above zero."""
    if not re.fullmatch(r"[0-9]{0,9}\.?[0-9]{0,9}", text) or not any(map(str.isdigit, text)) or not float(text):
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not a positive number of seconds")
    return float(text)


def shape(text: str) -> Extent:
    """Dimensions and sizes, `hosts=2,gpus=4`."""
    pairs = [part.partition("=") for part in text.split(",")]
    for name, equals, size in pairs:
        if not equals or not name.isidentifier() or not size:
            raise argparse.ArgumentTypeError(f"{quoted(text)} is not a valid shape; example: hosts=2,gpus=4")
    try:
        return Extent([name for name, _, _ in pairs], [count(size) for _, _, size in pairs])
    except ValueError as error:  # a duplicate dimension
        raise argparse.ArgumentTypeError(str(error))


# --- argparse for a notebook ---


class HelpRequested(Exception):
    """The line has a help option; the caller of the parser converts this to a `HelpText`."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


HELP_WORDS = ("-h", "--help", "?")


class Parser(argparse.ArgumentParser):
    """Raises where argparse would exit. Accepts no abbreviations: a new option could make one ambiguous."""

    def __init__(self, prog: str, description: str) -> None:
        # A fixed width: the server's terminal has no relation to the notebook.
        formatter = functools.partial(argparse.HelpFormatter, width=100, max_help_position=28)
        super().__init__(prog, description=description, formatter_class=formatter, allow_abbrev=False, add_help=False)
        self.add_argument("-h", "--help", action=_HelpAction, nargs=0, help="show this help, and run nothing")

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {_with_minus(message)}")

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        return super()._get_value(action, _with_minus(arg_string))

    @property
    def actions(self) -> list[argparse.Action]:
        """Its arguments, in their order."""
        return self._actions

    def option(self, name: str) -> argparse.Action | None:
        """The option of this name, with its dashes."""
        return self._option_string_actions.get(name)

    def rivals(self, action: argparse.Action) -> list[argparse.Action]:
        """The options that cannot be combined with this one."""
        groups = [group._group_actions for group in self._mutually_exclusive_groups]
        return [other for group in groups if action in group for other in group if other is not action]


class _HelpAction(argparse.Action):
    def __init__(self, **options: Any) -> None:
        super().__init__(default=argparse.SUPPRESS, **options)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        raise HelpRequested(parser.format_help())


def parse_words(parser: Parser, words: Sequence[str]) -> argparse.Namespace:
    """Parse the words of a line. Raises UsageError, or HelpRequested."""
    if list(words) == ["?"]:
        raise HelpRequested(parser.format_help())
    found, left = parser.parse_known_args(
        [_HIDDEN_MINUS + word[1:] if re.match("-[0-9]", word) else word for word in words]
    )
    if left:
        # An unknown option first: the word after it may have been meant as its value.
        odd = next((word for word in left if word.startswith("-")), left[0])
        if not odd.startswith("-"):
            if odd.isdigit() and parser.option("--gpus") is not None:
                parser.error(f"unexpected argument {quoted(odd)}; the number of workers is --gpus {odd}")
            parser.error(f"unexpected argument {quoted(_with_minus(odd))} (names and selectors cannot contain spaces)")
        name = odd.partition("=")[0]
        options = [each for action in parser.actions for each in action.option_strings]
        parser.error(f"unknown option {quoted(name)}{suggestion(name, options)} The options are {', '.join(options)}.")
    return found


def split_words(line: str) -> list[str]:
    """Split a line into words, as a shell does. UsageError for an unclosed quotation."""
    try:
        return shlex.split(line)
    except ValueError as error:  # an unclosed quotation
        raise UsageError(f"cannot parse {quoted(line.strip())}: {str(error).lower()}")


def _with_minus(text: str) -> str:
    return text.replace(_HIDDEN_MINUS, "-")


def quoted(text: str) -> str:
    """Quote a text for a message, cut to 60 characters."""
    return repr(text if len(text) <= _LONGEST_QUOTE else text[:_LONGEST_QUOTE] + "…")


def suggestion(word: str, known: Sequence[str] | dict[str, Any]) -> str:
    """Return the end of a message about an unknown word, with the closest known one."""
    close = difflib.get_close_matches(word[:_LONGEST_QUOTE], list(known), n=1)
    return f". Did you mean {close[0]!r}?" if close else "."


@dataclass(frozen=True)
class PullSpec:
    """A variable to pull: from each rank (`how` None), from one rank, or reduced over all ranks."""

    name: str
    how: Reduction | int | None = None

    def __str__(self) -> str:
        return self.name if self.how is None else f"{self.name}@{self.how}"


def push_names(text: str) -> tuple[str, ...]:
    """Parse names of variables, `a,b`."""
    return tuple(variable(name) for name in _parts(text))


def pull_specs(text: str) -> tuple[PullSpec, ...]:
    """Parse names of variables, each with its rank or reduction, `a,b@0,c@mean`."""
    wanted: list[PullSpec] = []
    for part in _parts(text):
        name, at, how = part.partition("@")
        wanted.append(PullSpec(variable(name), _how(how.strip(), part) if at else None))
    names = [each.name for each in wanted]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise argparse.ArgumentTypeError(f"{twice[0]} is given twice; the notebook has one variable of that name")
    return tuple(wanted)


def _how(how: str, part: str) -> Reduction | int:
    if re.fullmatch("-?[0-9]{1,9}", how):
        return int(how)
    if how in REDUCTIONS:
        return cast("Reduction", how)
    raise argparse.ArgumentTypeError(
        f"{quoted(part)}: expected a rank after @, or one of {', '.join(REDUCTIONS)}{suggestion(how, REDUCTIONS)}"
    )


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()] or [text]
