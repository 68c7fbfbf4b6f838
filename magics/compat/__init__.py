"""`%load_ext meshbook.magics.compat`: notebooks written for ipyparallel's or nbdistributed's magics run on meshes."""

from __future__ import annotations

from typing import Any


def load_ipython_extension(shell: Any) -> None:
    """Load the extension: the hook of `%load_ext meshbook.magics.compat`."""
    from meshbook.magics.compat.shell_magics import load  # weight: imports that only a notebook has

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Unload the extension: the hook of `%unload_ext meshbook.magics.compat`."""
    from meshbook.magics.compat.shell_magics import unload  # weight: as above

    unload(shell)
