"""The input transform: a cell that begins with `%%mesh` or `#mesh:` becomes an async call of the runner.

So IPython keeps the history, `In` and `Out`, events and errors, and the kernel's loop stays free while ranks work. In
mesh mode (`mode`) it also rewrites other cells, unless they begin with `%%here`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from meshbook.magics.syntax.cell_options import parse_comment
from meshbook.magics.syntax.mode import count_local_lines

RUNNER = "__mesh_run__"
RUNNER_WITHIN = "__mesh_run_within__"
_TIMER = re.compile(r"%%time(?:it)?(?:[ \t]|$)")
_MAGIC = re.compile(r"%%mesh(?:[ \t]+(.*))?$")
HERE = re.compile(r"%%here[ \t]*$")
_REWRITTEN = re.compile(r"(?:await )?__mesh_\w+__\(")  # by a transformer before this one


class Transform:
    """A callable for `shell.input_transformers_cleanup`.

    `find_mode` returns the option line of mesh mode, or None. `is_within` returns whether the cell is part of a running
    one.
    """

    # Otherwise IPython would also run it for completeness checks, and get a call in place of the user's cell.
    has_side_effects = True

    def __init__(self, find_mode: Callable[[], str | None], is_within: Callable[[], bool] = lambda: False) -> None:
        self._find_mode = find_mode
        self._is_within = is_within

    def __call__(self, lines: list[str]) -> list[str]:
        return transform(lines, self._find_mode(), is_within=self._is_within())


def transform(lines: list[str], mode: str | None = None, *, is_within: bool = False) -> list[str]:
    """Rewrite a mesh cell, also below `%%time` or `%%timeit`; leave any other as it is, unless mesh mode is on."""
    first = find_first_line(lines)
    if first is None:
        return lines
    line = lines[first].rstrip("\r\n")
    if HERE.match(line):
        # Keep line numbers, unless another cell magic follows, which must be on the first line.
        rest = lines[first + 1 :]
        return rest if rest and rest[0].startswith("%%") else ["#\n" * (first + 1), *rest]
    timer = read_timer(line.rstrip())
    second = next_line(lines, first + 1) if timer else first
    found = read_first_line(lines[second].rstrip("\r\n")) if second is not None else None
    if second is None or found is None:
        return lines if mode is None or _REWRITTEN.match(line) else _transform_by_mode(lines, mode, first, timer)
    return [make_call(found, lines, second + 1, timer, is_within=is_within)]


def make_call(options: str, lines: list[str], count: int, timer: str = "", *, is_within: bool = False) -> str:
    """Return the call that runs a cell on ranks. Its first `count` lines are magics, comments or blank.

    Comments replace these, so that line numbers in tracebacks are those of the cell.
    """
    body = "".join([*map(_as_comment, lines[:count]), *lines[count:]])
    return _call(options, body, timer, is_within=is_within)


def _transform_by_mode(lines: list[str], mode: str, first: int, timer: str) -> list[str]:
    count = first + 1 if timer else count_local_lines(lines)
    if count == len(lines):
        return lines
    body = "".join(["#\n" * count, *lines[count:]])
    return [*([] if timer else lines[:count]), _call(mode, body, timer, by_mode=True)]


def _call(line: str, body: str, timer: str, *, by_mode: bool = False, is_within: bool = False) -> str:
    """Return the call that runs the cell: async, or plain within another cell, since its loop runs already."""
    arguments = [*map(repr, [line, body, timer] if timer else [line, body]), *(["by_mode=True"] if by_mode else [])]
    return f"{RUNNER_WITHIN if is_within else f'await {RUNNER}'}({', '.join(arguments)})\n"


def _as_comment(line: str) -> str:
    """Return a magic, comment or blank line as a comment for the ranks, which show a magic without the mark again."""
    line = line.rstrip()
    return f"{'' if line.startswith('#') else '#'}{line}\n"


def find_first_line(lines: list[str]) -> int | None:
    """Find the line in which a mesh magic is looked for.

    That is the first line that is not blank, or the first one below comments if that is a cell magic. `#mesh:` itself
    is a comment, and must be the first.
    """
    first = below = next_line(lines)
    while below is not None and lines[below].startswith("#") and parse_comment(lines[below]) is None:
        below = next_line(lines, below + 1)
    return below if below is not None and lines[below].startswith("%%") else first


def next_line(lines: list[str], start: int = 0) -> int | None:
    """Return the index of the first line that is not blank."""
    return next((index for index in range(start, len(lines)) if lines[index].strip()), None)


def read_timer(line: str) -> str:
    """Return the line if it is a magic that times the cell below it, else an empty string."""
    return line if _TIMER.match(line) else ""


def read_first_line(line: str) -> str | None:
    """The option line of a mesh cell's first line; None if the cell is not a mesh cell."""
    if (magic := _MAGIC.match(line)) is not None:
        return (magic.group(1) or "").strip()
    return parse_comment(line)
