"""The option lines of `%mesh`: text -> the verb that it asks for, as a frozen value.

Not for doing what a line asks (`extension`), nor for selectors, which stay text here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from meshbook.magics.parsing import (
    HELP_WORDS,
    HelpAsked,
    HelpRequested,
    Parser,
    UsageError,
    count,
    quoted,
    rank,
    read,
    selector,
    shape,
    suggestion,
    variable,
    words,
)
from meshbook.runtime.geometry import Extent


@dataclass(frozen=True)
class Up:
    """Start a mesh of `gpus` workers, or of this shape; the default of both is None."""

    gpus: int | None = None
    shape: Extent | None = None
    name: str | None = None
    spares: int = 0


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
class Resize:
    """Let a mesh (None: the default mesh) have `gpus` workers in its last dimension, or these sizes."""

    gpus: int | None = None
    shape: Extent | None = None
    name: str | None = None


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


Verb: TypeAlias = Up | Status | Down | Log | Resize | Heal | Interrupt | Restart | Stack


def parse_verb(line: str) -> Verb | HelpRequested:
    """What follows `%mesh` on its line; nothing is a brief `status`."""
    if not (found := words(line)):
        return Status(brief=True)
    verb, *arguments = found
    if verb in ("help", *HELP_WORDS):
        return HelpRequested(_overview())
    if verb not in _VERBS:
        raise UsageError(f"%mesh: no verb {quoted(verb)}{suggestion(verb, _VERBS)} The verbs are {', '.join(_VERBS)}.")
    build, make = _VERBS[verb]
    try:
        return make(**vars(read(build(), arguments)))
    except HelpAsked as asked:
        return HelpRequested(asked.text)


def _up_parser() -> Parser:
    parser = Parser(prog="%mesh up", description="Start a mesh.")
    _add_size(parser, required=False)
    parser.add_argument("--name", metavar="NAME", type=variable, help="what selectors call it")
    parser.add_argument(
        "--spares", metavar="N", type=count, default=0, help="keep so many processes for ranks that die (default: none)"
    )
    return parser


def _status_parser() -> Parser:
    parser = Parser(prog="%mesh status", description="Say how the meshes are.")
    parser.add_argument("name", metavar="NAME", nargs="?", help="only this mesh")
    return parser


def _down_parser() -> Parser:
    parser = Parser(prog="%mesh down", description="Stop a mesh.")
    parser.add_argument("name", metavar="NAME", nargs="?", help="this mesh (default: the default mesh)")
    parser.add_argument("--now", action="store_true", help="do not wait for what still runs")
    return parser


def _log_parser() -> Parser:
    parser = Parser(prog="%mesh log", description="Show what a rank wrote.")
    parser.add_argument("rank", metavar="RANK", type=rank, help="the rank, from 0")
    parser.add_argument(
        "-n",
        dest="lines",
        metavar="LINES",
        type=count,
        default=100,
        help="the last lines (default: %(default)s)",
    )
    return parser


def _resize_parser() -> Parser:
    parser = Parser(
        prog="%mesh resize", description="Add ranks to a mesh, or take some away; the others keep their state."
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="this mesh (default: the default mesh)")
    _add_size(parser, required=True)
    return parser


def _heal_parser() -> Parser:
    parser = Parser(prog="%mesh heal", description="Start the ranks again that have died.")
    parser.add_argument("name", metavar="NAME", nargs="?", help="of this mesh (default: the default mesh)")
    return parser


def _interrupt_parser() -> Parser:
    parser = Parser(prog="%mesh interrupt", description="Interrupt what ranks run; also while a cell waits for them.")
    _add_selection(parser)
    parser.add_argument("--kill", action="store_true", help="end those that are busy, and start them again")
    return parser


def _restart_parser() -> Parser:
    parser = Parser(prog="%mesh restart", description="End ranks, whatever they run, and start them again.")
    _add_selection(parser)
    return parser


def _stack_parser() -> Parser:
    parser = Parser(prog="%mesh stack", description="Show where ranks are: the same stacks once.")
    _add_selection(parser)
    return parser


def _add_size(parser: Parser, *, required: bool) -> None:
    size = parser.add_mutually_exclusive_group(required=required)
    size.add_argument("--gpus", metavar="N", type=count, help="how many workers")
    size.add_argument("--shape", metavar="DIM=N,...", type=shape, help="dimensions and sizes, such as hosts=2,gpus=4")


def _add_selection(parser: Parser) -> None:
    parser.add_argument(
        "selection", metavar="SEL", nargs="?", default="all", type=selector, help="which ranks (default: all)"
    )


_VERBS: dict[str, tuple[Callable[[], Parser], Callable[..., Verb]]] = {
    "up": (_up_parser, Up),
    "status": (_status_parser, Status),
    "down": (_down_parser, Down),
    "resize": (_resize_parser, Resize),
    "heal": (_heal_parser, Heal),
    "interrupt": (_interrupt_parser, Interrupt),
    "restart": (_restart_parser, Restart),
    "stack": (_stack_parser, Stack),
    "log": (_log_parser, Log),
}


def _overview() -> str:
    return "".join(build().format_usage() for build, _ in _VERBS.values()) + "\n%mesh VERB --help says more.\n"
