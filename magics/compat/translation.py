"""Translate magics of ipyparallel and nbdistributed: their cells become calls of the runner of `%%mesh` cells.

This module runs nothing: cells run with the translated line only (`magics.syntax.cell_options`). Pure, but for the
defaults that `Rewriting` holds.
"""

from __future__ import annotations

import functools
import re
import shlex
from argparse import SUPPRESS, ArgumentTypeError
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meshbook.magics.errors import UsageError
from meshbook.magics.syntax.argparsing import HelpRequested, Parser, count, parse_words, quoted, split_words, variable
from meshbook.magics.syntax.transform import make_call

REFUSE = "__mesh_refuse__"
_MAGICS = re.compile(r"%%(?P<name>px|distributed|rank)(?P<line>(?![\w]).*)$")


class Rewriting:
    """An input transformer that runs before meshbook's. `defaults` are those of `%pxconfig`.

    `is_within` returns whether the cell is part of a running one.
    """

    has_side_effects = True  # as meshbook's transformer: completeness is checked on the text that the user typed

    def __init__(self, is_within: Callable[[], bool] = lambda: False) -> None:
        self.defaults = PxDefaults()
        self._is_within = is_within

    def __call__(self, lines: list[str]) -> list[str]:
        first = next((index for index, line in enumerate(lines) if line.strip()), None)
        found = _MAGICS.match(lines[first].rstrip("\r\n")) if first is not None else None
        if first is None or found is None:
            return lines
        try:
            ours = self._translations()[found["name"]](found["line"])
        except UsageError as error:
            return [f"{REFUSE}({str(error)!r})\n"]
        except HelpRequested as asked:
            return [f"print({asked.text!r})\n"]
        # Not as a `%%mesh` cell: tracebacks show the line that the user wrote.
        return [make_call(ours, lines, first + 1, is_within=self._is_within())]

    def _translations(self) -> dict[str, Callable[[str], str]]:
        return {
            "px": lambda line: translate_px(line, self.defaults),
            "rank": translate_rank,
            "distributed": lambda line: "all",
        }


def refuse(text: str) -> None:
    """Raise the usage error of a cell whose magic line is invalid."""
    raise UsageError(text)


# ipyparallel's grouping -> ours: by type is its default, and ours for output of any kind.
_GROUPINGS = {"type": "auto", "engine": "rank", "order": "order"}
_TARGETS = re.compile(r"[-\d:, ]+")
_RANKS = re.compile(r"\s*\[\s*(?P<ranks>[-\d:,\s]*)\]\s*")
_RANGE = re.compile(r"(\d+)-(\d+)")


@dataclass(frozen=True)
class PxDefaults:
    """The defaults that `%pxconfig` sets; each `%%px` may override them."""

    targets: str = "all"
    block: bool = True


@dataclass(frozen=True)
class Init:
    """The arguments of `%dist_init`: the number of processes. GPUs follow from the ranks here."""

    processes: int = 2


def translate_px(line: str, defaults: PxDefaults = PxDefaults()) -> str:
    """Return the option line of `%%mesh` for one of `%%px`; raises UsageError or HelpRequested."""
    asked = vars(parse_words(_px_parser(), split_words(line)))
    parts = [asked.get("targets", defaults.targets)]
    parts += [] if asked.get("block", defaults.block) else ["-a"]
    parts += ["-o", asked["out"]] if "out" in asked else []
    parts += ["-g", _GROUPINGS[asked["grouping"]]] if "grouping" in asked else []
    parts += ["--local"] if "local" in asked else []
    return shlex.join(parts)


def translate_pxconfig(line: str, defaults: PxDefaults) -> PxDefaults:
    """Return the new defaults; raises UsageError or HelpRequested."""
    asked = vars(parse_words(_pxconfig_parser(), split_words(line)))
    return PxDefaults(asked.get("targets", defaults.targets), asked.get("block", defaults.block))


def translate_rank(line: str) -> str:
    """Return the option line of `%%mesh` for the text after `%%rank`: `[0,2]`, or `[0-2]` with an inclusive end.

    Raises UsageError.
    """
    found = _RANKS.fullmatch(line)
    ranks = "" if found is None else "".join(found["ranks"].split())
    if not ranks:
        raise UsageError(f"%%rank{line}: expected ranks in brackets, such as %%rank[0,2] or %%rank[0-2]")
    return _RANGE.sub(lambda ends: f"{ends[1]}:{int(ends[2]) + 1}", ranks)


