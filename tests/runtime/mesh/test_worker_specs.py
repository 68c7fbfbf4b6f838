"""The environment that a worker is born with: the user's, without what is only for the process that spawns it."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

import msgspec
import pytest

from meshbook.runtime.config import Settings
from meshbook.runtime.mesh.commands import BootstrapCommand, Start
from meshbook.runtime.mesh.worker_specs import (
    LEAKS,
    MeshSpec,
    WorkerSpec,
    inherited_environment,
    inherited_path,
    installed_path,
)
from meshbook.runtime.wire.messages import Address


def born(environment: dict[str, str] | None = None, **rendezvous: str) -> WorkerSpec:
    """Rank 5 of 2 hosts of 4 GPUs."""
    world = MeshSpec(
        run="run",
        mesh="procs",
        owner="controller",
        controller=Address("controller", "memory://controller"),
        agent=Address("agent", "memory://agent"),
        agents=(Address("agent", "memory://agent"),),
        labels=("hosts", "gpus"),
        sizes=(2, 4),
        environment=environment or {},
        directory="/",
        search_path=(),
        settings=Settings(),
        rendezvous=rendezvous,
    )
    return WorkerSpec(address=Address("procs.5", "memory://procs.5"), rank=5, local_rank=1, local_size=4, world=world)


RANKS = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "ROLE_NAME": "default",
    "ROLE_RANK": "5",
    "ROLE_WORLD_SIZE": "8",
    "TORCHELASTIC_RUN_ID": "procs",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_USE_AGENT_STORE": "False",
}
RENDEZVOUS = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "4711"}


@pytest.mark.parametrize(
    ("inherited", "expected"),
    [
        ({}, RANKS | RENDEZVOUS),
        ({"PATH": "/bin"}, {"PATH": "/bin"} | RANKS | RENDEZVOUS),
        # Where the user says where to meet, that is where; who a worker is, only we know.
        ({"MASTER_PORT": "1"}, RANKS | RENDEZVOUS | {"MASTER_PORT": "1"}),
        ({"RANK": "77", "WORLD_SIZE": "99"}, RANKS | RENDEZVOUS),
    ],
)
def test_the_environment_of_a_worker(inherited: dict[str, str], expected: dict[str, str]) -> None:
    assert born(inherited, **RENDEZVOUS).environment() == expected


def test_a_command_removes_variables() -> None:
    start = Start(BootstrapCommand("echo", None, [], {"HOME": None, "A": "1"}))
    found = msgspec.structs.replace(born({"HOME": "/root"}), start=start).environment()
    assert found == RANKS | {"A": "1"}


PARENT = born(**RENDEZVOUS)


@pytest.mark.parametrize(
    ("ours", "overrides", "parent", "expected"),
    [
        ({"A": "1"}, None, None, {"A": "1"}),
        ({"A": "1"}, {"A": "2", "B": "3"}, None, {"A": "2", "B": "3"}),
        ({"A": "1"} | dict.fromkeys(LEAKS, "leaked"), None, None, {"A": "1"}),
        # What somebody asks for is not a leak.
        ({"TERM": "xterm"}, {"TERM": "dumb"}, None, {"TERM": "dumb"}),
        # A script under torchrun has a rank of its own, which its workers override.
        (RANKS, None, None, RANKS),
        # A worker that spawns others: not its rank, and not its rendezvous, which would mix two groups up ...
        (RANKS | RENDEZVOUS | {"A": "1"}, None, PARENT, {"A": "1"}),
        # ... unless its user has set another one since.
        (RANKS | RENDEZVOUS | {"MASTER_PORT": "1"}, None, PARENT, {"MASTER_PORT": "1"}),
        (RANKS | RENDEZVOUS, {"MASTER_PORT": "4711"}, PARENT, {"MASTER_PORT": "4711"}),
    ],
)
def test_what_is_inherited(
    monkeypatch: pytest.MonkeyPatch, ours: dict[str, str], overrides: Any, parent: Any, expected: dict[str, str]
) -> None:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name, value in ours.items():
        monkeypatch.setenv(name, value)
    assert inherited_environment(overrides, parent) == expected


def test_the_import_path_is_spelled_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", "sub", "/usr/lib"])
    assert inherited_path() == (str(tmp_path), str(tmp_path / "sub"), "/usr/lib")


def test_files_of_the_interpreter_are_distinguished_from_the_users(tmp_path: Path) -> None:
    packages, library = sysconfig.get_path("purelib"), sysconfig.get_path("stdlib")
    path = (str(tmp_path), library, f"{library}/lib-dynload", packages, f"{packages}/egg")
    assert installed_path(path) == path[1:]


@pytest.mark.parametrize("same", [True, False], ids=["the same interpreter", "another one"])
def test_the_import_path_of_a_worker(monkeypatch: pytest.MonkeyPatch, same: bool) -> None:
    """Another interpreter keeps its own packages and gets the user's folders besides."""
    world = msgspec.structs.replace(
        born().world,
        prefix=sys.prefix if same else "/elsewhere",
        search_path=("/user", "/elsewhere/lib", "/shared"),
        installed=("/elsewhere/lib",),
    )
    monkeypatch.setattr(sys, "path", ["/here/lib", "/shared"])
    expected = ["/user", "/elsewhere/lib", "/shared"] if same else ["/here/lib", "/shared", "/user"]
    assert msgspec.structs.replace(born(), world=world).search_path() == expected
