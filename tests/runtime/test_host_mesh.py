"""The handle of hosts, as far as it needs none: its owner, and which interpreter it chooses."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from meshbook.runtime.geometry import Extent
from meshbook.runtime.hosts.session import running_session, shutdown_context
from meshbook.runtime.mesh.hosts import HostMesh
from meshbook.runtime.wire.messages import Address

AGENTS = [Address(f"agent-{number}", f"memory://agent-{number}") for number in range(2)]


def hosts(**keywords: Any) -> HostMesh:
    return HostMesh(AGENTS, Extent.of(hosts=2).region, **keywords)


def python_of(mesh: HostMesh) -> str:
    return mesh._world("procs", mesh.extent, AGENTS[0], None, None).python


REFERENCES = {
    "a slice": lambda mesh: mesh.slice(hosts=0),
    "a slice of everything": lambda mesh: mesh.slice(hosts=slice(None)),
    "renamed": lambda mesh: mesh.rename(hosts="machines"),
    "unpickled": lambda mesh: pickle.loads(pickle.dumps(mesh)),
    "a slice of another interpreter": lambda mesh: mesh.with_python_executable("python").slice(hosts=1),
}


@pytest.mark.parametrize("end", [HostMesh.shutdown, HostMesh.stop, lambda mesh: mesh.__aenter__().send(None)])
@pytest.mark.parametrize("refer", REFERENCES)
def test_only_the_owner_ends_hosts(refer: str, end: Any) -> None:
    reference = REFERENCES[refer](hosts(owned=True))
    with pytest.raises(RuntimeError, match="cannot shut down `HostMesh` that is a reference instead of owned"):
        end(reference)


@pytest.mark.parametrize("refer", REFERENCES)
def test_references_know_where_hosts_come_from(refer: str) -> None:
    assert REFERENCES[refer](hosts(owned=True, is_fake_in_process=True)).is_fake_in_process
    assert not REFERENCES[refer](hosts()).is_fake_in_process


def test_nothing_is_spawned_on_hosts_that_are_gone() -> None:
    mesh = hosts(owned=True)
    part, twin = mesh.slice(hosts=0), mesh.with_python_executable("python")
    mesh.note_end()
    for each in (mesh, part, twin):
        with pytest.raises(RuntimeError, match="HostMesh has already been shut down"):
            each.spawn_procs()
    assert mesh.shutdown().get(0) is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("python3", "python3"),  # is looked up on PATH
        ("/usr/bin/python3", "/usr/bin/python3"),
        (Path("/usr/bin/python3"), "/usr/bin/python3"),
        ("bin/python", str(Path.cwd() / "bin/python")),  # workers may run elsewhere
    ],
)
def test_an_interpreter_is_for_the_new_handle_alone(session: Any, given: Any, expected: str) -> None:
    mesh = hosts()
    chosen = mesh.with_python_executable(given)
    assert [python_of(each) for each in (chosen, chosen.slice(hosts=0), pickle.loads(pickle.dumps(chosen)), mesh)] == [
        expected,
        expected,
        expected,
        "",
    ]
    assert chosen.extent == mesh.extent


def test_an_interpreter_has_a_name() -> None:
    with pytest.raises(ValueError, match="with_python_executable"):
        hosts().with_python_executable("")


@pytest.mark.parametrize("timeout", [-1, float("inf"), float("nan")])
def test_a_timeout_that_is_none(timeout: float) -> None:
    with pytest.raises(ValueError, match="host_timeout must be a finite number"):
        shutdown_context(timeout)


def test_without_a_client_there_is_nothing_to_shut_down() -> None:
    assert running_session() is None
    assert shutdown_context().get(0) is None
