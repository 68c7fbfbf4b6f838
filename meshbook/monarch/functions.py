"""Functions of Monarch's modules that meshbook does not offer under its own names.

`proc_mesh` and `local_proc_mesh` are functions that Monarch itself has dropped, on today's API. Their results can be
awaited, as all meshes can: `mesh = await proc_mesh(gpus=2)`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from meshbook import hosts
from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.context import context
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.geometry import Extent
from meshbook.runtime.hosts.controllers import get_or_spawn_controller
from meshbook.runtime.hosts.session import running_session, this_host
from meshbook.runtime.mesh.hosts import HostMesh
from meshbook.runtime.mesh.procs import ProcMesh
from meshbook.runtime.resources import count_gpus

if TYPE_CHECKING:
    from meshbook.runtime.tensor.device_mesh import DeviceMesh


class DebugController(Actor):
    """The actor in the client's process."""

    @endpoint
    def list(self) -> list[tuple[str, int, str]]:
        """Return the mesh, the rank and the place of each debugger that waits for a command."""
        session = running_session()
        return [] if session is None else session.debugger.stopped()


def debug_controller() -> DebugController:
    """Return the controller of this run, spawned by the first call. `meshbook debug` reads the commands."""
    return get_or_spawn_controller("debug_controller", DebugController).get()


def hosts_from_config(name: str) -> HostMesh:
    """Return the hosts of the table `name` in `hosts.toml` (`meshbook.hosts.start`); without one, two local hosts.

    Raises LaunchError, which names the host, if one does not come up.
    """
    if name in hosts.setup_names():
        return hosts.start(name)
    return hosts.local(2)


def proc_mesh(
    *,
    gpus: int | None = None,
    hosts: int = 1,
    env: Mapping[str, str] | None = None,
    setup: Callable[[], Any] | None = None,
) -> ProcMesh:
    """Start `hosts` x `gpus` processes on this machine: a mesh with these two dimensions.

    The default of `gpus` is one for each GPU, or 1 without a GPU. `env` is added to their environment, and `setup` runs
    in each before any actor. Today's form: `this_host().spawn_procs(per_host={"gpus": 2})`.
    """
    warnings.warn(
        "proc_mesh() is deprecated; use this_host().spawn_procs(per_host={...})", DeprecationWarning, stacklevel=2
    )
    dims = {"hosts": hosts, "gpus": max(1, count_gpus()) if gpus is None else gpus}
    return this_host().spawn_procs(per_host=dims, bootstrap=setup, env=env)


def world_mesh(hosts: HostMesh | None = None, gpu_per_host: int | None = None) -> DeviceMesh:
    """Start processes on each of the hosts, by default this one, and return the mesh for tensors on all of them.

    The default of `gpu_per_host` is one process for each GPU of this host, or 1 without a GPU. The mesh has the
    dimensions of the hosts and `gpus`.
    """
    on = this_host() if hosts is None else hosts
    return on.spawn_procs({"gpus": max(1, count_gpus()) if gpu_per_host is None else gpu_per_host}).device_mesh


def local_proc_mesh(*, gpus: int | None = None, hosts: int = 1) -> ProcMesh:
    """Return this process as a mesh with the dimensions `hosts` and `gpus`, each of size 1.

    Today's form: `this_proc()`. Raises NotImplementedError for more than one rank: they would have to share the
    process.
    """
    warnings.warn("local_proc_mesh() is deprecated; use this_proc()", DeprecationWarning, stacklevel=2)
    if gpus not in (None, 1) or hosts != 1:
        raise NotImplementedError(
            f"local_proc_mesh(gpus={gpus}, hosts={hosts}): this version of meshbook does not support several "
            f"ranks in one process; proc_mesh() with the same arguments starts a process for each rank"
        )
    here = context().actor_instance.node.address
    return ProcMesh("this_proc", [here], Extent(("hosts", "gpus"), (1, 1)).region, this_host())
