"""The data that starts a worker: its address and rank, its controller, and its environment.

`WorkerSpecs` keeps how the processes of a mesh were started, so that they can be restarted, and more of them started.

Workers start warm if they are forked from the server that has imported torch: they share it and need not import it. A
program without torch would wait a second or two for nothing. So a script gets warm workers only if it uses torch, as
far as that is known at the spawn. Workers import torch themselves if a variable that its import reads, such as
TORCH_LOGS, has been set since that server started.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import site
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import msgspec

from meshbook.runtime.actor.future import Future
from meshbook.runtime.config import PACKAGE, Settings
from meshbook.runtime.geometry import Extent
from meshbook.runtime.mesh.actors import current_node
from meshbook.runtime.mesh.commands import Start
from meshbook.runtime.mesh.host_ownership import report_unstarted
from meshbook.runtime.resources import count_cores
from meshbook.runtime.wire.messages import Address

# Variables that a notebook server or a terminal leaves in the environment, and that workers must not inherit.
_TERMINAL = {"TERM", "COLUMNS", "LINES", "PAGER", "GIT_PAGER", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE"}
LEAKS = frozenset(_TERMINAL | {"MPLBACKEND", "JPY_PARENT_PID", "JPY_SESSION_NAME"})


class MeshSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The data that all processes of one mesh share: the run, the controller, and the environment of the code."""

    run: str
    mesh: str
    owner: str  # the node that spawned the mesh; when it ends, these processes are no longer needed
    controller: Address
    agent: Address
    agents: tuple[Address, ...]  # of all hosts of the mesh, in the order of its ranks
    host_labels: tuple[str, ...] = ()  # the dimensions of the mesh that are those of the hosts
    labels: tuple[str, ...]
    sizes: tuple[int, ...]
    environment: dict[str, str]
    chosen_variables: dict[str, str] = {}  # the part of the environment that was given to `spawn_procs`
    directory: str
    search_path: tuple[str, ...]
    prefix: str = ""  # of the interpreter that this search path belongs to
    installed: tuple[str, ...] = ()  # the part of the search path that is that interpreter's own
    settings: Settings
    is_warm: bool = True  # forked from the server that has imported `Settings.preload`
    bootstrap: bytes = b""  # a pickled callable that runs before any actor
    # Of this mesh, by rank, if it was resized. Otherwise the names of nodes follow from their ranks.
    nodes: tuple[Address, ...] = ()
    rendezvous: dict[str, str] = {}  # MASTER_ADDR and MASTER_PORT, which the agent chooses
    python: str = ""  # the interpreter chosen for this host, also for processes that these spawn
    is_fake_host: bool = False  # see `HostMesh.is_fake_in_process`


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One worker: its address, its rank in its mesh, and its place among the workers of its host."""

    address: Address
    rank: int
    local_rank: int
    local_size: int
    world: MeshSpec
    start: Start = Start()
    incarnation: int = 0  # number of restarts so far, by heals of its mesh
    incarnations: dict[str, int] = {}  # of the nodes that were restarted before this process began
    is_spare: bool = False  # it has no rank yet, and replaces a process that dies
    updated_variables: dict[str, str] = {}  # variables of its rank and rendezvous that were set later

    def environment(self) -> dict[str, str]:
        """Return the whole environment of the process. A rendezvous that the user sets overrides the default."""
        command = self.start.command
        inherited = self.world.environment if command is None or command.inherit_env else {}
        named: Mapping[str, str | None] = {} if command is None else command.env
        found: dict[str, str | None] = {**inherited, **named}
        if not self.is_spare:
            found = {**self.world.rendezvous, **found, **self.ranks()}
        return {name: value for name, value in found.items() if value is not None}

    def search_path(self) -> list[str]:
        """Return the import path for this process. An interpreter other than the parent's keeps its own packages."""
        if sys.prefix == self.world.prefix:
            return list(self.world.search_path)
        known = {*sys.path, *self.world.installed}
        return [*sys.path, *(entry for entry in self.world.search_path if entry not in known)]

    def ranks(self) -> dict[str, str]:
        """Return torchrun's variables except the rendezvous, as torch.distributed and other libraries read them."""
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
        """Return the variables of `ranks` and the rendezvous, as last set in this process."""
        return self.world.rendezvous | self.ranks() | self.updated_variables


def elastic_run(run_id: str) -> dict[str, str]:
    """Return torchrun's variables that are the same on all ranks of a run.

    Without them, Lightning and other libraries assume that the process must start the other ranks itself.
    """
    return {
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        # Rank 0 holds the store. A "True" inherited from an outer torchrun would make it a client without a server.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def inherited_environment(
    overrides: Mapping[str, str] | None = None, parent: WorkerSpec | None = None
) -> dict[str, str]:
    """Return this process's environment for a worker; `parent` is the spec of a worker that spawns others.

    The rank and rendezvous variables that the runtime has set in the parent are removed.
    """
    ours = parent.ranks() | parent.world.rendezvous | parent.updated_variables if parent is not None else {}
    theirs = {
        name: value
        for name, value in os.environ.items()
        if name not in LEAKS and (name not in ours or ours[name] != value)
    }
    return theirs | dict(overrides or {})


def inherited_path() -> tuple[str, ...]:
    """Return this process's import path, with the current folder as an absolute path."""
    return tuple(str(Path(entry).absolute()) for entry in sys.path)


