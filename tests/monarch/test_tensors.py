"""The names of the tensor engine under Monarch's name."""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Iterator

import pytest
import torch

from meshbook.monarch.names import MODULES, NAMES_OF_TENSORS
from meshbook.runtime.hosts import session as sessions
from meshbook.runtime.hosts.in_process import InProcessSession
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
from tests.support import PATIENCE


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcessSession]:
    with contextlib.closing(InProcessSession()) as session:
        monkeypatch.setattr(sessions._Current, "session", session)
        yield session


def test_monarch_has_its_names(alias):
    monarch = importlib.import_module("monarch")
    assert monarch.fetch_shard is trees.fetch_shard
    assert monarch.Tensor is tensor.MeshTensor
    for name in NAMES_OF_TENSORS.split():
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
        ("monarch.simulator", "SimulatorTraceMode", simulator.SimulatorTraceMode),
        ("monarch.exceptions", "DeviceMeshError", failures.DeviceMeshError),
    ],
)
def test_its_modules_have_theirs(alias, module, name, found):
    assert getattr(importlib.import_module(module), name) is found


NAMES = {
    "monarch": [
        *("DeviceMesh", "Extent", "Future", "NDSlice", "OpaqueModule", "OpaqueObject", "OpaqueRef", "RemoteException"),
        *("RemoteProcessGroup", "Selection", "Shape", "Simulator", "Stream", "Tensor", "builtins"),
        *("cached_remote_function", "call_on_shard_and_fetch", "coalescing", "compile", "distribute", "distributed"),
        *("exceptions", "fetch_shard", "function_resolvers", "get_active_mesh", "get_active_stream", "grad_function"),
        *("grad_generator", "heal_mesh", "inspect", "module_to_mesh", "no_mesh", "random", "reduce", "reduce_"),
        *("remote", "remote_autograd_function", "set_meta", "show", "simulator", "slice_mesh", "timer", "to_mesh"),
        "world_mesh",
    ],
    "monarch.builtins": [
        *("get_rng_state_remote", "log_remote", "set_logging_level_remote", "set_manual_seed_remote"),
        "set_rng_state_remote",
    ],
    "monarch.builtins.log": ["log_remote", "set_logging_level_remote"],
    "monarch.builtins.random": ["get_rng_state_remote", "set_manual_seed_remote", "set_rng_state_remote"],
    "monarch.common._coalescing": ["coalescing", "compile"],
    "monarch.distributed": ["Mesh"],
    "monarch.exceptions": ["DeviceMeshError"],
    "monarch.fetch": ["call_on_shard_and_fetch", "fetch_shard", "inspect", "show"],
    "monarch.gradient": ["grad_function", "grad_generator"],
    "monarch.mesh_controller": ["RemoteException", "spawn_tensor_engine"],
    "monarch.random": ["get_state", "make_deterministic", "new_state", "set_state"],
    "monarch.simulator": ["Costs", "Simulator", "SimulatorBackendMode", "SimulatorTraceMode", "set_meta"],
    "monarch.timer": [
        *("ExecutionTimer", "execution_timer_start", "execution_timer_stop", "get_execution_timer_average_ms"),
    ],
}


@pytest.mark.parametrize("module", NAMES)
def test_each_name_of_the_per_rank_view_can_be_imported(alias, module):
    names: dict[str, object] = {}
    exec(f"from {module} import {', '.join(NAMES[module])}", names)
    assert set(NAMES[module]) <= set(names)
    assert importlib.import_module(module).__doc__


def test_each_module_of_the_table_has_all_its_names(alias):
    for module, (_, names) in MODULES.items():
        assert {*names.split()} <= {*dir(importlib.import_module(module))}


def test_a_simulator_has_its_dimensions_and_trace_modes(alias):
    from monarch import Simulator
    from monarch.simulator import SimulatorBackendMode, SimulatorTraceMode

    options = {"trace_mode": SimulatorTraceMode.CONTROLLER_ONLY, "simulate_mode": SimulatorBackendMode.SIMPLE}
    simulated = Simulator(hosts=2, gpus=3, **options)
    with simulated.mesh.activate():
        torch.ones(2).reduce("gpu")
    assert dict(simulated.mesh.extent) == {"host": 2, "gpu": 3}
    assert {event["pid"] for event in json.loads(simulated.trace())["traceEvents"]} == {-1}
    simulated.mesh.exit()


def test_a_world_mesh_has_the_processes_of_all_hosts(alias, world):
    from monarch import world_mesh

    mesh = world_mesh(world.host, gpu_per_host=2)
    assert dict(mesh.extent) == {"gpus": 2}
    mesh.engine.procs.stop().get(PATIENCE)


def test_parts_of_a_program_are_measured_here_and_on_the_ranks(alias, world):
    from monarch.timer import ExecutionTimer, execution_timer_start, execution_timer_stop
    from monarch.timer import get_execution_timer_average_ms as average

    ExecutionTimer.reset()
    with ExecutionTimer.time("here"):
        pass
    with pytest.raises(ValueError, match="has begun"):
        ExecutionTimer.stop("here")
    mesh = world.host.spawn_procs(per_host={"gpus": 1})
    with mesh.activate():
        execution_timer_start("there")
        execution_timer_stop("there")
        assert trees.inspect(average("there")).item() >= 0
        assert trees.inspect(average("elsewhere")).isnan()
    # The rank is a thread of this process.
    assert {name: each["count"] for name, each in ExecutionTimer.summary().items()} == {"here": 1, "there": 1}
    ExecutionTimer.reset()
    mesh.stop().get(PATIENCE)
