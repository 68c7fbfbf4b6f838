"""The ledger: whose business a failure is, what of a mesh is to be healed, and what is forgotten."""

from __future__ import annotations

import contextvars
from typing import Any

import pytest

from meshbook.runtime.actor.future import Future
from meshbook.runtime.node.ledger import Ledger, OwnedMesh

NODES = ("p.0", "p.1", "p.2")


def owned_mesh(key: str, *nodes: str, owner: str = "", are_processes: bool = False) -> OwnedMesh:
    ranks = {node: rank for rank, node in enumerate(nodes)}
    here = contextvars.copy_context()
    return OwnedMesh(
        *(key, key, owner, ranks),
        stop=lambda reason: Future.completed(None),
        handle=lambda: key,
        context=here,
        restart=lambda ranks: [],
        are_processes=are_processes,
    )


@pytest.fixture
def ledger() -> Ledger:
    """Processes p.0, p.1 and p.2, with two actor meshes on all of them, the second of another owner."""
    made = Ledger()
    made.add(owned_mesh("p", "p.0", "p.1", "p.2", are_processes=True))
    made.add(owned_mesh("a", "p.0", "p.1", "p.2"))
    made.add(owned_mesh("b", "p.0", "p.1", "p.2", owner="somebody"))
    return made


def lost(ledger: Ledger, node: str, *, stopped: bool = False) -> list[tuple[str, list[int]]]:
    """Which charges are told, of which crashed ranks."""
    told = ledger.lose(node, "killed", stopped=stopped)
    return [(owned_mesh.key, failure.crashed_ranks) for owned_mesh, failure in told]


def to_renew(ledger: Ledger, restarted: set[str], alive: set[str] = frozenset()) -> list[Any]:  # type: ignore[assignment]
    return [(owned_mesh.key, ranks) for owned_mesh, ranks in ledger.heal_actors(restarted=restarted, alive=alive)]


def test_owners_of_actors_hear_of_those_and_not_of_the_process(ledger: Ledger) -> None:
    assert lost(ledger, "p.1") == [("a", [1]), ("b", [1])]
    assert lost(ledger, "p.1") == []
    assert lost(ledger, "p.0") == [("a", [0]), ("b", [0])]


def test_without_living_actors_it_is_the_process_that_failed(ledger: Ledger) -> None:
    ledger.end("a", ["p.0"])
    ledger.fail("a", "p.1", "raised")
    assert lost(ledger, "p.0") == [("p", [0]), ("b", [0])]
    assert lost(ledger, "p.1") == [("p", [1]), ("b", [1])]


def test_a_failure_is_reported_once_until_it_is_healed(ledger: Ledger) -> None:
    told = ledger.fail("a", "p.2", "raised")
    assert told is not None
    assert told[1].crashed_ranks == [2]
    assert ledger.fail("a", "p.2", "raised") is None
    assert lost(ledger, "p.2") == [("p", [2]), ("b", [2])]
    assert ledger.heal("p") == [2]
    assert to_renew(ledger, {"p.2"}) == [("a", [2]), ("b", [2])]
    assert lost(ledger, "p.2") == [("a", [2]), ("b", [2])]


def test_what_is_well_is_not_healed(ledger: Ledger) -> None:
    assert ledger.heal("p") == []
    assert to_renew(ledger, set(), {"p.0", "p.1", "p.2"}) == []
    assert ledger.heal("nothing") == []


def test_healed_are_all_actors_of_a_new_process_and_in_old_ones_those_that_failed(ledger: Ledger) -> None:
    ledger.fail("a", "p.0", "raised")
    lost(ledger, "p.2")
    lost(ledger, "p.1")
    assert ledger.heal("p") == [1, 2]
    assert ledger.heal("p") == []
    assert to_renew(ledger, {"p.1", "p.2"}, {"p.0"}) == [("a", [0, 1, 2]), ("b", [1, 2])]
    assert to_renew(ledger, set(), {"p.0", "p.1", "p.2"}) == []


def test_an_actor_that_is_spawned_in_a_dead_process_is_created_in_the_new_one(ledger: Ledger) -> None:
    """Nobody has told that it failed: its spawn did."""
    lost(ledger, "p.1")
    ledger.add(owned_mesh("late", "p.1"))
    assert to_renew(ledger, {"p.1"}) == [("a", [1]), ("b", [1]), ("late", [0])]


