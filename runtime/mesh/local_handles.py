"""The host, the process and the mesh of the local process, as handles. For `this_host()` and an instance's `proc`."""

from __future__ import annotations

from meshbook.runtime.geometry import SCALAR, Extent
from meshbook.runtime.mesh.hosts import HostMesh
from meshbook.runtime.mesh.procs import ProcMesh
from meshbook.runtime.mesh.worker_specs import WorkerSpec
from meshbook.runtime.transport.home import host_of
from meshbook.runtime.wire.messages import Address


class LocalHandles:
    """The handles of one process. A worker has a `spec`; a client has none."""

    def __init__(self, host: HostMesh, node: Address, spec: WorkerSpec | None = None) -> None:
        self.host = host
        self._node = node
        self._spec = spec

    def proc(self) -> ProcMesh:
        """Return this process as a mesh without dimensions."""
        return ProcMesh("this_proc", [self._node], SCALAR.region, self.host)

    def proc_mesh(self) -> ProcMesh:
        """Return the processes that were spawned together with this one; in a client, only the client itself."""
        if self._spec is None:
            return self.proc()
        world = self._spec.world
        extent = Extent(world.labels, world.sizes)
        per_host = extent.nelements // len(world.agents)
        names = [(f"{world.mesh}.{rank}", host_of(world.agents[rank // per_host])) for rank in range(extent.nelements)]
        nodes = world.nodes or [Address(name, f"{host}{name}") for name, host in names]
        hosts = self.host
        if world.host_labels:
            region = Extent(world.host_labels, world.sizes[: len(world.host_labels)]).region
            hosts = HostMesh(world.agents, region, python=world.python, is_fake_in_process=world.is_fake_host)
        return ProcMesh(world.mesh, nodes, extent.region, hosts)


def local_handles_of(spec: WorkerSpec) -> LocalHandles:
    """Return the handles of a worker."""
    world = spec.world
    host = HostMesh(
        *([world.agent], SCALAR.region),
        python=world.python,
        is_fake_in_process=world.is_fake_host,
    )
    return LocalHandles(host, spec.address, spec)
