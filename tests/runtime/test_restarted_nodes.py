"""A node that comes again by the name of one that has ended: what others make of that, in whatever order they hear."""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from meshbook.runtime.actor.future import Future
from meshbook.runtime.config import Settings
from meshbook.runtime.errors import CallTimeout, ExitReport, ProcessDied, SupervisionError
from meshbook.runtime.node.control import CONTROL
from meshbook.runtime.node.ledger import OwnedMesh
from meshbook.runtime.node.node import Node
from meshbook.runtime.wire.messages import Down, Hello
from tests.support import PATIENCE, Probe

BEFORE = ExitReport("worker-0", 4711, -9, incarnation=0)  # the end of the first life


@pytest.fixture
def rebirth(session: Any) -> Callable[..., Node]:
    """Ends a worker, without a notice, and starts it again."""

    def make(node: Node, incarnation: int = 1) -> Node:
        node.close()
        chosen = Settings()
        made = Node(session._connect(node.address.node, chosen), "run", chosen, incarnation)
        made.start()
        session._nodes.append(made)
        return made

    return make


def call_back(session: Any, node: Node) -> Any:
    """Let this node call an actor of the controller's; the future of what that answers."""
    there, here = session.spawn_probe(node), session.spawn_probe(session.controller)
    return there.run.call_one(lambda: here.run.call_one(len, "four").get(PATIENCE))


def declare_down(session: Any) -> None:
    session.controller.peers.on_down(Down("agent", [BEFORE]), ())


def test_notified_of_the_end_and_then_of_the_new_incarnation(session: Any, rebirth: Any) -> None:
    """The calls to the one before have failed, and those to the next reach it; what it calls is answered."""
    [node] = session.workers(1)
    assert call_back(session, node).get(PATIENCE) == 4
    declare_down(session)
    with pytest.raises(ProcessDied):
        session.spawn_probe(node).run.call_one(len, "").get(PATIENCE)
    again = rebirth(node)
    session.controller.peers.begin_again(again.address, 1)
    assert session.controller.peers.report_of("worker-0") is None
    assert call_back(session, again).get(PATIENCE) == 4


def test_notified_of_the_new_incarnation_first(session: Any, rebirth: Any, gate: Any) -> None:
    """Callers of the previous incarnation get an error at once, and a notice of its end does not concern the next."""
    [node] = session.workers(1)
    held = session.spawn_probe(node).run.call_one(gate.pass_through)
    gate.wait_entered()
    again = rebirth(node)
    session.controller.peers.begin_again(again.address, 1)
    with pytest.raises(SupervisionError, match="it has exited and was restarted"):
        held.get(PATIENCE)
    declare_down(session)
    assert session.controller.peers.report_of("worker-0") is None
    assert call_back(session, again).get(PATIENCE) == 4
    gate.open()


def test_notified_of_the_new_incarnation_by_itself(session: Any, rebirth: Any) -> None:
    """It greets, and is answered: the agent's word may come later, and changes nothing any more."""
    [node] = session.workers(1)
    assert call_back(session, node).get(PATIENCE) == 4
    declare_down(session)
    again = rebirth(node)
    told: list[str] = []
    session.controller.peers.when_restarted.append(told.append)
    asked = again.calls.ask(session.controller.address, CONTROL, "where", "absent", "x", 1)
    assert str(asked.get(PATIENCE)) == "not spawned yet"
    session.controller.peers.begin_again(again.address, 1)
    assert told == ["worker-0"]
    assert call_back(session, again).get(PATIENCE) == 4


