"""What a worker is told when it is born: who it is, whom to answer to, and the world it finds itself in.

How the processes of a mesh were started, so that each can be started again, and more like them.
"""

from __future__ import annotations

import itertools
import math
import os
import site
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from meshbook.runtime.actor.future import Future
from meshbook.runtime.config import Settings
from meshbook.runtime.geometry import Extent
from meshbook.runtime.mesh.actors import current_node
from meshbook.runtime.mesh.commands import Start
from meshbook.runtime.mesh.host_ownership import mark_unborn
from meshbook.runtime.wire.messages import Address

# What a notebook server or a terminal leaves in the environment, and a worker must not inherit.
_TERMINAL = {"TERM", "COLUMNS", "LINES", "PAGER", "GIT_PAGER", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE"}
LEAKS = frozenset(_TERMINAL | {"MPLBACKEND", "JPY_PARENT_PID", "JPY_SESSION_NAME"})


class MeshSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What all processes of one mesh share: the run, the controller, and the surroundings of the code."""

    run: str
    mesh: str
    owner: str  # the node that spawned the mesh; without it nobody needs these processes
    controller: Address
    agent: Address
    agents: tuple[Address, ...]  # of all hosts of the mesh, in the order of its ranks
    host_labels: tuple[str, ...] = ()  # which of its dimensions are theirs
    labels: tuple[str, ...]
    sizes: tuple[int, ...]
    environment: dict[str, str]
    directory: str
    search_path: tuple[str, ...]
    prefix: str = ""  # of the interpreter that this search path belongs to
    installed: tuple[str, ...] = ()  # the part of the search path that is that interpreter's own
    settings: Settings
    is_warm: bool = True  # whether the processes are forked from the server that has imported `Settings.preload`
    bootstrap: bytes = b""  # a pickled callable that runs before any actor
    nodes: tuple[Address, ...] = ()  # of this mesh, by rank, where it was resized; else they are named by their ranks
    rendezvous: dict[str, str] = {}  # MASTER_ADDR and MASTER_PORT, which the agent finds
    python: str = ""  # the interpreter that was chosen for this host, also for what these processes spawn
    is_fake_host: bool = False  # see `HostMesh.is_fake_in_process`


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One worker: its address, its rank in its mesh, and its place among the workers of its host."""

    address: Address
    rank: int
    local_rank: int
    local_size: int
    world: MeshSpec
    start: Start = Start()
    incarnation: int = 0  # how many it has had before: it died, and its mesh was healed
    incarnations: dict[str, int] = {}  # the incarnations of the nodes that were restarted before this process began
    is_spare: bool = False  # it has no rank yet, and takes the place of one that dies
    told: dict[str, str] = {}  # what was set in its environment later, of its rank and rendezvous

    def environment(self) -> dict[str, str]:
        """The whole environment of the process. A rendezvous that the user names wins over ours."""
        command = self.start.command
        inherited = self.world.environment if command is None or command.inherit_env else {}
        named: Mapping[str, str | None] = {} if command is None else command.env
        found: dict[str, str | None] = {**inherited, **named}
        if not self.is_spare:
            found = {**self.world.rendezvous, **found, **self.ranks()}
        return {name: value for name, value in found.items() if value is not None}

    def search_path(self) -> list[str]:
        """The import path of the process that asks. Another interpreter than the parent's keeps its own packages."""
        if sys.prefix == self.world.prefix:
            return list(self.world.search_path)
        known = {*sys.path, *self.world.installed}
        return [*sys.path, *(entry for entry in self.world.search_path if entry not in known)]

    def ranks(self) -> dict[str, str]:
        """The variables that torchrun sets, less the rendezvous: torch.distributed and other libraries read them."""
        size = math.prod(self.world.sizes)
        numbers = {
            "RANK": self.rank,
            "LOCAL_RANK": self.local_rank,
            "WORLD_SIZE": size,
            "LOCAL_WORLD_SIZE": self.local_size,
            "GROUP_RANK": self.rank // self.local_size,
            "GROUP_WORLD_SIZE": size // self.local_size,
            "ROLE_RANK": self.rank,
            "ROLE_WORLD_SIZE": size,
        }
        return {name: str(number) for name, number in numbers.items()} | elastic_run(self.world.mesh)

    def rendezvous(self) -> dict[str, str]:
        """The variables of `ranks`, and where the ranks meet, as this process has been given them last."""
        return self.world.rendezvous | self.ranks() | self.told


def elastic_run(run_id: str) -> dict[str, str]:
    """The variables of torchrun that are the same on all ranks of a run.

    Lightning and others take a process without them for one that has to start the other ranks itself.
    """
    return {
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        # Rank 0 holds the store. A "True" inherited from an outer torchrun would make it a client of nobody.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def inherited_environment(
    overrides: Mapping[str, str] | None = None, parent: WorkerSpec | None = None
) -> dict[str, str]:
    """This process's environment as a worker should see it; `parent` is the birth of a worker that spawns others.

    What we told that one of its rank and its rendezvous is not for them.
    """
    ours = parent.ranks() | parent.world.rendezvous | parent.told if parent is not None else {}
    theirs = {
        name: value
        for name, value in os.environ.items()
        if name not in LEAKS and (name not in ours or ours[name] != value)
    }
    return theirs | dict(overrides or {})


def inherited_path() -> tuple[str, ...]:
    """This process's import path, with the current folder spelled out."""
    return tuple(str(Path(entry).absolute()) for entry in sys.path)


def installed_path(search_path: Iterable[str]) -> tuple[str, ...]:
    """The entries that belong to this interpreter, and mean nothing to another one: library and installed packages."""
    named = sysconfig.get_paths()
    own = [named[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    own += [*site.getsitepackages(), site.getusersitepackages()]
    archive = str(Path(named["stdlib"]).parent / f"python{sys.version_info[0]}{sys.version_info[1]}.zip")
    return tuple(entry for entry in search_path if entry == archive or any(map(Path(entry).is_relative_to, own)))


Ask = Callable[[Address, list[WorkerSpec]], Future[None]]
PlanStarts = Callable[[Extent, int], list[Start]]  # for a mesh of this extent, with so many processes on each host


class WorkerSpecs:
    """The births of a mesh, by rank; `ask` asks a host's agent for some, `plan_starts` says how each is started."""

    def __init__(self, specs: Sequence[WorkerSpec], ask: Ask, plan_starts: PlanStarts, used: int = 0) -> None:
        self._specs = list(specs)
        self._ask = ask
        self._plan_starts = plan_starts
        self._used = used or len(specs)  # numbers in names: a resize brings others, and each is used once

    def __getitem__(self, rank: int) -> WorkerSpec:
        return self._specs[rank]

    @property
    def all(self) -> tuple[WorkerSpec, ...]:
        """All of them, by rank."""
        return tuple(self._specs)

    @property
    def plan(self) -> PlanStarts:
        return self._plan_starts

    @property
    def used(self) -> int:
        """How many names were given to processes of this mesh so far."""
        return self._used

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Where the processes are, by rank."""
        return tuple(spec.address for spec in self._specs)

    def resize(self, stays: Sequence[int | None], extent: Extent) -> None:
        """Have a mesh of this extent: for each rank which one it has been, or none. The new ones are not started.

        ValueError where nothing says how to start those.
        """
        before, local = self._specs, self._specs[0].local_size
        firsts = before[::local]  # of each host
        local = extent.nelements // len(firsts)
        starts = self._plan_starts(extent, local) if None in stays else []
        specs = [
            before[old] if old is not None else self._new(firsts[rank // local], starts[rank])
            for rank, old in enumerate(stays)
        ]
        nodes = tuple(spec.address for spec in specs)
        worlds = [msgspec.structs.replace(first.world, sizes=extent.sizes, nodes=nodes) for first in firsts]
        self._specs = [
            msgspec.structs.replace(
                spec, rank=rank, local_rank=rank % local, local_size=local, world=worlds[rank // local]
            )
            for rank, spec in enumerate(specs)
        ]

    def _new(self, like: WorkerSpec, start: Start) -> WorkerSpec:
        node = f"{like.world.mesh}.{self._used}"
        self._used += 1
        url = like.address.url.removesuffix(like.address.node) + node
        return msgspec.structs.replace(like, address=Address(node, url), start=start, incarnation=0)

    def start(self, ranks: Sequence[int]) -> None:
        """Ask for these processes; whoever waits for one that cannot be started is told."""
        for agent, group in itertools.groupby((self._specs[rank] for rank in ranks), lambda spec: spec.world.agent):
            specs = list(group)
            mark_unborn(self._ask(agent, specs), specs)

    def start_again(self, ranks: Sequence[int]) -> None:
        """Ask for these processes once more: they have died."""
        node = current_node()
        for rank in ranks:
            before = self._specs[rank]
            spec = self._specs[rank] = msgspec.structs.replace(before, incarnation=before.incarnation + 1)
            node.peers.note_restarted(spec.address, spec.incarnation)
        self.start(ranks)
