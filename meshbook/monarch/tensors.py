"""`monarch` itself: its names of the tensor engine are imported at their first use, because they need torch."""

from __future__ import annotations

import importlib
from typing import Any

from meshbook.monarch.modules import AliasModule

# Monarch's name -> the module of `meshbook.runtime.tensor`, and the name there
_NAMES = {
    "DeviceMesh": ("device_mesh", "DeviceMesh"),
    "OpaqueModule": ("opaque", "OpaqueModule"),
    "OpaqueObject": ("opaque", "OpaqueObject"),
    "OpaqueRef": ("lanes", "OpaqueRef"),
    "RemoteException": ("failures", "RemoteException"),
    "RemoteProcessGroup": ("device_mesh", "RemoteProcessGroup"),
    "Simulator": ("simulator", "Simulator"),
    "Stream": ("streams", "Stream"),
    "Tensor": ("tensor", "MeshTensor"),
    "cached_remote_function": ("opaque", "cached_remote_function"),
    "call_on_shard_and_fetch": ("remote", "call_on_shard_and_fetch"),
    "coalescing": ("coalescing", "coalescing"),
    "compile": ("recordings", "compile"),
    "distribute": ("distributing", "distribute"),
    "fetch_shard": ("fetching", "fetch_shard"),
    "function_resolvers": ("remote", "function_resolvers"),
    "get_active_mesh": ("device_mesh", "get_active_mesh"),
    "get_active_stream": ("device_mesh", "get_active_stream"),
    "grad_generator": ("gradients", "grad_generator"),
    "inspect": ("fetching", "inspect"),
    "module_to_mesh": ("modules.proxies", "module_to_mesh"),
    "no_mesh": ("device_mesh", "no_mesh"),
    "reduce": ("trees", "reduce"),
    "reduce_": ("trees", "reduce_"),
    "remote": ("remote", "remote"),
    "remote_autograd_function": ("opaque", "remote_autograd_function"),
    "set_meta": ("simulator", "set_meta"),
    "show": ("fetching", "show"),
    "slice_mesh": ("trees", "slice_mesh"),
    "to_mesh": ("trees", "to_mesh"),
}


class RootModule(AliasModule):
    """`monarch`, whose names of the tensor engine are loaded when a program asks for them."""

    def __getattr__(self, name: str) -> Any:
        if name not in _NAMES:
            return super().__getattr__(name)
        module, found = _NAMES[name]
        return getattr(importlib.import_module(f"meshbook.runtime.tensor.{module}"), found)
