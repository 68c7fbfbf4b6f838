"""The input transform: a cell that begins with `%%mesh` or `#mesh:` becomes an async call of the runner.

So IPython keeps the history, `In` and `Out`, events and errors, and the kernel's loop stays free while ranks work.
"""

from __future__ import annotations

import re

from meshbook.magics.options import parse_comment

RUNNER = "__mesh_run__"
_MAGIC = re.compile(r"%%mesh(?:[ \t]+(.*))?$")


def transform(lines: list[str]) -> list[str]:
    """Rewrite a mesh cell; leave any other as it is. For `shell.input_transformers_cleanup`."""
    first = next((index for index, line in enumerate(lines) if line.strip()), None)
    if first is None:
        return lines
    found = read_first_line(lines[first].rstrip("\r\n"))
    if found is None:
        return lines
    # A comment stands for the magic's line, so that line numbers in tracebacks are those of the cell.
    body = "".join(["#\n" * first, f"#mesh: {found}".rstrip() + "\n", *lines[first + 1 :]])
    return [f"await {RUNNER}({found!r}, {body!r})\n"]


def read_first_line(line: str) -> str | None:
    """The option line of a mesh cell's first line; None where it is no mesh cell."""
    if (magic := _MAGIC.match(line)) is not None:
        return (magic.group(1) or "").strip()
    return parse_comment(line)


# IPython would otherwise run it for completeness checks too, and see a call where the user sees a cell.
transform.has_side_effects = True  # type: ignore[attr-defined]
