"""The table of Monarch's modules: the names that each of them has, and where meshbook defines each name.

A name has the same definition in all modules that have it.
"""

from __future__ import annotations

import importlib
from typing import Any

# Module of meshbook -> Monarch's names that it defines
_DEFINITIONS = {
    "meshbook.monarch.commands": "exec_command shell",
    "meshbook.monarch.configuration": """
        clear_runtime_config configure configured get_global_config get_runtime_config parametrize_config
        parametrize_config_pointwise
    """,
    "meshbook.monarch.functions": """
        DebugController debug_controller hosts_from_config local_proc_mesh proc_mesh world_mesh
    """,
    "meshbook.monarch.identities": "ProcId Uid",
    "meshbook.monarch.jobs": "JobState JobTrait LocalJob ProcessJob SlurmJob job_load job_loads",
    "meshbook.monarch.keys": "ChannelTransport Encoding",
    "meshbook.monarch.port_forwarding": "PortForwarder",
    "meshbook.monarch.simulator": "Simulator SimulatorBackendMode",
    "meshbook.monarch.telemetry": "get_meter traced",
    "meshbook.monarch.workers": """
        attach_to_workers enable_transport run_worker_loop_forever run_worker_loop_until_shutdown
        start_worker_loop_forever
    """,
    "meshbook.runtime.actor.base": "Actor",
    "meshbook.runtime.actor.context": "Context Instance context current_actor_name current_rank current_size",
    "meshbook.runtime.actor.deferred": "returns_future",
    "meshbook.runtime.actor.endpoint": "Accumulator Endpoint concurrent_endpoint endpoint",
    "meshbook.runtime.actor.explicit_calls": "Selection as_endpoint send",
    "meshbook.runtime.actor.failure": "MeshFailure UndeliverableMessageEnvelope",
    "meshbook.runtime.actor.future": "Future",
    "meshbook.runtime.actor.ports": "Channel Port PortReceiver",
    "meshbook.runtime.actor.values": "ValueMesh",
    "meshbook.runtime.errors": "ActorError CallCancelled CallTimeout DeadlockError ProcessDied SupervisionError",
    "meshbook.runtime.geometry": "Extent MeshTrait NDSlice Point Region Shape Slice",
    "meshbook.runtime.hosts.controllers": "get_or_spawn_controller",
    "meshbook.runtime.hosts.session": "shutdown_context this_host this_proc",
    "meshbook.runtime.mesh.actors": "ActorMesh",
    "meshbook.runtime.mesh.commands": "BootstrapCommand default_bootstrap_cmd",
    "meshbook.runtime.mesh.hosts": "HostMesh",
    "meshbook.runtime.mesh.procs": "ProcMesh",
    "meshbook.runtime.mesh.tensors": "heal_mesh",
    "meshbook.runtime.rdma.action": "RDMAAction",
    "meshbook.runtime.rdma.buffer": "RDMABuffer",
    "meshbook.runtime.rdma.hardware": """
        RDMAReadTransferWarning RDMATcpFallbackWarning RDMAWriteTransferWarning get_rdma_backend is_ibverbs_available
        is_rdma_available
    """,
    "meshbook.runtime.spmd.spmd_actor": "SPMDActor setup_torch_elastic_env setup_torch_elastic_env_async",
    "meshbook.runtime.telemetry.spans": "span",
    "meshbook.runtime.tensor.device_mesh": """
        DeviceMesh RemoteProcessGroup get_active_mesh get_active_stream no_mesh spawn_tensor_engine
    """,
    "meshbook.runtime.tensor.distributing": "distribute",
    "meshbook.runtime.tensor.failures": "DeviceMeshError RemoteException",
    "meshbook.runtime.tensor.gradients": "grad_function grad_generator",
    "meshbook.runtime.tensor.lanes": "OpaqueRef",
    "meshbook.runtime.tensor.modules.proxies": "module_to_mesh",
    "meshbook.runtime.tensor.opaque": """
        OpaqueModule OpaqueObject cached_remote_function opaque_method remote_autograd_function
    """,
    "meshbook.runtime.tensor.random": """
        get_rng_state_remote get_state make_deterministic new_state set_manual_seed_remote set_rng_state_remote
        set_state
    """,
    "meshbook.runtime.tensor.recordings": "coalescing compile",
    "meshbook.runtime.tensor.remote": """
        call_on_shard_and_fetch function_resolvers log_remote remote set_logging_level_remote
    """,
    "meshbook.runtime.tensor.schedule": "Costs",
    "meshbook.runtime.tensor.sharded_mesh": "Mesh",
    "meshbook.runtime.tensor.simulator": "SimulatorTraceMode set_meta",
    "meshbook.runtime.tensor.streams": "Stream",
    "meshbook.runtime.tensor.tensor": "Tensor",
    "meshbook.runtime.tensor.timer": """
        ExecutionTimer execution_timer_start execution_timer_stop get_execution_timer_average_ms
    """,
    "meshbook.runtime.tensor.trees": "fetch_shard inspect reduce reduce_ show slice_mesh to_mesh",
}
_PLACES = {name: module for module, names in _DEFINITIONS.items() for name in names.split()}
_RENAMED = {"Tensor": "MeshTensor"}  # Monarch's name -> ours

