"""Hooks that run once a module has been imported, without importing it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def when_imported(name: str, act: Callable[[], object]) -> None:
    """Call `act` now if the module is imported, else right after its first import in this process."""
    if name in sys.modules:
        act()
    else:
        sys.meta_path.insert(0, _Watch(name, act))


class _Watch(MetaPathFinder):
    """A finder that waits for one module. It delegates to the other finders, and wraps their loader."""

    def __init__(self, name: str, act: Callable[[], object]) -> None:
        self._name = name
        self._act = act

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            if (spec := finder.find_spec(fullname, path, target)) is not None and spec.loader is not None:
                spec.loader = _Follower(spec.loader, self._note_import)
                return spec
        return None

    def _note_import(self) -> None:
        # Not in `find_spec`: a program may look for a module without importing it.
        sys.meta_path.remove(self)
        self._act()


class _Follower(Loader):
    """A loader that delegates to another one, then acts. The module gets that other loader as its own."""

    def __init__(self, loader: Loader, act: Callable[[], object]) -> None:
        self._loader = loader
        self._act = act

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._act()
