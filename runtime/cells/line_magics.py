"""Magics with a special rule on ranks: those that only the notebook supports, and package managers.

A rank refuses the former with an error that names the place for them. The ranks of a host share an environment, so only
one rank at a time runs a package manager.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

_OWN_CELL = "use it in a cell of its own, without %%mesh"
_FIRST_LINE = "put it on the first line of a cell"
# These access the notebook's history, its cells or its files; a rank keeps no history.
_OF_HISTORY = (
    *("edit", "hist", "history", "load", "loadpy", "logstart", "macro"),
    *("notebook", "pastebin", "recall", "rep", "rerun", "save"),
)
_PLACES = {
    ("line", "mesh"): _OWN_CELL,
    ("line", "on"): _OWN_CELL,
    ("cell", "mesh"): _FIRST_LINE,
    ("cell", "here"): _FIRST_LINE,
    ("line", "store"): f"{_OWN_CELL}, and send the restored variables with mesh.push",
    **{("line", name): _OWN_CELL for name in _OF_HISTORY},
    # These belong to ipykernel.
    **{("line", name): _OWN_CELL for name in ("connect_info", "qtconsole", "subshell")},
}


def format_elsewhere(kind: str, name: str) -> str:
    """Return why a rank refuses this `line` or `cell` magic; an empty string if it does not."""
    mark = "%" if kind == "line" else "%%"
    place = _PLACES.get((kind, name))
    return f"{mark}{name} works only in the notebook, not on ranks; {place}" if place else ""


INSTALLERS = frozenset({"conda", "mamba", "micromamba", "pip", "uv"})  # IPython's line magics


def in_turn(magic: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return this line magic so that it waits while another rank of the host installs into the same environment."""

    def install(line: str) -> Any:
        with _environment_to_itself():
            return magic(line)

    return install


@contextlib.contextmanager
def _environment_to_itself() -> Iterator[None]:
    """Hold the lock of this interpreter's environment. It is a lock of the folder, so no lock file is left behind."""
    folder = os.open(sys.prefix, os.O_RDONLY)
    try:
        # Some network file systems cannot lock a folder. Installations then run unlocked, as without a mesh.
        with contextlib.suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
