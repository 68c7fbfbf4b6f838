"""What a worker is told when it is born: who it is, whom to answer to, and the world it finds itself in."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import msgspec

from meshbook.runtime.config import Settings
from meshbook.runtime.wire.messages import Address

# What a notebook server or a terminal leaves in the environment, and a worker must not inherit.
LEAKS = frozenset({"MPLBACKEND", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "NO_COLOR", "PAGER", "GIT_PAGER", "TERM"})
LEAKS |= {"JPY_PARENT_PID", "JPY_SESSION_NAME", "COLUMNS", "LINES"}


class World(msgspec.Struct, frozen=True, kw_only=True):
    """What all processes of one mesh share: the run, the controller, and the surroundings of the code."""

    run: str
    mesh: str
    controller: Address
    agent: Address
    labels: tuple[str, ...]
    sizes: tuple[int, ...]
    environment: dict[str, str]
    directory: str
    search_path: tuple[str, ...]
    settings: Settings
    bootstrap: bytes = b""  # a pickled callable that runs before any actor


class Birth(msgspec.Struct, frozen=True, kw_only=True):
    """One worker: its address, its rank in its mesh, and its place among the workers of its host."""

    address: Address
    rank: int
    local_rank: int
    local_size: int
    world: World

    def environment(self) -> dict[str, str]:
        """The whole environment of the process, with the variables that torch.distributed reads."""
        size = 1
        for extent in self.world.sizes:
            size *= extent
        return self.world.environment | {
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.local_rank),
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(self.local_size),
            "GROUP_RANK": str(self.rank // self.local_size),
        }


def inherited_environment(overrides: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment as a worker should see it."""
    return {name: value for name, value in os.environ.items() if name not in LEAKS} | dict(overrides or {})


def inherited_path() -> tuple[str, ...]:
    """This process's import path, with the current folder spelled out."""
    return tuple(os.path.abspath(entry) for entry in sys.path)
