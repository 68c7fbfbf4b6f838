"""`%load_ext meshbook.magics.compat`: notebooks written for ipyparallel's or nbdistributed's magics run on meshes."""

from __future__ import annotations

from typing import Any


def load_ipython_extension(shell: Any) -> None:
    """Hook of `%load_ext meshbook.magics.compat`."""
    from meshbook.magics.compat.extension import load  # weight: what only a notebook has

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Hook of `%unload_ext meshbook.magics.compat`."""
    from meshbook.magics.compat.extension import unload  # the same

    unload(shell)