# Monarch's module -> what it is for, and its names. `monarch` itself is below.
MODULES = {
    "monarch._rust_bindings": ("private to Monarch, but programs can import some errors only from here", ""),
    "monarch._rust_bindings.monarch_hyperactor": ("", ""),
    "monarch._rust_bindings.monarch_hyperactor.channel": ("", "ChannelTransport"),
    "monarch._rust_bindings.monarch_hyperactor.config": ("", "Encoding"),
    "monarch._rust_bindings.monarch_hyperactor.context": ("", "Instance"),
    "monarch._rust_bindings.monarch_hyperactor.host_mesh": ("", "BootstrapCommand HostMesh"),
    "monarch._rust_bindings.monarch_hyperactor.mailbox": ("", "UndeliverableMessageEnvelope"),
    "monarch._rust_bindings.monarch_hyperactor.proc": ("", "ProcId Uid"),
    "monarch._rust_bindings.monarch_hyperactor.proc_mesh": ("", "ProcMesh"),
    "monarch._rust_bindings.monarch_hyperactor.shape": (
        "the documented path of shapes",
        "Extent Point Region Shape Slice",
    ),
    "monarch._rust_bindings.monarch_hyperactor.supervision": (
        "where Monarch's programs import SupervisionError from",
        "MeshFailure SupervisionError",
    ),
    "monarch._rust_bindings.monarch_hyperactor.value_mesh": ("", "ValueMesh"),
    "monarch._src": ("paths that Monarch's programs import from, beside the public ones", ""),
    "monarch._src.actor": ("", ""),
    "monarch._src.actor.actor_mesh": (
        "",
        """
        Accumulator Actor ActorError ActorMesh Channel Context Endpoint Instance Point Port PortReceiver ValueMesh
        as_endpoint context current_actor_name current_rank current_size send shutdown_context
        """,
    ),
    "monarch._src.actor.concurrent": ("", "concurrent_endpoint"),
    "monarch._src.actor.config": ("whether log lines of an actor begin with its name", ""),
    "monarch._src.actor.debugger": ("", ""),
    "monarch._src.actor.debugger.debug_controller": ("", "DebugController debug_controller"),
    "monarch._src.actor.endpoint": ("", "Endpoint endpoint"),
    "monarch._src.actor.future": ("", "Future"),
    "monarch._src.actor.host_mesh": ("", "BootstrapCommand HostMesh default_bootstrap_cmd this_host this_proc"),
    "monarch._src.actor.proc_mesh": ("", "ProcMesh get_or_spawn_controller"),
    "monarch._src.actor.returns_future": ("", "returns_future"),
    "monarch._src.actor.shape": ("", "Extent MeshTrait NDSlice Point Region Shape Slice"),
    "monarch._src.actor.telemetry": ("", "get_meter span traced"),
    "monarch.actor": (
        "each name imported from where meshbook defines it",
        """
        Accumulator Actor ActorError BootstrapCommand CallTimeout Channel ChannelTransport Context DeadlockError
        Endpoint Extent Future HostMesh Instance MeshFailure NDSlice Point Port PortReceiver ProcId ProcMesh Shape Slice
        SupervisionError Uid UndeliverableMessageEnvelope ValueMesh as_endpoint attach_to_workers concurrent_endpoint
        context current_actor_name current_rank current_size debug_controller default_bootstrap_cmd enable_transport
        endpoint get_meter get_or_spawn_controller hosts_from_config local_proc_mesh proc_mesh returns_future
        run_worker_loop_forever run_worker_loop_until_shutdown send shutdown_context span start_worker_loop_forever
        this_host this_proc traced
        """,
    ),
    "monarch.actor.concurrent": ("", "concurrent_endpoint"),
    "monarch.actor.config": ("whether log lines of an actor begin with its name", ""),
    "monarch.builtins": (
        "remote functions for messages, logging and random numbers; its modules are `log` and `random`",
        "get_rng_state_remote log_remote set_logging_level_remote set_manual_seed_remote set_rng_state_remote",
    ),
    "monarch.builtins.log": ("remote functions for messages and logging", "log_remote set_logging_level_remote"),
    "monarch.builtins.random": (
        "remote functions for random numbers",
        "get_rng_state_remote set_manual_seed_remote set_rng_state_remote",
    ),
    "monarch.cached_remote_function": (
        "remote functions whose shapes are inferred once",
        "cached_remote_function remote_autograd_function",
    ),
    "monarch.common": ("modules of the tensor engine; each has its names", ""),
    "monarch.common._coalescing": ("batches of operations, and functions that are recorded", "coalescing compile"),
    "monarch.common.device_mesh": (
        "the ranks that tensors are on",
        "DeviceMesh RemoteProcessGroup get_active_mesh no_mesh slice_mesh to_mesh",
    ),
    "monarch.common.function": ("what remote functions are resolved by", "function_resolvers"),
    "monarch.common.invocation": ("the errors of operations on the ranks", "DeviceMeshError RemoteException"),
    "monarch.common.opaque_ref": ("references to Python objects that the ranks have", "OpaqueRef"),
    "monarch.common.remote": ("functions that run on the ranks", "call_on_shard_and_fetch remote"),
    "monarch.common.stream": ("ordered queues of operations", "Stream get_active_stream"),
    "monarch.common.tensor": ("tensors on a mesh", "reduce reduce_"),
    "monarch.config": (
        "",
        """
        ChannelTransport Encoding clear_runtime_config configure configured get_global_config get_runtime_config
        parametrize_config parametrize_config_pointwise
        """,
    ),
    "monarch.distributed": ("meshes of the global view", "Mesh"),
    "monarch.exceptions": (
        "the errors that calls raise",
        """
        ActorError CallCancelled CallTimeout DeadlockError DeviceMeshError ProcessDied RemoteException SupervisionError
        """,
    ),
    "monarch.fetch": ("values of single ranks", "call_on_shard_and_fetch fetch_shard inspect show"),
    "monarch.gradient": (
        "backward as a generator of gradients, and functions with a backward of their own",
        "grad_function grad_generator",
    ),
    "monarch.job": (
        "the sources of hosts. Names that are not part of this version raise an error that says so",
        """
        JobState JobTrait LocalJob PortForwarder ProcessJob SlurmJob exec_command hosts_from_config job_load job_loads
        shell
        """,
    ),
    "monarch.mesh_controller": ("the tensor engine of a process mesh", "RemoteException spawn_tensor_engine"),
    "monarch.opaque_module": ("modules that the ranks have", "OpaqueModule remote_autograd_function"),
    "monarch.opaque_object": ("Python objects that the ranks have", "OpaqueObject opaque_method"),
    "monarch.random": ("the random numbers of the ranks", "get_state make_deterministic new_state set_state"),
    "monarch.rdma": (
        "each name imported from where meshbook defines it",
        """
        RDMAAction RDMABuffer RDMAReadTransferWarning RDMATcpFallbackWarning RDMAWriteTransferWarning get_rdma_backend
        is_ibverbs_available is_rdma_available
        """,
    ),
    "monarch.simulator": (
        "programs on meshes that do not exist",
        "Costs Simulator SimulatorBackendMode SimulatorTraceMode set_meta",
    ),
    "monarch.spmd": (
        "run programs as torchrun does",
        "SPMDActor setup_torch_elastic_env setup_torch_elastic_env_async",
    ),
    "monarch.timer": (
        "the times of parts of a program, here and on the ranks",
        "ExecutionTimer execution_timer_start execution_timer_stop get_execution_timer_average_ms",
    ),
}

NAMES_OF_MONARCH = """
    Extent Future NDSlice Selection Shape clear_runtime_config configure configured get_global_config get_runtime_config
    heal_mesh world_mesh
"""
# These need torch, so `import monarch` does not import them.
NAMES_OF_TENSORS = """
    DeviceMesh OpaqueModule OpaqueObject OpaqueRef RemoteException RemoteProcessGroup Simulator Stream Tensor
    cached_remote_function call_on_shard_and_fetch coalescing compile distribute fetch_shard function_resolvers
    get_active_mesh get_active_stream grad_function grad_generator inspect module_to_mesh no_mesh reduce reduce_ remote
    remote_autograd_function set_meta show slice_mesh to_mesh
"""


def load_name(name: str) -> Any:
    """Return what Monarch's name stands for; imports the module that defines it."""
    return getattr(importlib.import_module(_PLACES[name]), _RENAMED.get(name, name))
