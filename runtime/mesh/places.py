"""Where a process is: its host, itself and its mesh, as handles. What `this_host()` and an instance's `proc` give."""

from __future__ import annotations

from meshbook.runtime.geometry import Extent
from meshbook.runtime.mesh.birth import Birth
from meshbook.runtime.mesh.hosts import HostMesh
from meshbook.runtime.mesh.procs import ProcMesh
from meshbook.runtime.transport.home import host_of
from meshbook.runtime.wire.messages import Address

NOWHERE = Extent((), ())


class Places:
    """The handles of one process. A worker knows its `birth`; a client has none."""

    def __init__(self, host: HostMesh, node: Address, birth: Birth | None = None) -> None:
        self.host = host
        self._node = node
        self._birth = birth

    def proc(self) -> ProcMesh:
        """This process: a mesh without dimensions."""
        return ProcMesh("this_proc", [self._node], NOWHERE.region, self.host)

    def proc_mesh(self) -> ProcMesh:
        """The processes that were spawned together with this one; of a client itself alone."""
        if self._birth is None:
            return self.proc()
        world = self._birth.world
        inbox = host_of(self._birth.address)
        names = [f"{world.mesh}.{rank}" for rank in range(Extent(world.labels, world.sizes).nelements)]
        nodes = world.nodes or [Address(name, f"{inbox}{name}") for name in names]
        return ProcMesh(world.mesh, nodes, Extent(world.labels, world.sizes).region, self.host)


def places_of(birth: Birth) -> Places:
    """Where a worker is."""
    world = birth.world
    host = HostMesh(
        *([world.agent], NOWHERE.region),
        python=world.python,
        is_fake_in_process=world.is_fake_host,
    )
    return Places(host, birth.address, birth)