def installed_path(search_path: Iterable[str]) -> tuple[str, ...]:
    """Return the entries that belong to this interpreter only: its standard library and installed packages."""
    named = sysconfig.get_paths()
    own = [named[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    own += [*site.getsitepackages(), site.getusersitepackages()]
    archive = str(Path(named["stdlib"]).parent / f"python{sys.version_info[0]}{sys.version_info[1]}.zip")
    return tuple(entry for entry in search_path if entry == archive or any(map(Path(entry).is_relative_to, own)))


Ask = Callable[[Address, list[WorkerSpec]], Future[None]]
PlanStarts = Callable[[Extent, int], list[Start]]  # for a mesh of this extent, with so many processes on each host


class WorkerSpecs:
    """The worker specs of a mesh, by rank. `ask` sends some to a host's agent; `plan_starts` plans their start."""

    def __init__(self, specs: Sequence[WorkerSpec], ask: Ask, plan_starts: PlanStarts, used: int = 0) -> None:
        self._specs = list(specs)
        self._ask = ask
        self._plan_starts = plan_starts
        self._used = used or len(specs)  # number in the next name; never reused, since a resize adds names

    def __getitem__(self, rank: int) -> WorkerSpec:
        return self._specs[rank]

    @property
    def all(self) -> tuple[WorkerSpec, ...]:
        """All worker specs, by rank."""
        return tuple(self._specs)

    @property
    def plan(self) -> PlanStarts:
        return self._plan_starts

    @property
    def used(self) -> int:
        """The number of names that processes of this mesh have been given so far."""
        return self._used

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The addresses of the processes, by rank."""
        return tuple(spec.address for spec in self._specs)

    def resize(self, stays: Sequence[int | None], extent: Extent, agents: Sequence[Address]) -> None:
        """Change to a mesh of this extent on the hosts of these agents. New processes are not started.

        `stays` has each rank's old rank, or None. Raises ValueError if the start of new processes is unknown.
        """
        before = self._specs
        known = {spec.world.agent: spec.world for spec in before}
        local = extent.nelements // len(agents)
        starts = self._plan_starts(extent, local) if None in stays else []
        specs = [
            before[old] if old is not None else self._new(agents[rank // local], starts[rank])
            for rank, old in enumerate(stays)
        ]
        nodes = tuple(spec.address for spec in specs)
        worlds = [
            msgspec.structs.replace(
                known.get(agent, before[0].world), agent=agent, agents=tuple(agents), sizes=extent.sizes, nodes=nodes
            )
            for agent in agents
        ]
        self._specs = [
            msgspec.structs.replace(
                spec, rank=rank, local_rank=rank % local, local_size=local, world=worlds[rank // local]
            )
            for rank, spec in enumerate(specs)
        ]

    def _new(self, agent: Address, start: Start) -> WorkerSpec:
        node = f"{self._specs[0].world.mesh}.{self._used}"
        self._used += 1
        address = Address(node, agent.url.removesuffix(agent.node) + node)
        return msgspec.structs.replace(self._specs[0], address=address, start=start, incarnation=0)

    def start(self, ranks: Sequence[int]) -> None:
        """Start these processes through their agents. If a request fails, the processes are reported as ended."""
        left = [self._specs[rank] for rank in ranks]
        try:
            for agent, group in itertools.groupby(list(left), lambda spec: spec.world.agent):
                specs = list(group)
                asked = self._ask(agent, specs)
                del left[: len(specs)]
                report_unstarted(asked, specs)
        except BaseException as error:
            report_unstarted(Future.failed(error), left)
            raise

    def start_again(self, ranks: Sequence[int]) -> None:
        """Start these dead processes again, as new incarnations."""
        node = current_node()
        for rank in ranks:
            before = self._specs[rank]
            spec = self._specs[rank] = msgspec.structs.replace(before, incarnation=before.incarnation + 1)
            node.peers.note_restarted(spec.address, spec.incarnation)
        self.start(ranks)


_IMPORT = re.compile(rb"^[ \t]*(?:import|from)[ \t]+torch\b", re.MULTILINE)


def starts_warm(settings: Settings, workers: int) -> bool:
    """Return whether so many workers on a host, spawned from here now, come from the warm fork server.

    If only a function that has not run yet imports torch, the number decides. As many workers as there are cores can
    import it at the same time, as fast as from the warm server; more workers would take longer. Known limit: the cores
    are those of this host.
    """
    if is_agent_warm(settings):
        return True
    return workers > count_cores() and imports_torch_later(sys.modules.copy().values())


def is_agent_warm(settings: Settings) -> bool:
    """Return whether an agent that is started now starts with the warm fork server."""
    return not settings.preload_for_torch or "torch" in sys.modules


# Not those that torch reads later, when it makes a process group, compiles a function or allocates on a GPU.
_READ_BY_IMPORT = re.compile(r"(PY)?TORCH_(?!NCCL_|FR_|COMPILE_|HOME$|.*ALLOC_CONF$)\w+")


def is_import_alike(environment: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Return whether torch is the same after its import in these environments: it reads some variables only then."""
    names = filter(_READ_BY_IMPORT.fullmatch, {*environment, *other})
    return all(environment.get(name) == other.get(name) for name in names)


def imports_torch_later(modules: Iterable[ModuleType]) -> bool:
    """Return whether the user's code in these modules, possibly in a function, imports torch."""
    not_the_users = tuple(f"{entry}{os.sep}" for entry in (PACKAGE, *installed_path(sys.path)))
    files = {file for module in modules if isinstance(file := getattr(module, "__file__", None), str)}
    return any(
        _IMPORT.search(_read(file))
        for file in files
        if file.endswith(".py") and not file.startswith(not_the_users) and "site-packages" not in file
    )


def _read(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError:  # removed, or in an archive
        return b""
