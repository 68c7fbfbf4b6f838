"""The environment that torchrun defines for a script: its rank, the world, and the rendezvous.

Arithmetic over one list, `hosts`: for each rank, in rank order, the host that it runs on. No process is called here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from meshbook.runtime.geometry import Extent
from meshbook.runtime.mesh.worker_specs import WorkerSpec, elastic_run


@dataclass(frozen=True, slots=True)
class RunRendezvous:
    """The address of the rendezvous of one run, and the run's name, which is the same on all ranks."""

    address: str
    port: int
    run_id: str


def rank_environment(rank: int, hosts: Sequence[int], rendezvous: RunRendezvous) -> dict[str, str]:
    """Return the variables of `rank`, by the names of torchrun's documentation ("Environment Variables").

    Local ranks count the ranks of one host in rank order; groups are the hosts, in the order of their first rank.
    """
    groups = list(dict.fromkeys(hosts))
    local = [other for other, host in enumerate(hosts) if host == hosts[rank]]
    numbers = {
        "RANK": rank,
        "WORLD_SIZE": len(hosts),
        "LOCAL_RANK": local.index(rank),
        "LOCAL_WORLD_SIZE": len(local),
        "GROUP_RANK": groups.index(hosts[rank]),
        "GROUP_WORLD_SIZE": len(groups),
        "ROLE_RANK": rank,  # all ranks have the same role
        "ROLE_WORLD_SIZE": len(hosts),
        "MASTER_PORT": rendezvous.port,
    }
    variables = {name: str(number) for name, number in numbers.items()} | elastic_run(rendezvous.run_id)
    return variables | {"MASTER_ADDR": rendezvous.address}


def hosts_of(extent: Extent, spec: WorkerSpec | None) -> tuple[int, ...]:
    """Return the host of each rank of a called mesh, from the dimensions that are the hosts'.

    `spec` belongs to any of its processes; without one the mesh is a single process of the caller. ValueError if the
    hosts' dimensions have been renamed or flattened away, so that a host would have more ranks than processes.
    """
    if spec is None:
        return (0,) * extent.nelements
    # The hosts' dimensions are those before the ones that make up the processes of one host.
    labels, sizes = spec.world.labels, spec.world.sizes
    count = next(count for count in range(len(sizes) + 1) if math.prod(sizes[count:]) == spec.local_size)
    outer = set(labels[:count]) & set(extent.labels)
    places = [tuple(extent.point(rank)[label] for label in sorted(outer)) for rank in range(extent.nelements)]
    numbers = {place: number for number, place in enumerate(dict.fromkeys(places))}
    hosts = tuple(numbers[place] for place in places)
    _check(hosts, extent, spec)
    return hosts


def _check(hosts: Collection[int], extent: Extent, spec: WorkerSpec) -> None:
    if len(hosts) > len(set(hosts)) * spec.local_size:
        raise ValueError(
            f"cannot determine the hosts of {dict(extent)}: its processes were spawned as "
            f"{dict(zip(spec.world.labels, spec.world.sizes, strict=True))}, {spec.local_size} per host. "
            "Pass `hosts=`, the host of each rank, or call a mesh that has the hosts' dimensions"
        )
