"""The agent's test of which processes of its host belong to the run."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from meshbook.runtime.memory.identity import ProcessMark


class RunMembership:
    """The members of a run: this process, its descendants, and all processes that hold the run's folder open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: set[ProcessMark] = set()  # cleared when it grows large; ended processes would stay otherwise

    def includes(self, mark: ProcessMark) -> bool:
        """Whether this process belongs to the run. For any thread."""
        if mark in self._known:
            return True
        if mark.has_ended:
            return True  # a later access to its memory detects the end
        if not (_is_descendant(mark.pid, os.getpid()) or _holds(mark.pid, self._folder)):
            return False
        if len(self._known) > 10_000:
            self._known.clear()
        self._known.add(mark)
        return True


def _is_descendant(pid: int, of: int) -> bool:
    while pid not in (of, 0, 1):
        pid = _parent(pid)
    return pid == of


def _parent(pid: int) -> int:
    """Return the parent of a process; 0 if the process has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])


def _holds(pid: int, folder: Path) -> bool:
    """Whether a process has this folder open."""
    with contextlib.suppress(OSError):  # the process has ended
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # the file has been closed meanwhile
                if link.readlink() == folder:
                    return True
    return False
