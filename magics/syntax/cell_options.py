"""Parses the option lines of `%%mesh` and `#mesh:`: text -> frozen values.

Selectors stay text here (`selectors` parses them). The verbs of `%mesh` are in `verbs`.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from meshbook.magics.errors import UsageError
from meshbook.magics.prompts.queue import Sharing
from meshbook.magics.syntax.argparsing import HelpAsked, HelpRequested, Parser, read, seconds, selector, variable, words
from meshbook.magics.syntax.variable_specs import PullSpec, pulled, pushed

OnError: TypeAlias = Literal["stop", "finish", "debug"]
Grouping: TypeAlias = Literal["auto", "same", "rank", "order", "none"]
_COMMENT = re.compile(r"# ?mesh:(.*)")


@dataclass(frozen=True)
class CellOptions:
    """The options of a `%%mesh` cell. `selection` and `show` are selectors, not yet parsed."""

    selection: str = "all"
    out: str | None = None
    show: str | None = None
    quiet: bool = False
    time: bool = False
    on_error: OnError = "stop"
    group: Grouping = "auto"
    timeout: float | None = None  # seconds
    block: bool = True
    first: str | None = None
    seq: bool = False
    push: tuple[str, ...] = ()
    pull: tuple[PullSpec, ...] = ()
    local: bool = False
    profile: bool = False
    stdin: Sharing = "same"
    breaks: str | None = None  # a selector


@functools.lru_cache(maxsize=256)  # saves half a millisecond of argparse in every cell
def parse_cell_options(line: str, defaults: tuple[tuple[str, Any], ...] = ()) -> CellOptions | HelpRequested:
    """Parse the text after `%%mesh`; `defaults` are the user's own (`settings`)."""
    parser = cell_parser()
    parser.set_defaults(**dict(defaults))
    try:
        found = read(parser, words(line))
    except HelpAsked as asked:
        return HelpRequested(asked.text)
    if found.local and not found.block:
        raise UsageError("%%mesh: --local runs in this cell, for which -a would not wait: take one of them")
    return CellOptions(**vars(found))


def parse_comment(first_line: str) -> str | None:
    """Return the option line of a cell that begins with `#mesh: ...`, or None for any other line."""
    found = _COMMENT.match(first_line)
    return found.group(1).strip() if found else None


def cell_parser() -> Parser:
    """Return the parser of a mesh cell's line."""
    parser = Parser(prog="%%mesh", description="Run this cell on ranks of the mesh.")
    parser.add_argument(
        "selection",
        metavar="SEL",
        nargs="?",
        default="all",
        type=selector,
        help="which ranks: all, 0, -1, 0,3, 0-3, 0:4, ::2, !3, gpus=0:4, NAME, NAME[0,3], failed, ok, changed"
        " (default: all)",
    )
    waiting = parser.add_mutually_exclusive_group()
    waiting.add_argument(
        "-a",
        "--noblock",
        dest="block",
        action="store_false",
        help="return at once with a job: await it, job.result(), job.cancel(), %%mesh jobs",
    )
    waiting.add_argument("-b", "--block", dest="block", action="store_true", help="wait for the end (default)")
    parser.set_defaults(block=True)
    parser.add_argument("-o", "--out", metavar="NAME", type=variable, help="keep the result object in this variable")
    parser.add_argument(
        "--push",
        metavar="NAMES",
        type=pushed,
        default=(),
        help="first set these variables on the ranks to what they are in the notebook: a,b",
    )
    parser.add_argument(
        "--pull",
        metavar="NAMES",
        type=pulled,
        default=(),
        help="then, if all went well, set these in the notebook: c to a list in rank order, c@0 to that of rank 0,"
        " c@mean, c@cat, c@stack or c@first to one value made of all",
    )
    printing = parser.add_mutually_exclusive_group()
    printing.add_argument(
        "--show", metavar="SEL", type=selector, help="print only what these ranks write; nothing is lost"
    )
    printing.add_argument(
        "-q", "--quiet", action="store_true", help="print nothing that the ranks write; nothing is lost"
    )
    parser.add_argument(
        "--profile", action="store_true", help="show in which functions each rank spent the time, and where they differ"
    )
    parser.add_argument("-T", "--time", action="store_true", help="a table of the time that each rank took")
    parser.add_argument(
        "--first",
        metavar="SEL",
        type=selector,
        help="these ranks run to their end before the others begin, and have to succeed (downloads, caches)",
    )
    parser.add_argument(
        "--seq", action="store_true", help="rank by rank; the first error ends it, unless --on-error finish"
    )
    parser.add_argument(
        "--local", action="store_true", help="run here as well, beside the ranks; its value is result['local']"
    )
    parser.add_argument(
        "--on-error",
        choices=("stop", "finish", "debug"),
        default="stop",
        help="the first error interrupts the other ranks; or all finish; or the debugger opens where ranks fail,"
        " and the others finish (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=seconds,
        help="after so many seconds say where each rank is, and interrupt all",
    )
    parser.add_argument(
        "--stdin",
        choices=("same", "ask", "error"),
        default="same",
        help="of input() and getpass: a prompt that ranks share is shown once, or for each rank, or is an error"
        " (default: %(default)s)",
    )
    parser.add_argument(
        "--break",
        dest="breaks",
        metavar="SEL",
        type=selector,
        help="the ranks whose breakpoint() stops; others pass it (default: all)",
    )
    parser.add_argument(
        "-g",
        "--group",
        choices=("auto", "same", "rank", "order", "none"),
        default="auto",
        help="how output is grouped (default: %(default)s)",
    )
    return parser
