"""The meshes that a client of a run owns, as plain data, so that another process can take over as their client.

Classes and functions of the user's are pickled one by one, so one that cannot be loaded elsewhere is lost alone.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.errors import MeshbookError
from meshbook.runtime.geometry import Extent
from meshbook.runtime.mesh.commands import Start
from meshbook.runtime.mesh.hosts import HostMesh, ask_for
from meshbook.runtime.mesh.ownership import Ownership, own
from meshbook.runtime.mesh.policies import Respawning
from meshbook.runtime.mesh.procs import ProcMesh
from meshbook.runtime.mesh.spawned import Spawned
from meshbook.runtime.mesh.worker_specs import MeshSpec, WorkerSpec, WorkerSpecs
from meshbook.runtime.node.ledger import OwnedMesh
from meshbook.runtime.node.node import Node
from meshbook.runtime.node.outbound import Creation

CLIENT = ""  # the owner's key of the client


@dataclass(frozen=True)
class ProcMeshState:
    """A process mesh. `policy` indexes `OwnedMeshes.policies`; `plan` is a pickle, None if it could not be pickled."""

    key: str
    name: str
    specs: tuple[WorkerSpec, ...]
    used: int
    labels: tuple[str, ...]
    sizes: tuple[int, ...]
    ranks: dict[str, int]
    failed: tuple[int, ...]
    streams: bool | None
    plan: bytes | None
    policy: int | None


@dataclass(frozen=True)
class ActorMeshState:
    """An actor mesh; `cls` is None if its class could not be pickled."""

    key: str
    name: str
    cls: bytes | None
    creation: Creation
    ranks: dict[str, int]
    failed: tuple[int, ...]
    policy: int | None


@dataclass(frozen=True)
class OwnedMeshes:
    """All meshes that a client owns, the oldest first."""

    procs: tuple[ProcMeshState, ...]
    actors: tuple[ActorMeshState, ...]
    policies: tuple[bytes | None, ...]  # several meshes may share one


def owned_meshes_of(node: Node) -> OwnedMeshes:
    """Return the meshes of the local client. MeshbookError while one of them is being healed or changed."""
    owned_meshes = [each for each in reversed(node.ledger.of(CLIENT)) if node.address.node not in each.ranks]
    for owned_mesh in owned_meshes:
        if owned_mesh.healing is not None and not owned_mesh.healing.done():
            raise MeshbookError(f"{owned_mesh.name} is being healed; try again afterwards")
    policies: list[Any] = []
    procs = tuple(_procs_state(each, policies) for each in owned_meshes if each.are_processes)
    actors = tuple(_actors_state(each, policies) for each in owned_meshes if not each.are_processes)
    return OwnedMeshes(procs, actors, tuple(_pickled(policy.rule) for policy in policies))


def _procs_state(owned_mesh: OwnedMesh, policies: list[Any]) -> ProcMeshState:
    procs: ProcMesh = owned_mesh.handle()
    specs = procs._ownership.specs
    assert specs is not None
    with procs._ownership.changing:
        return ProcMeshState(
            *(owned_mesh.key, owned_mesh.name, specs.all, specs.used),
            *procs.extent.dims,
            ranks=dict(owned_mesh.ranks),
            failed=tuple(owned_mesh.failed),
            streams=procs._streams,
            plan=_pickled(specs.plan),
            policy=_index(owned_mesh.policy, policies),
        )


def _actors_state(owned_mesh: OwnedMesh, policies: list[Any]) -> ActorMeshState:
    spawned: Spawned = owned_mesh.spawned
    return ActorMeshState(
        *(owned_mesh.key, owned_mesh.name, _pickled(spawned.cls), spawned.creation),
        ranks=dict(owned_mesh.ranks),
        failed=tuple(owned_mesh.failed),
        policy=_index(owned_mesh.policy, policies),
    )


def _index(policy: Any, policies: list[Any]) -> int | None:
    """Return the index of a policy in the list, which is extended if needed."""
    if policy is None:
        return None
    if policy not in policies:
        policies.append(policy)
    return policies.index(policy)


def _pickled(value: Any) -> bytes | None:
    try:
        return bytes(cloudpickle.dumps(value))
    except Exception:  # pickling the user's own classes may raise anything
        return None


def restore_meshes(owned: OwnedMeshes, node: Node, find_hosts: Callable[[MeshSpec], HostMesh]) -> list[str]:
    """Take over these meshes. Return descriptions of the parts that could not be restored."""
    lost: list[str] = []
    what = "the on_failure function; failures are raised instead"
    rules = [_loaded(rule, what, lost) for rule in owned.policies]
    policies = [None if rule is None else Respawning(*rule) for rule in rules]
    for procs in owned.procs:
        _take_procs(procs, find_hosts(procs.specs[0].world), _pick(policies, procs.policy), lost)
    for actors in owned.actors:
        _take_actors(actors, node, _pick(policies, actors.policy), lost)
    return lost


def _pick(policies: Sequence[Respawning | None], index: int | None) -> Respawning | None:
    return None if index is None else policies[index]


def _take_procs(state: ProcMeshState, hosts: HostMesh, policy: Respawning | None, lost: list[str]) -> None:
    plan = _loaded(state.plan, f"the start options of the processes of {state.name}; the mesh cannot be enlarged", lost)
    specs = WorkerSpecs(state.specs, ask_for, plan or _no_plan, state.used)
    ownership = Ownership(specs)
    region = Extent(state.labels, state.sizes).region
    procs = ownership.current = ProcMesh(
        *(state.key, specs.addresses, region, hosts),
        ownership=ownership,
        owned=True,
        stream_logs=state.streams,
        policy=policy,
    )
    owned_mesh = own(
        *(state.key, state.name, dict(state.ranks), ownership.handle, specs.start_again),
        are_processes=True,
        policy=policy,
    )
    owned_mesh.failed = list(state.failed)
    hosts.adopt(procs)


def _take_actors(state: ActorMeshState, node: Node, policy: Respawning | None, lost: list[str]) -> None:
    cls = _loaded(
        state.cls, f"the class of the actors {state.name!r}; they continue to run without a handle here", lost
    )
    spawned = Spawned(node, state.name, cls or Actor, state.creation)
    owned_mesh = own(
        *(state.key, state.name, dict(state.ranks), spawned.handle, spawned.recreate),
        policy=policy,
        spawned=spawned,
    )
    owned_mesh.failed = list(state.failed)


def _loaded(pickled: bytes | None, what: str, lost: list[str]) -> Any:
    if pickled is None:
        lost.append(what)
        return None
    try:
        return pickle.loads(pickled)
    except Exception as error:  # the import of the user's module may raise anything
        lost.append(f"{what} ({type(error).__name__}: {error})")
        return None


def _no_plan(extent: Extent, local: int) -> list[Start]:
    raise ValueError(
        "resize: this mesh cannot be enlarged, because the start options of its processes were not restored when this "
        "notebook or program attached to the run; start a new mesh"
    )


def names_of(states: Iterable[ProcMeshState]) -> str:
    """Return `mesh (4 ranks), trainers (2 ranks)`."""
    return ", ".join(f"{state.name} ({len(state.specs)} rank{'s' * (len(state.specs) != 1)})" for state in states)
