"""The remote hosts of a detached run: what the leaving controller saves, and how the attaching one finds them again.

    launcher's process <- its input, a FIFO in the run's folder <- controller | first agent | next controller

The processes of launchers outlive a controller. Their input is their lifeline; the first host's agent holds it open
while there is no controller (`run_lease`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from meshbook.runtime.geometry import Extent
from meshbook.runtime.hosts.launchers import ForeignProcess, Launcher, ProcessReference
from meshbook.runtime.hosts.remote_hosts import RemoteHost, RemoteHosts
from meshbook.runtime.mesh.host_ownership import HostOwnership
from meshbook.runtime.mesh.hosts import HostMesh
from meshbook.runtime.mesh.worker_specs import MeshSpec
from meshbook.runtime.transport.curve import KeyPair
from meshbook.runtime.transport.home import host_of
from meshbook.runtime.wire.messages import Address


@dataclass(frozen=True)
class RemoteHostState:
    """One remote host. `launcher` and `group` are indexes of `RemoteHostsState`."""

    name: str
    node: str
    log: Path
    number: int
    is_local: bool
    address: Address
    process: ProcessReference
    launcher: int
    group: int


@dataclass(frozen=True)
class RemoteHostsState:
    """All remote hosts of a run. A group has the agents of hosts that end together: `HostOwnership.agents`."""

    keys: KeyPair | None
    hosts: tuple[RemoteHostState, ...]
    launchers: tuple[Launcher, ...]
    groups: tuple[tuple[Address, ...], ...]


def undetachable(remote: RemoteHosts) -> list[str]:
    """Return the names of the hosts that end with this process."""
    return [host.name for host in remote if not host.launcher.outlives_controller]


def save(remote: RemoteHosts) -> RemoteHostsState:
    """Return the state of the hosts that have not ended."""
    launchers: list[Launcher] = []
    owned: list[HostOwnership] = []
    hosts = []
    for host in remote:
        assert host.mesh is not None
        assert host.address is not None
        ownership = host.mesh.ownership
        if ownership not in owned:
            owned.append(ownership)
        if host.launcher not in launchers:
            launchers.append(host.launcher)
        hosts.append(
            RemoteHostState(
                *(host.name, host.node, host.log, host.number, host.is_local, host.address),
                process=ProcessReference.of(host.process),
                launcher=launchers.index(host.launcher),
                group=owned.index(ownership),
            )
        )
    groups = tuple(tuple(ownership.agents) for ownership in owned)
    return RemoteHostsState(remote.keys, tuple(hosts), tuple(launchers), groups)


def lifelines(state: RemoteHostsState) -> tuple[str, ...]:
    """Return the paths of the inputs that must stay open."""
    held = [line for launcher in state.launchers for line in launcher.lifelines]
    return tuple(str(line) for line in (*held, *(host.process.lifeline for host in state.hosts)))


def restore(remote: RemoteHosts, state: RemoteHostsState, first: HostMesh) -> Callable[[MeshSpec], HostMesh]:
    """Restore these hosts, unwatched so far. Return the function that finds the hosts of a mesh; `first` is the own."""
    owned = [HostOwnership(agents) for agents in state.groups]
    meshes = [
        HostMesh(agents, Extent.of(hosts=len(agents)).region, owned=True, ownership=ownership)
        for agents, ownership in zip(state.groups, owned, strict=True)
    ]
    hosts = [
        RemoteHost(
            *(
                host.name,
                host.node,
                ForeignProcess(host.process),
                host.log,
                state.launchers[host.launcher],
                host.number,
            ),
            is_local=host.is_local,
            address=host.address,
            mesh=meshes[host.group],
        )
        for host in state.hosts
    ]
    remote.adopt(hosts, state.keys)

    def find(world: MeshSpec) -> HostMesh:
        if host_of(world.agent) == host_of(first.agents[0]):
            return first
        known = [ownership for ownership in owned if not set(ownership.agents).isdisjoint(world.agents)]
        sizes = dict(zip(world.labels, world.sizes, strict=True))
        region = Extent.of(**{label: sizes[label] for label in world.host_labels}).region
        ownership = known[0] if known else HostOwnership(world.agents)  # all of its hosts are lost
        return HostMesh(world.agents, region, owned=True, python=world.python, ownership=ownership)

    return find
