"""The folder of our package `monarch`, and its place on the import path of this process and its children."""

from __future__ import annotations

import os
import sys
from pathlib import Path

FOLDER = str(Path(__file__).absolute().parent / "alias")


def install() -> None:
    """Make `import monarch` import meshbook: in this process, in workers spawned from now on, and in their children.

    Workers inherit the import path, and other processes PYTHONPATH. A mesh that is already up does not have it: stop it
    and spawn it again. A second call has no effect. Raises RuntimeError if another package `monarch` has been
    imported.
    """
    imported = sys.modules.get("monarch")
    file = getattr(imported, "__file__", None)
    if imported is not None and not str(file).startswith(FOLDER + os.sep):
        raise RuntimeError(
            f"another package `monarch` is already imported from {file}; restart "
            f"Python, and call meshbook.monarch.install() before the first `import monarch`"
        )
    sys.path[:] = [FOLDER, *(entry for entry in sys.path if entry != FOLDER)]
    os.environ["PYTHONPATH"] = python_path(os.environ.get("PYTHONPATH", ""))


def python_path(known: str) -> str:
    """Return the value of PYTHONPATH with our folder at its front, once."""
    return os.pathsep.join([FOLDER, *(entry for entry in known.split(os.pathsep) if entry and entry != FOLDER)])
