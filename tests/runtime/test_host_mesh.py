"""The handle of hosts, as far as it needs none: which interpreter it chooses."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from meshbook.runtime.geometry import Extent
from meshbook.runtime.mesh.hosts import HostMesh
from meshbook.runtime.wire.messages import Address

AGENTS = [Address(f"agent-{number}", f"memory://agent-{number}") for number in range(2)]


def hosts(**keywords: Any) -> HostMesh:
    return HostMesh(AGENTS, Extent.of(hosts=2).region, "memory://", **keywords)


def python_of(mesh: HostMesh) -> str:
    return mesh._world("procs", mesh.extent, AGENTS[0], None, None).python


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
