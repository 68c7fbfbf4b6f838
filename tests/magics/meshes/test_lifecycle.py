"""Changes of several meshes at once: what is done for each after an error or an interrupt."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from meshbook.magics.errors import MeshError
from meshbook.magics.meshes import lifecycle
from meshbook.magics.meshes.lifecycle import join
from meshbook.runtime.actor.future import Future


def test_a_mesh_that_hosts_join_is_followed_if_another_refuses_them() -> None:
    joined: Future[bool] = Future.pending()

    def refuse(hosts: object) -> None:
        raise ValueError("it was stopped")

    calls = {"a": joining(joined), "b": refuse}
    meshes: Any = [SimpleNamespace(name=name, procs=SimpleNamespace(join=call)) for name, call in calls.items()]
    hosts: Any = object()
    followed: list[str] = []
    with pytest.raises(MeshError, match="a, b: it was stopped"):
        join(meshes, hosts, lambda mesh: followed.append(mesh.name))
    assert followed == []
    joined.resolve(lambda: True)
    assert followed == ["a"]


def test_an_interrupted_join_follows_each_mesh_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    joins: dict[str, Future[bool]] = {"a": Future.pending(), "b": Future.pending()}
    monkeypatch.setattr(lifecycle, "MOMENT", 0)

    def interrupt() -> list[str]:
        signal.raise_signal(signal.SIGINT)
        return []

    meshes: Any = [
        SimpleNamespace(name=name, at_work=interrupt, procs=SimpleNamespace(join=joining(joined)))
        for name, joined in joins.items()
    ]
    hosts: Any = object()
    followed: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        join(meshes, hosts, lambda mesh: followed.append(mesh.name))
    assert capsys.readouterr().out == "the join of a continues; see %mesh status\n"
    for joined in joins.values():
        joined.resolve(lambda: True)
    assert followed == ["a", "b"]


def joining(joined: Future[bool]) -> Callable[[Any], Any]:
    return lambda hosts: SimpleNamespace(initialized=joined)