def read_init(line: str) -> Init:
    """Parse the line of `%dist_init`; raises UsageError or HelpRequested."""
    return Init(int(parse_words(_init_parser(), split_words(line)).processes))


def read_switch(line: str) -> bool | None:
    """Parse the line of `%dist_mode`: on, off, or None to show the mode; raises UsageError or HelpRequested."""
    found: bool | None = parse_words(_switch_parser(), split_words(line)).switch
    return found


@functools.cache
def _px_parser() -> Parser:
    parser = Parser("%%px", "Run this cell on ranks of the mesh, with the options of ipyparallel.")
    _add_execution(parser)
    grouping = parser.add_mutually_exclusive_group()
    _add_flag(grouping, "-r", dest="grouping", const="order", help="show output in order of arrival")
    _add_flag(grouping, "-e", dest="grouping", const="engine", help="group output by rank")
    grouping.add_argument("--group-outputs", dest="grouping", choices=tuple(_GROUPINGS), default=SUPPRESS)
    parser.add_argument(
        "-o", "--out", metavar="NAME", type=variable, default=SUPPRESS, help="store the result in this variable"
    )
    _add_flag(parser, "--local", dest="local", const=True, help="run the cell in the notebook as well")
    _add_flag(parser, "--remote", dest="remote", const=True, help="do not run the cell in the notebook (default)")
    return parser


@functools.cache
def _pxconfig_parser() -> Parser:
    parser = Parser("%pxconfig", "Set the defaults of %px and %%px.")
    _add_execution(parser)
    return parser


def _add_execution(parser: Parser) -> None:
    block = parser.add_mutually_exclusive_group()
    _add_flag(block, "-b", "--block", dest="block", const=True, help="wait for the ranks (default)")
    _add_flag(block, "-a", "--noblock", dest="block", const=False, help="return at once")
    parser.add_argument("-t", "--targets", type=_targets, default=SUPPRESS, help="which ranks: 0, 0:2, [0,2], all")
    for flag in ("--stream", "--no-stream", "--verbose", "--no-verbose"):
        _add_flag(
            parser, flag, dest="ignored", const=True, help="accepted for compatibility, ignored: output is always live"
        )
    parser.add_argument("--progress-after", metavar="S", dest="ignored", type=float, default=SUPPRESS)
    parser.add_argument("--signal-on-interrupt", dest="ignored", choices=("SIGINT", "2"), default=SUPPRESS)


@functools.cache
def _init_parser() -> Parser:
    parser = Parser("%dist_init", "Start a mesh with a process group, and run all cells on it.")
    parser.add_argument(
        "-n", "--num-processes", dest="processes", type=count, default=2, help="number of workers (default: 2)"
    )
    parser.add_argument("-a", "--master-addr", dest="ignored", help="accepted for compatibility, ignored")
    parser.add_argument("-g", "--gpu-ids", dest="ignored", help="accepted for compatibility, ignored: rank r has GPU r")
    return parser


@functools.cache
def _switch_parser() -> Parser:
    parser = Parser("%dist_mode", "Set whether all cells run on the mesh.")
    switch = parser.add_mutually_exclusive_group()
    switch.add_argument(
        "-e", "--enable", dest="switch", action="store_const", const=True, help="run all cells on the mesh"
    )
    switch.add_argument(
        "-d", "--disable", dest="switch", action="store_const", const=False, help="run cells in the notebook"
    )
    return parser


def _add_flag(parser: Any, *names: str, dest: str, const: object, help: str) -> None:  # noqa: A002  # argparse's name
    parser.add_argument(*names, dest=dest, action="store_const", const=const, default=SUPPRESS, help=help)


def _targets(text: str) -> str:
    """Parse numbers and slices in Python's notation, with or without brackets."""
    bare = text.replace("\N{MINUS SIGN}", "-").strip().removeprefix("[").removesuffix("]")
    bare = "".join(bare.split())
    if bare == "all" or (bare and _TARGETS.fullmatch(bare)):
        return bare
    raise ArgumentTypeError(f"{quoted(text)} is not a valid target; examples: all, 0, 0:2, ::2, [0,2]")
