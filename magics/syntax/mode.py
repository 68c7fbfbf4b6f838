"""Mesh mode (`%mesh mode on`): cells without a mesh magic run on ranks. This module decides which, by their text.

Pure, except for the mode itself. `cells` runs the cells.
"""

from __future__ import annotations

import re
import threading
from typing import Any

# Magics that take code, which runs on the ranks; any other magic is for the notebook itself.
CODE_MAGICS = frozenset({"time", "timeit", "prun", "capture"})
_CELL_MAGIC = re.compile(r"%%(\w+)")
_LINE_MAGIC = re.compile(r"\s*%(\w+)")


class MeshMode:
    """The mode. If it is on, `line` is the option line of the cells that it sends to ranks.

    It does not affect cells within cells, nor code that a front end runs silently.
    """

    def __init__(self, shell: Any) -> None:
        self.line: str | None = None
        self._shell = shell
        self._cells = threading.local()  # a thread of the kernel runs one cell, and the cells within it

    def install(self) -> None:
        """Register the hooks that track which cells are within others."""
        self._shell.events.register("pre_run_cell", self._begin)
        self._shell.events.register("post_run_cell", self._end)

    @property
    def line_now(self) -> str | None:
        """The option line for the cell that is about to run; None if it runs in the notebook."""
        kernel = getattr(self._shell, "kernel", None)
        content = kernel.get_parent("shell").get("content", {}) if kernel is not None else {}
        is_silent = bool(content.get("silent")) or content.get("store_history") is False
        return None if self.is_within or is_silent else self.line

    @property
    def is_within(self) -> bool:
        """Whether this thread already runs a cell; another one is then part of it."""
        return self._depth > 0

    @property
    def _depth(self) -> int:
        return getattr(self._cells, "depth", 0)

    def _begin(self, info: Any) -> None:
        self._cells.depth = self._depth + 1

    def _end(self, result: Any) -> None:
        self._cells.depth = max(0, self._depth - 1)


def count_local_lines(lines: list[str]) -> int:
    """Count the lines at the top of a cell that run in the notebook in mesh mode: magics and shell commands.

    All lines, if no code follows or the cell begins with a cell magic that takes no code.
    """
    first = next((line for line in lines if line.strip()), "")
    if (magic := _CELL_MAGIC.match(first)) is not None:
        return 0 if magic.group(1) in CODE_MAGICS else len(lines)
    count, is_continued = 0, False
    for line in lines:
        if not (is_continued or _is_local(line)):
            break
        is_continued = line.rstrip("\r\n").endswith("\\")
        count += 1
    rest = [line for line in lines[count:] if line.strip() and not line.lstrip().startswith("#")]
    return count if rest else len(lines)


def _is_local(line: str) -> bool:
    stripped = line.strip()
    if (magic := _LINE_MAGIC.match(line)) is not None:
        return magic.group(1) not in CODE_MAGICS
    return not stripped or stripped.startswith(("!", "#"))
