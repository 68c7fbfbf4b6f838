"""Package managers in cells: the ranks of a host share an environment, so only one rank at a time changes it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

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
