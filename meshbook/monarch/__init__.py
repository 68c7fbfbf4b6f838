"""Run programs written for PyTorch Monarch on meshbook, with their own `import monarch` lines.

__main__       `python -m meshbook.monarch script.py`
alias/         that package: one file, which calls `modules`
modules        its modules: a finder that makes them; errors for missing names
names          the table of its modules: their names, and where meshbook defines each
configuration  `monarch.config` over meshbook's settings; `keys` has the keys
identities     `ProcId` and `Uid`; `telemetry` has functions of `monarch.actor`
functions      other functions of Monarch's modules, also those that Monarch itself no longer offers
jobs           sources of hosts that outlive a program; `workers` has worker loops, `commands` runs programs on hosts
simulator      `Simulator` with Monarch's arguments
bootstrap_main `python -m monarch._src.actor.bootstrap_main`, which starts a worker

`alias/` holds the package named `monarch`. At the top of a checkout, a folder `monarch` would answer `import monarch`
by accident. `install()` puts `alias/` at the front of the import path, which workers inherit, and of PYTHONPATH,
which all other processes inherit. A name of Monarch's that is missing raises an error that says so (`modules`).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["install"]
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
