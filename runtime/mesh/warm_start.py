"""Whether the workers of a mesh start warm: forked from the server that has imported torch.

Workers of a program that uses torch then share it and need not import it. Any other program would wait a second or two
for nothing. So a script gets warm workers only if it uses torch, as far as that is known at the spawn.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from meshbook.runtime.config import PACKAGE, Settings
from meshbook.runtime.mesh.worker_specs import installed_path
from meshbook.runtime.resources import count_cores

_IMPORT = re.compile(rb"^[ \t]*(?:import|from)[ \t]+torch\b", re.MULTILINE)


def starts_warm(settings: Settings, workers: int) -> bool:
    """Return whether so many workers on a host, spawned from here now, come from the warm fork server.

    If only a function that has not run yet imports torch, the number decides. As many workers as there are cores can
    import it at the same time, as fast as from the warm server; more workers would take longer. Known limit: the cores
    are those of this host.
    """
    if is_agent_warm(settings):
        return True
    return workers > count_cores() and imports_torch_later(list(sys.modules.values()))


def is_agent_warm(settings: Settings) -> bool:
    """Return whether an agent that is started now starts with the warm fork server."""
    return not settings.preload_for_torch or "torch" in sys.modules


def imports_torch_later(modules: Iterable[ModuleType]) -> bool:
    """Return whether the user's code in these modules, possibly in a function, imports torch."""
    not_the_users = tuple(f"{entry}{os.sep}" for entry in (PACKAGE, *installed_path(sys.path)))
    files = {file for module in modules if isinstance(file := getattr(module, "__file__", None), str)}
    return any(
        _IMPORT.search(_read(file))
        for file in files
        if file.endswith(".py") and not file.startswith(not_the_users) and "site-packages" not in file
    )


def _read(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError:  # removed, or in an archive
        return b""
