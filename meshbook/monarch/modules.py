"""The modules of our package `monarch`: the finder that makes them from the table in `names`, and their classes.

A name that is missing raises an error of ours. It is reached in two ways, and Python looks it up differently for each.
An attribute (`monarch.rdma.RDMAManager`) calls `__getattr__` of the module's class. `from monarch.rdma import
RDMAManager` drops the text of an AttributeError, and looks for a submodule of that name if the module is a package; so
all of ours are packages, and the finder raises the error.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from meshbook.monarch import names
from meshbook.monarch.keys import use_defaults
from meshbook.runtime.config import OVERRIDES
from meshbook.runtime.hosts.faults import HookedModule, make_default_strict
from meshbook.runtime.telemetry.logs import Prefix

_ABSENT = "is not part of this version of meshbook"
_BOOTSTRAP = "monarch._src.actor.bootstrap_main"  # a command, so it has a file


def set_up(monarch: ModuleType) -> None:
    """Give `monarch` its names, and make its modules importable."""
    monarch.__class__ = RootModule
    _set_names(monarch, names.NAMES_OF_MONARCH)
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        # First: if Monarch is installed as an editable package, it has a finder for its own modules.
        sys.meta_path.insert(0, Finder())
    make_default_strict()
    use_defaults()


def _set_names(module: ModuleType, found: str) -> None:
    for name in found.split():
        setattr(module, name, names.load_name(name))


class AliasModule(ModuleType):
    """A module of our package `monarch`."""

    def __getattr__(self, name: str) -> Any:
        full = f"{self.__name__}.{name}"
        if not name.startswith("_"):
            with contextlib.suppress(ModuleNotFoundError):
                return importlib.import_module(full)  # `import monarch` alone, then `monarch.actor`
        raise AttributeError(f"{full} {_ABSENT}", name=name, obj=self)

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickled by name, which cloudpickle does for plain modules only.
        return importlib.import_module, (self.__name__,)


class ActorModule(AliasModule, HookedModule):
    """`monarch.actor`, where assigning to `unhandled_fault_hook` takes effect."""


class LoggingModule(AliasModule):
    """`monarch.actor.config`: its flag applies to this process and to workers that it starts from then on."""

    @property
    def prefix_python_logs_with_actor(self) -> bool:
        return Prefix.is_on

    @prefix_python_logs_with_actor.setter
    def prefix_python_logs_with_actor(self, value: bool) -> None:
        Prefix.is_on = bool(value)
        OVERRIDES.set({"extra": {"prefix_python_logs_with_actor": Prefix.is_on}})


class RootModule(AliasModule):
    """`monarch`, whose names of the tensor engine are imported when a program asks for them."""

    def __getattr__(self, name: str) -> Any:
        return names.load_name(name) if name in names.NAMES_OF_TENSORS.split() else super().__getattr__(name)


_CLASSES: dict[str, type[AliasModule]] = {
    "monarch.actor": ActorModule,
    "monarch.actor.config": LoggingModule,
    "monarch._src.actor.config": LoggingModule,
}


class Finder(MetaPathFinder, Loader):
    """Makes the modules below `monarch`, and raises an error for those that are missing."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == _BOOTSTRAP:
            return spec_from_file_location(name, Path(__file__).with_name("bootstrap_main.py"))
        if name in names.MODULES:
            spec = ModuleSpec(name, self, origin=names.__file__, is_package=True)
            spec.has_location = True  # the module gets `__file__`
            return spec
        if name.startswith("monarch."):
            # Without `name=`: if the error names a module, `from ... import` replaces the text with Python's own.
            raise ModuleNotFoundError(f"{name} {_ABSENT}")
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        purpose, _ = names.MODULES[spec.name]
        doc = f"`{spec.name}`: {purpose}." if purpose else f"`{spec.name}`."
        return _CLASSES.get(spec.name, AliasModule)(spec.name, doc)

    def exec_module(self, module: ModuleType) -> None:
        _, found = names.MODULES[module.__name__]
        _set_names(module, found)
