"""Parses the option lines of `%%mesh` and `#mesh:`: text -> frozen values.

Selectors stay text here (`selectors` parses them). The verbs of `%mesh` are in `verbs`.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from meshbook.magics.errors import UsageError
from meshbook.magics.output.grouping import GroupMode
from meshbook.magics.prompts.queue import Sharing
from meshbook.magics.syntax.argparsing import (
    HelpRequested,
    HelpText,
    Parser,
    PullSpec,
    parse_words,
    pull_specs,
    push_names,
    seconds,
    selector,
    split_words,
    variable,
)

OnError: TypeAlias = Literal["stop", "finish", "debug"]
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
    group: GroupMode = "auto"
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
def parse_cell_options(line: str, defaults: tuple[tuple[str, Any], ...] = ()) -> CellOptions | HelpText:
    """Parse the text after `%%mesh`; `defaults` are the user's own (`settings`)."""
    parser = cell_parser()
    parser.set_defaults(**dict(defaults))
    try:
        found = parse_words(parser, split_words(line))
    except HelpRequested as asked:
        return HelpText(asked.text)
    if not found.block and found.local:
        raise UsageError("%%mesh: --local and -a cannot be combined")
    if not found.block and found.profile:
        raise UsageError("%%mesh: --profile and -a cannot be combined; use %mesh profile --seconds S")
    if not found.block and found.on_error == "debug":
        raise UsageError("%%mesh: -a and --on-error debug cannot be combined; use %mesh debug after the cell")
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
        help="ranks to run on: all, 0, -1, 0,3, 0-3, 0:4, ::2, !3, gpus=0:4, NAME, NAME[0,3], A,B, failed, ok, changed"
        " (default: all)",
    )
    waiting = parser.add_mutually_exclusive_group()
    waiting.add_argument(
        "-a",
        "--noblock",
        dest="block",
        action="store_false",
        help="return a job at once: await it, job.result(), job.cancel(), %%mesh jobs",
    )
    waiting.add_argument("-b", "--block", dest="block", action="store_true", help="wait until the cell ends (default)")
    parser.set_defaults(block=True)
    parser.add_argument("-o", "--out", metavar="NAME", type=variable, help="store the result object in this variable")
    parser.add_argument(
        "--push",
        metavar="NAMES",
        type=push_names,
        default=(),
        help="before the cell, set these variables on the ranks to their values in the notebook: a,b",
    )
    parser.add_argument(
        "--pull",
        metavar="NAMES",
        type=pull_specs,
        default=(),
        help="after the cell, if it succeeds, set these variables in the notebook: c to a list in rank order, "
        "c@0 to the"
        " value of rank 0, c@mean, c@cat, c@stack or c@first to one value reduced from all ranks",
    )
    printing = parser.add_mutually_exclusive_group()
    printing.add_argument(
        "--show", metavar="SEL", type=selector, help="print only the output of these ranks; the result keeps all of it"
    )
    printing.add_argument(
        "-q", "--quiet", action="store_true", help="print no output of the ranks; the result keeps it"
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="show in which functions each rank spent its time, and where ranks differ",
    )
    parser.add_argument("-T", "--time", action="store_true", help="print a table of the time that each rank took")
    parser.add_argument(
        "--first",
        metavar="SEL",
        type=selector,
        help="run these ranks to completion before the others start; they must succeed (downloads, caches)",
    )
    parser.add_argument(
        "--seq",
        action="store_true",
        help="run one rank after another; the first error ends the cell, unless --on-error is finish",
    )
    parser.add_argument(
        "--local",
        action="store_true",
        help="run the cell in the notebook as well, at the same time; with -o NAME, NAME['local'] is its value",
    )
    parser.add_argument(
        "--on-error",
        choices=("stop", "finish", "debug"),
        default="stop",
        help="on the first error, stop interrupts the other ranks, finish lets them finish, debug lets them finish and"
        " opens the debugger where ranks fail (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=seconds,
        help="after S seconds, show where each rank is and interrupt all ranks",
    )
    parser.add_argument(
        "--stdin",
        choices=("same", "ask", "error"),
        default="same",
        help="how to handle input() and getpass: same asks once for identical prompts, ask asks each rank, error raises"
        " (default: %(default)s)",
    )
    parser.add_argument(
        "--break",
        dest="breaks",
        metavar="SEL",
        type=selector,
        help="ranks whose breakpoint() stops; the others skip it (default: all)",
    )
    parser.add_argument(
        "-g",
        "--group",
        choices=("auto", "same", "rank", "order", "none"),
        default="auto",
        help="how to group the output of ranks: same joins equal output, auto also joins output that differs only in"
        " numbers, rank shows each rank separately, order and none keep the order of arrival, with and without labels"
        " (default: %(default)s)",
    )
    return parser
