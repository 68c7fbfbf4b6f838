"""Whether the workers of a mesh are born warm: forked from the server that has imported torch.

Whoever uses torch wants that: the workers share it, and none has to import it. Whoever does not would wait a second or
two for nothing. So a script gets warm workers only where it uses torch, as far as that can be known at the spawn.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from meshbook.runtime.config import PACKAGE, Settings
from meshbook.runtime.mesh.birth import installed_path
from meshbook.runtime.resources import count_cores

_IMPORT = re.compile(rb"^[ \t]*(?:import|from)[ \t]+torch\b", re.MULTILINE)


def is_born_warm(settings: Settings, workers: int) -> bool:
    """Return whether so many workers a host, which are spawned from here now, come from the warm fork server.

    Where torch is not imported yet, but may be later (an import in a function), the number decides: as many workers
    as there are cores import it at the same time, and have it as soon as from the warm server. More would take longer.
    Known limit: the cores are those of this host.
    """
    if not settings.preload_for_torch or is_torch_imported():
        return True
    return workers > count_cores() and imports_torch_later()


def is_agent_warm(settings: Settings) -> bool:
    """Return whether an agent that is started now should start with the warm fork server."""
    return not settings.preload_for_torch or is_torch_imported()


def is_torch_imported() -> bool:
    """Return whether this process has torch."""
    return "torch" in sys.modules


def imports_torch_later() -> bool:
    """Return whether a function of the user's modules imports torch."""
    return any(_IMPORT.search(source) for source in _sources())


def _sources() -> Iterator[bytes]:
    """The sources of the user's modules that this process has imported."""
    not_the_users = tuple(f"{entry}{os.sep}" for entry in (PACKAGE, *installed_path(sys.path)))
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py") or file.startswith(not_the_users):
            continue
        if "site-packages" not in file:
            with contextlib.suppress(OSError):
                yield Path(file).read_bytes()