def test_what_was_stopped_is_forgotten_and_not_healed(ledger: Ledger) -> None:
    ledger.end("a", ["p.1"])
    ledger.fail("b", "p.1", "raised")
    ledger.end("b", NODES)
    assert ledger.fail("a", "p.1", "late news") is None
    lost(ledger, "p.1")
    assert to_renew(ledger, {"p.1"}) == []
    for node in ("p.0", "p.1", "p.2"):
        lost(ledger, node, stopped=True)
    assert len(ledger) == 0


def test_with_processes_that_do_not_come_again_their_actors_are_forgotten(ledger: Ledger) -> None:
    """Some had failed before their mesh was stopped, and nobody will tell of their end."""
    lost(ledger, "p.0")
    ledger.end("p", NODES)
    for node in ("p.1", "p.2"):
        lost(ledger, node, stopped=True)
    assert len(ledger) == 2
    ledger.forget({"p.0", "p.1", "p.2"})
    assert len(ledger) == 0


def test_a_failure_says_of_which_mesh_it_is_and_what_was_known_then(ledger: Ledger) -> None:
    told = [ledger.fail("b", f"p.{rank}", f"report {rank}") for rank in (2, 0)]
    assert [(owned_mesh.key, owned_mesh.owner) for owned_mesh, _ in filter(None, told)] == [("b", "somebody")] * 2
    failures = [failure for _, failure in filter(None, told)]
    assert [(failure.mesh_name, failure.crashed_ranks) for failure in failures] == [("b", [2]), ("b", [0])]
    assert [failure.report() for failure in failures] == ["report 2", "report 0"]
    assert failures[0].mesh == "b"


def test_where_a_mesh_has_failed_is_known_until_it_is_healed_or_stopped(ledger: Ledger) -> None:
    assert set(ledger.failed_nodes("a")) == set()
    ledger.fail("a", "p.1", "raised")
    lost(ledger, "p.2")
    assert set(ledger.failed_nodes("a")) == {"p.1", "p.2"}
    assert set(ledger.failed_nodes("b")) == {"p.2"}
    to_renew(ledger, {"p.2"})
    assert set(ledger.failed_nodes("a")) == {"p.1"}
    ledger.end("a", ["p.1"])
    assert set(ledger.failed_nodes("a")) == set()
    assert set(ledger.failed_nodes("nothing")) == set()


def test_unknown_meshes_and_nodes_have_no_effect(ledger: Ledger) -> None:
    assert ledger.fail("nothing", "p.0", "raised") is None
    assert lost(ledger, "q.0") == []
    ledger.end("nothing", ["p.0"])
    assert len(ledger) == 3


def test_an_actor_owns_the_newest_first(ledger: Ledger) -> None:
    """What was spawned on processes ends before them."""
    ledger.add(owned_mesh("q", "q.0", owner="somebody", are_processes=True))
    ledger.add(owned_mesh("c", "q.0", owner="somebody"))
    assert [each.key for each in ledger.of("somebody")] == ["c", "q", "b"]
    assert ledger.of("nobody") == []


@pytest.mark.parametrize("steps", ["012", "0 12", "2 20 1", "0123456789"])
def test_a_mesh_is_forgotten_with_its_last_rank(ledger: Ledger, steps: str) -> None:
    *before, last = [[f"p.{rank}" for rank in step] for step in steps.split()]
    for nodes in before:
        ledger.end("a", nodes)
        assert ledger.get("a") is not None
    ledger.end("a", last)
    assert ledger.get("a") is None
    assert len(ledger) == 2


def test_in_a_mesh_that_was_resized_the_ranks_are_others(ledger: Ledger) -> None:
    """What has failed has, and what is gone is gone."""
    for node in ("p.1", "p.2"):
        ledger.fail("a", node, "raised")
    ledger.forget({"p.1"})
    ledger.move("a", {"p.0": 0, "p.3": 1, "p.2": 2, "p.4": 3})
    told = ledger.fail("a", "p.3", "raised")
    assert told is not None
    assert told[1].crashed_ranks == [1]
    assert set(ledger.failed_nodes("a")) == {"p.2", "p.3"}
    assert ledger.heal("a") == [1, 2]