def test_a_node_that_had_never_answered_sends_before_its_end_is_known(session: Any, rebirth: Any) -> None:
    """It was known by its address alone, and stopped, or cut off. The next one does not know its senders."""
    deaf = Node(session._connect("worker-0", Settings()), "run", Settings())  # it receives nothing
    lost = session.refer(Probe, "nobody", deaf).run.call_one(len, "")
    again = rebirth(deaf)
    asked = again.calls.ask(session.controller.address, CONTROL, "where", "absent", "x", 1)
    assert str(asked.get(PATIENCE)) == "not spawned yet"
    declare_down(session)
    with pytest.raises(SupervisionError):  # that it has ended, or of the next one that it has no such actor
        lost.get(PATIENCE)
    assert call_back(session, again).get(PATIENCE) == 4


def test_what_was_sent_to_one_that_has_ended_takes_no_room_in_the_next_one(make_session: Any) -> None:
    """Also where the next one sent before the end was known."""
    session = make_session(queue_messages=1)
    deaf = Node(session._connect("worker-0", Settings()), "run", Settings())
    session.refer(Probe, "nobody@controller", deaf).run.broadcast(len, "")
    session.controller.peers.on_hello(Hello(deaf.address, "run", incarnation=1), ())
    declare_down(session)
    with pytest.raises(CallTimeout, match="timed out"):  # it was sent
        session.refer(Probe, "nobody@controller", deaf).run.within(0.1).call_one(len, "").get(PATIENCE)
    deaf.close()


def test_a_node_without_an_earlier_incarnation_accepts_the_present_one(session: Any) -> None:
    """A node that is born after it: nothing that waits for it is lost by its greeting."""
    chosen = Settings()
    node = Node(session._connect("worker-9", chosen), "run", chosen, 3)
    node.start()
    session._nodes.append(node)
    assert call_back(session, node).get(PATIENCE) == 4
    assert session.controller.peers.report_of("worker-9") is None


def test_it_neither_numbers_its_calls_nor_names_its_actors_as_before(session: Any, rebirth: Any) -> None:
    """So that nothing that was meant for the one before is taken for its own."""
    [node] = session.workers(1)
    again = rebirth(node)
    names = {made.supervision.name_actor("x") for made in (node, again) for _ in range(3)}
    numbers = {made.ports.open(once=False)[0] for made in (node, again) for _ in range(3)}
    assert (len(names), len(numbers)) == (6, 6)


@pytest.mark.parametrize(("stopped", "again"), [(["worker-0"], [1]), (["worker-0", "worker-1"], None)])
def test_actors_that_are_stopped_while_they_are_healed(session: Any, stopped: list[str], again: list[int]) -> None:
    """They stay stopped, and the healing of all others goes on."""
    made: dict[str, list[int]] = {}
    ledger, nothing = session.controller.ledger, cast("Any", None)

    def create(key: str, ranks: Sequence[int]) -> list[Future[Any]]:
        made[key] = list(ranks)
        return [Future.completed(None) for _ in ranks]

    for key in ("one", "other"):
        ranks, create_it = {"worker-0": 0, "worker-1": 1}, functools.partial(create, key)
        ledger.add(OwnedMesh(key, key, "", ranks, nothing, nothing, contextvars.copy_context(), create_it))
    lost = ledger.heal_actors(restarted={"worker-0", "worker-1"})
    ledger.end("one", stopped)
    begun = session.controller.supervision.create_again(lost, restarted=[])
    assert made.get("one") == again
    assert made["other"] == [0, 1]
    assert len(begun) == 2 + len(again or ())


def test_what_is_not_created_again_is_not_waited_for(session: Any, rebirth: Any) -> None:
    """A message may come before its actor does, but only if a process is about to create it."""
    [node] = session.workers(1)
    again = rebirth(node)
    session.controller.peers.begin_again(again.address, 1)
    numbered = [session.controller.supervision.name_actor("old") for _ in range(2)]
    waiting = session.refer(Probe, numbered[0], again).run.call_one(len, "")
    session.controller.supervision.create_again([], restarted=[again.address])
    for future in (waiting, session.refer(Probe, numbered[1], again).run.call_one(len, "")):
        with pytest.raises(SupervisionError, match="it was stopped, or never spawned"):
            future.get(PATIENCE)
