"""The input transform: a cell that begins with `%%mesh` or `#mesh:` becomes an async call of the runner.

So IPython keeps the history, `In` and `Out`, events and errors, and the kernel's loop stays free while ranks work.
"""

from __future__ import annotations

import re

from meshbook.magics.options import parse_comment

RUNNER = "__mesh_run__"
_TIMER = re.compile(r"%%time(?:it)?(?:[ \t]|$)")
_MAGIC = re.compile(r"%%mesh(?:[ \t]+(.*))?$")


def transform(lines: list[str]) -> list[str]:
    """Rewrite a mesh cell, also below `%%time` or `%%timeit`; leave any other as it is.

    For `shell.input_transformers_cleanup`.
    """
    first = _next_line(lines)
    if first is None:
        return lines
    timer = _read_timer(lines[first].rstrip())
    first = _next_line(lines, first + 1) if timer else first
    found = read_first_line(lines[first].rstrip("\r\n")) if first is not None else None
    if first is None or found is None:
        return lines
    # A comment stands for the magic's line, so that line numbers in tracebacks are those of the cell.
    body = "".join(["#\n" * first, f"#mesh: {found}".rstrip() + "\n", *lines[first + 1 :]])
    arguments = [found, body, timer] if timer else [found, body]
    return [f"await {RUNNER}({', '.join(map(repr, arguments))})\n"]


def _next_line(lines: list[str], start: int = 0) -> int | None:
    """The first one that is not blank."""
    return next((index for index in range(start, len(lines)) if lines[index].strip()), None)


def _read_timer(line: str) -> str:
    """The line of a magic that times the cell below it; empty for any other."""
    return line if _TIMER.match(line) else ""


def read_first_line(line: str) -> str | None:
    """The option line of a mesh cell's first line; None where it is no mesh cell."""
    if (magic := _MAGIC.match(line)) is not None:
        return (magic.group(1) or "").strip()
    return parse_comment(line)


# IPython would otherwise run it for completeness checks too, and see a call where the user sees a cell.
transform.has_side_effects = True  # type: ignore[attr-defined]
