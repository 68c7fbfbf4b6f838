"""The option lines of `%%mesh`, `%mesh` and `#mesh:`: text -> frozen values, with argparse.

Help is a value (`HelpRequested`) and a mistake is an exception (`UsageError`): a notebook has no process to
exit. Not for selectors, which stay text here and are read by `selection`; not for doing what a line asks.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import keyword
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeAlias

from meshbook.magics.mistakes import Mistake
from meshbook.runtime.geometry import Extent

OnError: TypeAlias = Literal["stop", "finish"]
Grouping: TypeAlias = Literal["auto", "same", "rank", "order", "none"]

# argparse takes a word that begins with "-" for an option, unless it looks like *one* negative number. Others
# such as `-1,0` and `-2:` do not, so their minus travels as another character. No option begins with a digit.
_HIDDEN_MINUS = "\N{MINUS SIGN}"
_COMMENT = re.compile(r"# ?mesh:(.*)")
_LONGEST_QUOTE = 60


class UsageError(Mistake, ValueError):
    """A line that asks for something there is not; the text names it, and what there is."""


@dataclass(frozen=True)
class HelpRequested:
    """The line asked for help: show the text, and do nothing else."""

    text: str


@dataclass(frozen=True)
class CellOptions:
    """How a `%%mesh` cell runs. `selection` and `show` are selectors, not yet read."""

    selection: str = "all"
    out: str | None = None
    show: str | None = None
    quiet: bool = False
    time: bool = False
    on_error: OnError = "stop"
    group: Grouping = "auto"
    timeout: float | None = None  # seconds


@dataclass(frozen=True)
class Up:
    """Start a mesh of `gpus` workers, or of this shape; the default of both is None."""

    gpus: int | None = None
    shape: Extent | None = None
    name: str | None = None


@dataclass(frozen=True)
class Status:
    """Say how a mesh is (`name` None means all of them), and unless it is to be `brief` what has happened to it."""

    name: str | None = None
    brief: bool = False


@dataclass(frozen=True)
class Down:
    """Stop a mesh (None: the default mesh); `now` does not wait for what runs."""

    name: str | None = None
    now: bool = False


@dataclass(frozen=True)
class Log:
    """Show the last lines that a rank wrote."""

    rank: int
    lines: int = 100


@dataclass(frozen=True)
class Heal:
    """Start the dead ranks of a mesh again (None: the default mesh)."""

    name: str | None = None


@dataclass(frozen=True)
class Interrupt:
    """Interrupt what these ranks run; `kill` ends those that are busy, and starts them again."""

    selection: str = "all"
    kill: bool = False


@dataclass(frozen=True)
class Restart:
    """End these ranks, whatever they run, and start them again."""

    selection: str = "all"


@dataclass(frozen=True)
class Stack:
    """Show where these ranks are."""

    selection: str = "all"


Verb: TypeAlias = Up | Status | Down | Log | Heal | Interrupt | Restart | Stack


@functools.lru_cache(maxsize=256)  # half a millisecond of argparse, in every cell otherwise
def parse_cell_options(line: str) -> CellOptions | HelpRequested:
    """What follows `%%mesh` on its line."""
    try:
        found = _read(_cell_parser(), _words(line))
    except _HelpAsked as asked:
        return HelpRequested(asked.text)
    return CellOptions(**vars(found))


def parse_verb(line: str) -> Verb | HelpRequested:
    """What follows `%mesh` on its line; nothing is a brief `status`."""
    words = _words(line)
    if not words:
        return Status(brief=True)
    verb, *arguments = words
    if verb in ("help", *_HELP_WORDS):
        return HelpRequested(_overview())
    if verb not in _VERBS:
        raise UsageError(
            f"%mesh: no verb {_quoted(verb)}{_suggestion(verb, _VERBS)} The verbs are {', '.join(_VERBS)}."
        )
    build, make = _VERBS[verb]
    try:
        return make(**vars(_read(build(), arguments)))
    except _HelpAsked as asked:
        return HelpRequested(asked.text)


def parse_comment(first_line: str) -> str | None:
    """The option line of a cell that begins with `#mesh: ...`, or None if this is another line."""
    found = _COMMENT.match(first_line)
    return found.group(1).strip() if found else None


# --- the parsers ---


def _cell_parser() -> _Parser:
    parser = _Parser(prog="%%mesh", description="Run this cell on ranks of the mesh.")
    parser.add_argument(
        "selection",
        metavar="SEL",
        nargs="?",
        default="all",
        type=_selector,
        help="which ranks: all, 0, -1, 0,3, 0:4, ::2, !3, gpus=0:4, NAME, NAME[0,3], failed, ok, changed"
        " (default: all)",
    )
    parser.add_argument("-o", "--out", metavar="NAME", type=_variable, help="keep the result object in this variable")
    printing = parser.add_mutually_exclusive_group()
    printing.add_argument(
        "--show", metavar="SEL", type=_selector, help="print only what these ranks write; nothing is lost"
    )
    printing.add_argument(
        "-q", "--quiet", action="store_true", help="print nothing that the ranks write; nothing is lost"
    )
    parser.add_argument("-T", "--time", action="store_true", help="a table of the time that each rank took")
    parser.add_argument(
        "--on-error",
        choices=("stop", "finish"),
        default="stop",
        help="the first error interrupts the other ranks, or all finish (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=_seconds,
        help="after so many seconds say where each rank is, and interrupt all",
    )
    parser.add_argument(
        "-g",
        "--group",
        choices=("auto", "same", "rank", "order", "none"),
        default="auto",
        help="how output is grouped (default: %(default)s)",
    )
    return parser


def _up_parser() -> _Parser:
    parser = _Parser(prog="%mesh up", description="Start a mesh.")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--gpus", metavar="N", type=_count, help="how many workers")
    size.add_argument("--shape", metavar="DIM=N,...", type=_shape, help="dimensions and sizes, such as hosts=2,gpus=4")
    parser.add_argument("--name", metavar="NAME", type=_variable, help="what selectors call it")
    return parser


def _status_parser() -> _Parser:
    parser = _Parser(prog="%mesh status", description="Say how the meshes are.")
    parser.add_argument("name", metavar="NAME", nargs="?", help="only this mesh")
    return parser


def _down_parser() -> _Parser:
    parser = _Parser(prog="%mesh down", description="Stop a mesh.")
    parser.add_argument("name", metavar="NAME", nargs="?", help="this mesh (default: the default mesh)")
    parser.add_argument("--now", action="store_true", help="do not wait for what still runs")
    return parser


def _log_parser() -> _Parser:
    parser = _Parser(prog="%mesh log", description="Show what a rank wrote.")
    parser.add_argument("rank", metavar="RANK", type=_rank, help="the rank, from 0")
    parser.add_argument(
        "-n",
        dest="lines",
        metavar="LINES",
        type=_count,
        default=100,
        help="the last lines (default: %(default)s)",
    )
    return parser


def _heal_parser() -> _Parser:
    parser = _Parser(prog="%mesh heal", description="Start the ranks again that have died.")
    parser.add_argument("name", metavar="NAME", nargs="?", help="of this mesh (default: the default mesh)")
    return parser


def _interrupt_parser() -> _Parser:
    parser = _Parser(prog="%mesh interrupt", description="Interrupt what ranks run; also while a cell waits for them.")
    _add_selection(parser)
    parser.add_argument("--kill", action="store_true", help="end those that are busy, and start them again")
    return parser


def _restart_parser() -> _Parser:
    parser = _Parser(prog="%mesh restart", description="End ranks, whatever they run, and start them again.")
    _add_selection(parser)
    return parser


def _stack_parser() -> _Parser:
    parser = _Parser(prog="%mesh stack", description="Show where ranks are: the same stacks once.")
    _add_selection(parser)
    return parser


def _add_selection(parser: _Parser) -> None:
    parser.add_argument(
        "selection", metavar="SEL", nargs="?", default="all", type=_selector, help="which ranks (default: all)"
    )


_VERBS: dict[str, tuple[Callable[[], _Parser], Callable[..., Verb]]] = {
    "up": (_up_parser, Up),
    "status": (_status_parser, Status),
    "down": (_down_parser, Down),
    "heal": (_heal_parser, Heal),
    "interrupt": (_interrupt_parser, Interrupt),
    "restart": (_restart_parser, Restart),
    "stack": (_stack_parser, Stack),
    "log": (_log_parser, Log),
}


def _overview() -> str:
    return "".join(build().format_usage() for build, _ in _VERBS.values()) + "\n%mesh VERB --help says more.\n"


# --- the types of arguments ---


def _selector(text: str) -> str:
    return _with_minus(text)


def _variable(text: str) -> str:
    if not text.isidentifier() or keyword.iskeyword(text):
        raise argparse.ArgumentTypeError(f"{_quoted(text)} is not a name that a variable can have")
    return text


def _rank(text: str) -> int:
    return _whole_number(text, least=0)


def _count(text: str) -> int:
    return _whole_number(text, least=1)


def _whole_number(text: str, least: int) -> int:
    # At most nine digits: more is a slip of the hand, and int() of thousands fails with words of its own.
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) < least:
        raise argparse.ArgumentTypeError(f"{_quoted(text)} is not a whole number of {least} or more")
    return int(text)


def _seconds(text: str) -> float:
    if not re.fullmatch(r"[0-9]{0,9}\.?[0-9]{0,9}", text) or not any(map(str.isdigit, text)) or not float(text):
        raise argparse.ArgumentTypeError(f"{_quoted(text)} is not a number of seconds above zero")
    return float(text)


def _shape(text: str) -> Extent:
    pairs = [part.partition("=") for part in text.split(",")]
    for name, equals, size in pairs:
        if not equals or not name.isidentifier() or not size:
            raise argparse.ArgumentTypeError(f"{_quoted(text)} is not a shape such as hosts=2,gpus=4")
    try:
        return Extent([name for name, _, _ in pairs], [_count(size) for _, _, size in pairs])
    except ValueError as error:  # a dimension is there twice
        raise argparse.ArgumentTypeError(str(error))


# --- argparse, made fit for a notebook ---


class _HelpAsked(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


_HELP_WORDS = ("-h", "--help", "?")


class _Parser(argparse.ArgumentParser):
    """Raises where argparse would exit. Takes no abbreviations: a new option could make one ambiguous."""

    def __init__(self, prog: str, description: str) -> None:
        # A fixed width: the terminal in which the server happened to start says nothing about the notebook.
        formatter = functools.partial(argparse.HelpFormatter, width=100, max_help_position=28)
        super().__init__(prog, description=description, formatter_class=formatter, allow_abbrev=False, add_help=False)
        self.add_argument("-h", "--help", action=_HelpAction, nargs=0, help="show this, and run nothing")

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {_with_minus(message)}")

    def option_names(self) -> list[str]:
        return [name for action in self._actions for name in action.option_strings]


class _HelpAction(argparse.Action):
    def __init__(self, **options: Any) -> None:
        super().__init__(default=argparse.SUPPRESS, **options)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        raise _HelpAsked(parser.format_help())


def _read(parser: _Parser, words: Sequence[str]) -> argparse.Namespace:
    if "?" in words:
        raise _HelpAsked(parser.format_help())
    found, left = parser.parse_known_args([_without_minus(word) for word in words])
    if left:
        # An unknown option comes first: the word after it may have been meant as its value.
        odd = next((word for word in left if word.startswith("-")), left[0])
        parser.error(_about_leftover(odd, parser.option_names()))
    return found


def _about_leftover(word: str, options: Sequence[str]) -> str:
    if not word.startswith("-"):
        return f"{_quoted(_with_minus(word))} is one word too many (names and selectors have no blanks in them)"
    name = word.partition("=")[0]
    return f"no option {_quoted(name)}{_suggestion(name, options)} The options are {', '.join(options)}."


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:  # a quotation that is not closed
        raise UsageError(f"cannot read {_quoted(line.strip())}: {str(error).lower()}")


def _without_minus(word: str) -> str:
    return _HIDDEN_MINUS + word[1:] if re.match("-[0-9]", word) else word


def _with_minus(text: str) -> str:
    return text.replace(_HIDDEN_MINUS, "-")


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_QUOTE else text[:_LONGEST_QUOTE] + "…")


def _suggestion(word: str, known: Sequence[str] | dict[str, Any]) -> str:
    close = difflib.get_close_matches(word[:_LONGEST_QUOTE], list(known), n=1)
    return f". Did you mean {close[0]!r}?" if close else "."
