"""The names of the tensor engine under Monarch's name."""

from __future__ import annotations

import importlib

import pytest

from meshbook.monarch import modules
from meshbook.runtime.tensor import (
    device_mesh,
    failures,
    lanes,
    opaque,
    recordings,
    sharded_mesh,
    simulator,
    streams,
    tensor,
    trees,
)


def test_monarch_has_its_names(alias):
    monarch = importlib.import_module("monarch")
    assert monarch.fetch_shard is trees.fetch_shard
    assert monarch.Tensor is tensor.MeshTensor
    for name in modules._NAMES:
        assert getattr(monarch, name) is not None, name


@pytest.mark.parametrize(
    ("module", "name", "found"),
    [
        ("monarch.distributed", "Mesh", sharded_mesh.Mesh),
        ("monarch.fetch", "show", trees.show),
        ("monarch.mesh_controller", "spawn_tensor_engine", device_mesh.spawn_tensor_engine),
        ("monarch.common.device_mesh", "no_mesh", device_mesh.no_mesh),
        ("monarch.common.stream", "Stream", streams.Stream),
        ("monarch.common.tensor", "reduce", trees.reduce),
        ("monarch.common._coalescing", "compile", recordings.compile),
        ("monarch.opaque_module", "OpaqueModule", opaque.OpaqueModule),
        ("monarch.common.opaque_ref", "OpaqueRef", lanes.OpaqueRef),
        ("monarch.simulator", "Simulator", simulator.Simulator),
        ("monarch.exceptions", "DeviceMeshError", failures.DeviceMeshError),
    ],
)
def test_its_modules_have_theirs(alias, module, name, found):
    assert getattr(importlib.import_module(module), name) is found


@pytest.mark.parametrize("module", ["monarch.builtins", "monarch.random", "monarch.gradient", "monarch.common.remote"])
def test_its_other_modules_are_there(alias, module):
    assert importlib.import_module(module).__doc__
