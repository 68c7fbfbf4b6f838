"""Who answers for which mesh: what an end or a failure means to whom. No node, no thread."""

from __future__ import annotations

import contextvars
from typing import Any

import pytest

from meshbook.runtime.actor.failure import MeshFailure
from meshbook.runtime.actor.future import Future
from meshbook.runtime.node.ledger import Charge, Ledger

NODES = {"n.0": 0, "n.1": 1, "n.2": 2}


def charge(key: str, owner: str = "", *, are_processes: bool = False, nodes: dict[str, int] = NODES) -> Charge:
    return Charge(
        key,
        key.partition("-")[0],
        owner,
        dict(nodes),
        stop=lambda reason: Future.completed(None),
        handle=lambda: f"a handle of {key}",
        context=contextvars.copy_context(),
        are_processes=are_processes,
    )


def ledger(*charges: Charge) -> Ledger:
    made = Ledger()
    for each in charges:
        made.add(each)
    return made


def told(found: list[tuple[Charge, MeshFailure]]) -> list[tuple[str, list[int]]]:
    """Whose charge failed, and which of its ranks have by now."""
    return [(each.key, failure.crashed_ranks) for each, failure in found]


def fail(ledger: Ledger, key: str, rank: int) -> list[int] | None:
    found = ledger.fail(key, rank, "why")
    return None if found is None else found[1].crashed_ranks


# -- failures of actors ------------------------------------------------------------------


def test_a_failure_names_the_mesh_and_all_its_failed_ranks() -> None:
    book = ledger(charge("trainer-1", "owner-0"))
    assert fail(book, "trainer-1", 2) == [2]
    found = book.fail("trainer-1", 0, "it had enough")
    assert found is not None
    its, failure = found
    assert (its.key, its.owner) == ("trainer-1", "owner-0")
    assert (failure.mesh_name, failure.crashed_ranks, failure.report()) == ("trainer", [2, 0], "it had enough")
    assert failure.mesh == "a handle of trainer-1"


def test_a_failure_keeps_what_was_known_when_it_happened() -> None:
    book = ledger(charge("trainer-1"))
    found = book.fail("trainer-1", 2, "why")
    assert found is not None
    fail(book, "trainer-1", 0)
    assert found[1].crashed_ranks == [2]


def test_a_rank_fails_once() -> None:
    book = ledger(charge("trainer-1"))
    assert fail(book, "trainer-1", 2) == [2]
    assert fail(book, "trainer-1", 2) is None


@pytest.mark.parametrize("ended", [[2], [0, 2], [0, 1, 2]], ids=["it alone", "with another", "all"])
def test_what_was_stopped_does_not_fail_any_more(ended: list[int]) -> None:
    book = ledger(charge("trainer-1"))
    book.end("trainer-1", ended)
    assert fail(book, "trainer-1", 2) is None


def test_nobody_answers_for_a_mesh_that_is_not_here() -> None:
    assert fail(ledger(charge("trainer-1")), "trainer-2", 0) is None


# -- ends --------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [[[0, 1, 2]], [[0], [1, 2]], [[2], [2, 0], [1]], [range(10)]])
def test_a_mesh_is_forgotten_with_its_last_rank(steps: list[Any]) -> None:
    book = ledger(charge("trainer-1"), charge("other-2"))
    for ranks in steps[:-1]:
        book.end("trainer-1", ranks)
        assert book.get("trainer-1") is not None
    book.end("trainer-1", steps[-1])
    assert book.get("trainer-1") is None
    assert len(book) == 1


def test_ending_what_is_not_here_is_no_error() -> None:
    book = ledger()
    book.end("trainer-1", [0])
    assert len(book) == 0


def test_an_actor_owns_the_newest_first() -> None:
    book = ledger(charge("procs", "owner-0"), charge("other-1", "owner-9"), charge("trainer-2", "owner-0"))
    assert [each.key for each in book.of("owner-0")] == ["trainer-2", "procs"]
    assert book.of("nobody-7") == []


# -- processes that end --------------------------------------------------------------------


def test_every_actor_mesh_on_a_lost_process_has_failed_there() -> None:
    book = ledger(charge("one-1"), charge("two-2", "owner-0"), charge("elsewhere-3", nodes={"m.0": 0}))
    assert told(book.lose("n.1", "why", stopped=False)) == [("one-1", [1]), ("two-2", [1])]
    assert told(book.lose("n.1", "why", stopped=False)) == []
    assert told(book.lose("n.0", "why", stopped=False)) == [("one-1", [1, 0]), ("two-2", [1, 0])]


def test_a_process_that_was_stopped_is_no_failure() -> None:
    book = ledger(charge("procs", are_processes=True), charge("one-1"))
    for node in NODES:
        assert book.lose(node, "why", stopped=True) == []
    assert len(book) == 0


def test_who_has_no_actors_in_a_lost_process_hears_of_the_process() -> None:
    book = ledger(charge("procs", are_processes=True), charge("theirs-1", "owner-0"))
    assert told(book.lose("n.2", "why", stopped=False)) == [("procs", [2]), ("theirs-1", [2])]


def test_who_has_actors_there_hears_of_those_alone() -> None:
    book = ledger(charge("procs", are_processes=True), charge("one-1"), charge("two-2"))
    assert told(book.lose("n.2", "why", stopped=False)) == [("one-1", [2]), ("two-2", [2])]


def test_an_actor_that_failed_before_its_process_was_lost_is_not_told_of_twice() -> None:
    """But the process is: nobody has heard of that yet."""
    book = ledger(charge("procs", are_processes=True), charge("one-1"))
    fail(book, "one-1", 2)
    assert told(book.lose("n.2", "why", stopped=False)) == [("procs", [2])]


def test_an_actor_that_was_stopped_before_its_process_was_lost_is_no_failure() -> None:
    book = ledger(charge("procs", are_processes=True), charge("one-1"))
    book.end("one-1", [2])
    assert told(book.lose("n.2", "why", stopped=False)) == [("procs", [2])]
