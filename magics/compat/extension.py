"""Load the magics of other tools into a shell, and unload them."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from meshbook.magics.compat.clients import make_module
from meshbook.magics.compat.distributed import DistributedMagics
from meshbook.magics.compat.parallel import ParallelMagics
from meshbook.magics.compat.translation import REFUSE, Rewriting, refuse
from meshbook.magics.extension import load as load_meshbook

_LOADED = "__meshbook_compat__"  # a hidden name of the shell
_REPLACED = "ipyparallel"
# Extensions that a notebook may load at its start; this extension replaces them.
_OTHER_EXTENSIONS = ("ipyparallel", "nbdistributed")


class Loaded:
    """The changes to one shell."""

    def __init__(self, shell: Any) -> None:
        notebook = load_meshbook(shell)
        self._shell = shell
        self._rewriting = Rewriting()
        self._before: ModuleType | None = sys.modules.get(_REPLACED)
        self._extensions = {name for name in _OTHER_EXTENSIONS if name not in shell.extension_manager.loaded}
        shell.input_transformers_cleanup.insert(0, self._rewriting)
        shell.push({REFUSE: refuse, _LOADED: self}, interactive=False)
        shell.register_magics(ParallelMagics(shell, notebook, self._rewriting), DistributedMagics(shell, notebook))
        shell.extension_manager.loaded |= self._extensions
        sys.modules[_REPLACED] = make_module(notebook, self._rewriting)

    def unload(self) -> None:
        """Undo the changes; the magics stay registered, those of the last extension that registered them."""
        self._shell.input_transformers_cleanup.remove(self._rewriting)
        self._shell.extension_manager.loaded -= self._extensions
        self._shell.drop_by_id({_LOADED: self})
        if self._before is None:
            del sys.modules[_REPLACED]
        else:
            sys.modules[_REPLACED] = self._before


def load(shell: Any) -> None:
    """Install into an IPython shell; loading twice changes nothing."""
    if _LOADED not in shell.user_ns_hidden:
        Loaded(shell)


def unload(shell: Any) -> None:
    """Uninstall from an IPython shell."""
    loaded: Loaded | None = shell.user_ns.pop(_LOADED, None)
    shell.user_ns_hidden.pop(_LOADED, None)
    if loaded is not None:
        loaded.unload()
