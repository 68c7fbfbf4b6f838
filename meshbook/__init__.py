"""meshbook: the notebook that drives a cluster.

    kernel -> magics -> runtime.hosts, .cells, widgets -> runtime.mesh -> .node -> .transport -> .wire -> .geometry

Imports go one way, left to right (tests/test_layers.py checks this). The names here are the whole public API; the other
modules are imported by their full path, such as `meshbook.runtime.geometry`.
"""

import importlib
import sys
import typing

from meshbook import curves as curves  # a submodule: `meshbook.curves.SummaryWriter()`
from meshbook import hosts as hosts  # a submodule: `meshbook.hosts.command(...)`
from meshbook import metrics as metrics  # a submodule: `meshbook.metrics.serve()`
from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.context import context, current_actor_name, current_rank, current_size
from meshbook.runtime.actor.deferred import returns_future
from meshbook.runtime.actor.endpoint import Accumulator, Endpoint, concurrent_endpoint, endpoint
from meshbook.runtime.actor.explicit_calls import as_endpoint, send
from meshbook.runtime.actor.failure import MeshFailure, UndeliverableMessageEnvelope
from meshbook.runtime.actor.future import Future
from meshbook.runtime.actor.ports import Channel, Port, PortReceiver
from meshbook.runtime.actor.values import ValueMesh
from meshbook.runtime.errors import (
    ActorError,
    CallTimeout,
    DeadlockError,
    MeshbookError,
    SupervisionError,
    TransferError,
)
from meshbook.runtime.geometry import Extent, Point
from meshbook.runtime.hosts import faults as _faults
from meshbook.runtime.hosts.controllers import get_or_spawn_controller
from meshbook.runtime.hosts.session import close_session, events, install_client, shutdown_context, this_host, this_proc
from meshbook.runtime.mesh import tensors as _mesh_tensors
from meshbook.runtime.mesh.actors import ActorMesh
from meshbook.runtime.mesh.commands import BootstrapCommand, default_bootstrap_cmd
from meshbook.runtime.mesh.hosts import HostMesh
from meshbook.runtime.mesh.policies import Restarts
from meshbook.runtime.mesh.procs import ProcMesh
from meshbook.runtime.mesh.tensors import heal_mesh
from meshbook.runtime.rdma.action import RDMAAction
from meshbook.runtime.rdma.buffer import RDMABuffer
from meshbook.runtime.rdma.hardware import get_rdma_backend
from meshbook.runtime.telemetry.loggable import Histogram
from meshbook.runtime.telemetry.point_recorder import log
from meshbook.runtime.telemetry.spans import span

__version__ = "0.2.0"
__all__ = [
    "Accumulator",
    "Actor",
    "ActorError",
    "ActorMesh",
    "BootstrapCommand",
    "CallTimeout",
    "Channel",
    "DeadlockError",
    "Endpoint",
    "Extent",
    "Future",
    "Histogram",
    "HostMesh",
    "MeshFailure",
    "MeshbookError",
    "Point",
    "Port",
    "PortReceiver",
    "ProcMesh",
    "RDMAAction",
    "RDMABuffer",
    "Restarts",
    "SupervisionError",
    "TransferError",
    "UndeliverableMessageEnvelope",
    "ValueMesh",
    "as_endpoint",
    "close_session",
    "concurrent_endpoint",
    "context",
    "current_actor_name",
    "current_rank",
    "current_size",
    "default_bootstrap_cmd",
    "endpoint",
    "events",
    "get_or_spawn_controller",
    "get_rdma_backend",
    "heal_mesh",
    "log",
    "returns_future",
    "send",
    "shutdown_context",
    "span",
    "this_host",
    "this_proc",
]

if typing.TYPE_CHECKING:
    from meshbook.runtime.tensor.checkpoints import load_checkpoint as load_checkpoint
    from meshbook.runtime.tensor.checkpoints import save_checkpoint as save_checkpoint
    from meshbook.runtime.tensor.device_mesh import DeviceMesh as DeviceMesh
    from meshbook.runtime.tensor.device_mesh import get_active_mesh as get_active_mesh
    from meshbook.runtime.tensor.device_mesh import no_mesh as no_mesh
    from meshbook.runtime.tensor.distributing import distribute as distribute
    from meshbook.runtime.tensor.failures import DeviceMeshError as DeviceMeshError
    from meshbook.runtime.tensor.failures import RemoteException as RemoteException
    from meshbook.runtime.tensor.gradients import grad_generator as grad_generator
    from meshbook.runtime.tensor.modules.proxies import module_to_mesh as module_to_mesh
    from meshbook.runtime.tensor.remote import call_on_shard_and_fetch as call_on_shard_and_fetch
    from meshbook.runtime.tensor.remote import remote as remote
    from meshbook.runtime.tensor.sharded_mesh import Mesh as Mesh
    from meshbook.runtime.tensor.simulator import Simulator as Simulator
    from meshbook.runtime.tensor.streams import Stream as Stream
    from meshbook.runtime.tensor.tensor import MeshTensor as MeshTensor
    from meshbook.runtime.tensor.trees import fetch_shard as fetch_shard
    from meshbook.runtime.tensor.trees import inspect as inspect
    from meshbook.runtime.tensor.trees import show as show
    from meshbook.runtime.tensor.trees import slice_mesh as slice_mesh
    from meshbook.runtime.tensor.trees import to_mesh as to_mesh

# The names of the tensor engine, and their modules. They are imported at their first use, because they need torch.
_TENSORS = {
    "DeviceMesh": "device_mesh",
    "DeviceMeshError": "failures",
    "Mesh": "sharded_mesh",
    "MeshTensor": "tensor",
    "RemoteException": "failures",
    "Simulator": "simulator",
    "Stream": "device_mesh",
    "call_on_shard_and_fetch": "remote",
    "distribute": "distributing",
    "fetch_shard": "trees",
    "get_active_mesh": "device_mesh",
    "grad_generator": "gradients",
    "inspect": "trees",
    "load_checkpoint": "checkpoints",
    "module_to_mesh": "modules.proxies",
    "no_mesh": "device_mesh",
    "remote": "remote",
    "save_checkpoint": "checkpoints",
    "show": "trees",
    "slice_mesh": "trees",
    "to_mesh": "trees",
}


def _import_engine(name: str) -> typing.Any:
    return importlib.import_module(f"{__name__}.runtime.tensor.{name}")


def __getattr__(name: str) -> typing.Any:
    if name not in _TENSORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_import_engine(_TENSORS[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_TENSORS})


_mesh_tensors.import_engine = _import_engine
install_client()
sys.modules[__name__].__class__ = _faults.HookedModule  # `meshbook.unhandled_fault_hook = f` replaces the hook


def load_ipython_extension(shell: object) -> None:
    """Load the magics and displays into any IPython kernel: the hook of `%load_ext meshbook`."""
    from meshbook.magics.extension import load  # weight: IPython, which scripts do not need

    load(shell)
