"""Changes of several meshes at once: what is done for each if one of them fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from meshbook.magics.errors import MeshError
from meshbook.magics.meshes.lifecycle import join
from meshbook.runtime.actor.future import Future


def test_a_mesh_that_hosts_join_is_followed_if_another_refuses_them() -> None:
    joined: Future[bool] = Future.pending()

    def refuse(hosts: object) -> None:
        raise ValueError("it was stopped")

    calls = {"a": lambda hosts: SimpleNamespace(initialized=joined), "b": refuse}
    meshes: Any = [SimpleNamespace(name=name, procs=SimpleNamespace(join=call)) for name, call in calls.items()]
    hosts: Any = object()
    followed: list[str] = []
    with pytest.raises(MeshError, match="a, b: it was stopped"):
        join(meshes, hosts, lambda mesh: followed.append(mesh.name))
    assert followed == []
    joined.resolve(lambda: True)
    assert followed == ["a"]
