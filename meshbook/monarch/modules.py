"""The modules of our package `monarch`: plain ones, except that a missing name of Monarch's raises an error of ours.

A name is reached in two ways, and Python looks it up differently for each. An attribute (`monarch.rdma.RDMABuffer`)
calls `__getattr__` of the module's class. `from monarch.rdma import RDMABuffer` drops the text of an AttributeError,
and looks for a submodule of that name if the module is a package; so all of ours are packages, and `Absent` raises the
error.

The names of the tensor engine in `monarch` itself are imported at their first use, because they need torch.
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


# Monarch's name -> the module of `meshbook.runtime.tensor`, and the name there
_NAMES = {
    "DeviceMesh": ("device_mesh", "DeviceMesh"),
    "OpaqueModule": ("opaque", "OpaqueModule"),
    "OpaqueObject": ("opaque", "OpaqueObject"),
    "OpaqueRef": ("lanes", "OpaqueRef"),
    "RemoteException": ("failures", "RemoteException"),
    "RemoteProcessGroup": ("device_mesh", "RemoteProcessGroup"),
    "Stream": ("device_mesh", "Stream"),
    "Tensor": ("tensor", "MeshTensor"),
    "cached_remote_function": ("opaque", "cached_remote_function"),
    "call_on_shard_and_fetch": ("remote", "call_on_shard_and_fetch"),
    "coalescing": ("recordings", "coalescing"),
    "compile": ("recordings", "compile"),
    "distribute": ("distributing", "distribute"),
    "fetch_shard": ("trees", "fetch_shard"),
    "function_resolvers": ("remote", "function_resolvers"),
    "get_active_mesh": ("device_mesh", "get_active_mesh"),
    "get_active_stream": ("device_mesh", "get_active_stream"),
    "grad_function": ("gradients", "grad_function"),
    "grad_generator": ("gradients", "grad_generator"),
    "inspect": ("trees", "inspect"),
    "module_to_mesh": ("modules.proxies", "module_to_mesh"),
    "no_mesh": ("device_mesh", "no_mesh"),
    "reduce": ("trees", "reduce"),
    "reduce_": ("trees", "reduce_"),
    "remote": ("remote", "remote"),
    "remote_autograd_function": ("opaque", "remote_autograd_function"),
    "set_meta": ("simulator", "set_meta"),
    "show": ("trees", "show"),
    "slice_mesh": ("trees", "slice_mesh"),
    "to_mesh": ("trees", "to_mesh"),
}


class RootModule(AliasModule):
    """`monarch`, whose names of the tensor engine are loaded when a program asks for them."""

    def __getattr__(self, name: str) -> Any:
        if name == "Simulator":
            return importlib.import_module("monarch.simulator").Simulator
        if name not in _NAMES:
            return super().__getattr__(name)
        module, found = _NAMES[name]
        return getattr(importlib.import_module(f"meshbook.runtime.tensor.{module}"), found)
