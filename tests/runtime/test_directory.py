"""Messages for actors that are not there: ended long ago, still to come, or never to come."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from meshbook.runtime.errors import SupervisionError
from meshbook.runtime.geometry import Extent
from meshbook.runtime.mesh.actors import ActorMesh
from meshbook.runtime.node import directory
from meshbook.runtime.node.calls import Gather, Target
from meshbook.runtime.node.node import Node
from tests.runtime.conftest import PATIENCE, Gate, Probe

HERE = Extent((), ())


def spawn(spawner: Node, node: Node, *, key: str = "") -> Probe:
    """A probe whose key tells who spawned it, and how many that had spawned before."""
    target = [Target(node.address, key or spawner.name_actor("probe"))]
    asker = Gather(HERE.region)
    spawner.spawn(target, (Probe, (), {}), HERE, asker)
    return cast("Probe", ActorMesh("probe", Probe, target, HERE.region, asker.future.then(lambda _: None)))


def test_whoever_ended_is_never_taken_for_one_still_to_come(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many others have ended since, a call to one of the last that its spawner sent is answered."""
    monkeypatch.setattr(directory, "REMEMBERED", 2)
    (worker,) = session.workers(1)
    probes: list[Any] = [spawn(session.controller, worker) for _ in range(6)]
    for probe in probes:
        probe.stop("enough").get(PATIENCE)
    for probe in probes:
        with pytest.raises(SupervisionError, match="enough"):
            probe.noted.call_one().get(PATIENCE)


def test_only_so_many_ends_are_remembered(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "REMEMBERED", 2)
    (worker,) = session.workers(1)
    old: Any = spawn(session.controller, worker)
    old.stop("enough").get(PATIENCE)
    for _ in range(100):  # numbers that are taken elsewhere
        session.controller.name_actor("other")
    for _ in range(3):
        newer: Any = spawn(session.controller, worker)
        newer.stop("enough").get(PATIENCE)
    with pytest.raises(SupervisionError, match="it was stopped, or never spawned"):
        old.noted.call_one().get(PATIENCE)


def test_what_a_process_sends_itself_while_its_actors_come_arrives(session: Any, gate: Gate) -> None:
    """From many threads: each calls actors that another one is about to spawn, in its own process."""
    node = session.controller
    keys = [node.name_actor("probe") for _ in range(40)]
    answers: list[Any] = []

    def call() -> None:
        gate.pass_through()
        for key in keys:
            mesh: Any = ActorMesh("probe", Probe, [Target(node.address, key)], HERE.region)
            asker = Gather(HERE.region)
            node.call(mesh._picked, "run", ((len, "abc"), {}), HERE, asker)
            answers.append(asker.future)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in threads:
        gate.wait_entered()
    gate.open(len(threads))
    for key in keys:
        spawn(node, node, key=key)
    for thread in threads:
        thread.join(PATIENCE)
    assert len(answers) == 160
    for answer in answers:
        assert list(answer.get(PATIENCE).values()) == [3]
