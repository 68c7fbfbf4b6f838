"""What a worker is told when it is born: who it is, whom to answer to, and the world it finds itself in."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from meshbook.runtime.config import Settings
from meshbook.runtime.wire.messages import Address

# What a notebook server or a terminal leaves in the environment, and a worker must not inherit.
_TERMINAL = {"TERM", "COLUMNS", "LINES", "PAGER", "GIT_PAGER", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE"}
LEAKS = frozenset(_TERMINAL | {"MPLBACKEND", "JPY_PARENT_PID", "JPY_SESSION_NAME"})


class World(msgspec.Struct, frozen=True, kw_only=True):
    """What all processes of one mesh share: the run, the controller, and the surroundings of the code."""

    run: str
    mesh: str
    owner: str  # the node that spawned the mesh; without it nobody needs these processes
    controller: Address
    agent: Address
    labels: tuple[str, ...]
    sizes: tuple[int, ...]
    environment: dict[str, str]
    directory: str
    search_path: tuple[str, ...]
    settings: Settings
    bootstrap: bytes = b""  # a pickled callable that runs before any actor
    rendezvous: dict[str, str] = {}  # MASTER_ADDR and MASTER_PORT, which the agent finds


class Birth(msgspec.Struct, frozen=True, kw_only=True):
    """One worker: its address, its rank in its mesh, and its place among the workers of its host."""

    address: Address
    rank: int
    local_rank: int
    local_size: int
    world: World
    told: dict[str, str] = {}  # what was set in its environment later, of its rank and rendezvous

    def environment(self) -> dict[str, str]:
        """The whole environment of the process. A rendezvous that the user names wins over ours."""
        return self.world.rendezvous | self.world.environment | self.ranks()

    def ranks(self) -> dict[str, str]:
        """The variables from which torch.distributed learns who this process is."""
        return {
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.local_rank),
            "WORLD_SIZE": str(math.prod(self.world.sizes)),
            "LOCAL_WORLD_SIZE": str(self.local_size),
            "GROUP_RANK": str(self.rank // self.local_size),
        }


def inherited_environment(overrides: Mapping[str, str] | None = None, parent: Birth | None = None) -> dict[str, str]:
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
