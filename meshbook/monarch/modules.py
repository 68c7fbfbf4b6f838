"""The modules of our package `monarch`: plain ones, except that a missing name of Monarch's raises an error of ours.

A name is reached in two ways, and Python looks it up differently for each. An attribute (`monarch.rdma.RDMABuffer`)
calls `__getattr__` of the module's class. `from monarch.rdma import RDMABuffer` drops the text of an AttributeError,
and looks for a submodule of that name if the module is a package; so all of ours are packages, and `Absent` raises the
error.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

from meshbook.runtime.config import OVERRIDES
from meshbook.runtime.hosts.faults import HookedModule
from meshbook.runtime.telemetry.logs import Prefix

ROOT = "monarch"
_ABSENT = "is not part of this version of meshbook"


class AliasModule(ModuleType):
    """A module of our package `monarch`."""

    @classmethod
    def adopt(cls, name: str) -> None:
        """Make the module of this name an instance of this class; called on the module's last line."""
        sys.modules[name].__class__ = cls
        if not any(isinstance(finder, Absent) for finder in sys.meta_path):
            sys.meta_path.append(Absent())  # last: it is only reached for missing modules

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


class Absent(MetaPathFinder):
    """A finder that finds nothing, and raises an error for missing modules and names of `monarch`."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name.startswith(ROOT + "."):
            # Without `name=`: if the error names a module, `from ... import` replaces the text with Python's own.
            raise ModuleNotFoundError(f"{name} {_ABSENT}")
