"""Another process becomes a node: what that had spawned continues, no message to it is lost, no caller waits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from meshbook.runtime.actor.context import CURRENT, Context, Instance
from meshbook.runtime.config import Settings
from meshbook.runtime.errors import SupervisionError
from meshbook.runtime.geometry import SCALAR
from meshbook.runtime.node.flow_control import size_of
from meshbook.runtime.node.node import Node
from meshbook.runtime.transport.unix import UnixTransport
from meshbook.runtime.wire import pickling
from meshbook.runtime.wire.frames import is_whole
from meshbook.runtime.wire.messages import HoldRequest, Reply
from tests.support import PATIENCE, Probe

Succeed = Callable[..., Node]


@pytest.fixture
def succeed(session: Any) -> Succeed:
    """Lets another node become the controller; `is_asked`: after the others were asked to hold what they send."""

    def make(peers: list[Node], *, is_asked: bool = True) -> Node:
        before: Node = session.controller
        if is_asked:
            for answer in before.peers.ask_to_hold([peer.address for peer in peers]):
                answer.get(PATIENCE)
        return leave_to_another(session, peers)

    return make


def leave_to_another(session: Any, peers: list[Node]) -> Node:
    before: Node = session.controller
    before.close()
    made = Node(session._connect("controller", Settings()), "run", Settings(), before.incarnation + 1, takes_over=True)
    session.controller = made
    session._nodes.append(made)
    for peer in peers:
        made.routes.trust(peer.address)
    return made


def begin(node: Node, peers: list[Node]) -> Node:
    node.start()
    node.peers.greet([peer.address for peer in peers])
    return node


def call_again(session: Any, probe: Any) -> Any:
    """The same actor, called by the present controller."""
    [target] = probe._targets
    return session.refer(Probe, target.actor, next(node for node in session._nodes if node.address == target.address))


@pytest.mark.parametrize("is_asked", [True, False])
def test_what_was_spawned_goes_on(session: Any, succeed: Succeed, is_asked: bool) -> None:
    """Also without a request to hold messages: the previous process was killed."""
    [node] = session.workers(1)
    probe = session.spawn_probe(node)
    probe.note.call_one("before").get(PATIENCE)
    begin(succeed([node], is_asked=is_asked), [node])
    with session_of(session):
        again = call_again(session, probe)
        assert again.noted.call_one().get(PATIENCE) == ["before"]
        assert session.spawn_probe(node).run.call_one(len, "four").get(PATIENCE) == 4


def test_what_is_sent_meanwhile_comes_to_the_next_one_in_order(session: Any, succeed: Succeed, gate: Any) -> None:
    """The successor gets the answer to a call of its predecessor once it adopts it."""
    [node] = session.workers(1)
    probe = session.spawn_probe(node)
    held = probe.run.call_one(gate.pass_through, "an answer")
    gate.wait_entered()
    [(_, target, number)] = held.pending_call.unanswered()
    successor = succeed([node])
    gate.open()
    [adopted] = successor.calls.adopt([target], [number], "run")
    begin(successor, [node])
    assert adopted.get(PATIENCE) == "an answer"


def test_what_is_in_shared_memory_for_the_one_before_comes_to_the_next(session: Any, succeed: Succeed) -> None:
    """Its frame was made before it was known that another process would get it."""
    [node] = session.workers(1)
    probe = session.spawn_probe(node)
    value = bytes(range(256)) * 10_000
    for _ in range(2):  # from the second one on there is nothing but a reference in frames
        assert probe.run.call_one(bytes, value).get(PATIENCE) == value
    [target] = probe._picked
    number = 1 << 30
    body = pickling.dumps(value, "a value")
    to = session.controller.address
    frame = node.bulk.pack(Reply(node.address.node, number, "ok"), body, size_of(body), to)
    assert is_whole(frame) == (not isinstance(node._transport, UnixTransport))
    successor = succeed([node])
    node.routes.send(to, frame)
    [adopted] = successor.calls.adopt([target], [number], "run")
    begin(successor, [node])
    assert adopted.get(PATIENCE) == value


def test_callers_of_the_previous_incarnation_get_an_error(session: Any, succeed: Succeed, gate: Any) -> None:
    [node] = session.workers(1)
    here = session.spawn_probe(session.controller)
    there = session.spawn_probe(node)
    asked = there.run.call_one(lambda: str(here.run.call_one(gate.pass_through).exception(PATIENCE)))
    [(_, target, number)] = asked.pending_call.unanswered()
    gate.wait_entered()
    successor = succeed([node])
    [adopted] = successor.calls.adopt([target], [number], "run")
    begin(successor, [node])
    assert "handed over while the call was pending" in adopted.get(PATIENCE)
    gate.open()
    with session_of(session):
        again = call_again(session, there)
        with pytest.raises(SupervisionError, match="no actor"):  # what that process hosted itself is gone
            raise again.run.call_one(lambda: here.noted.call_one().exception(PATIENCE)).get(PATIENCE)


def test_one_that_stays_after_all(session: Any) -> None:
    """It has asked the others to hold what they send, and then cannot go."""
    [node] = session.workers(1)
    probe = session.spawn_probe(node)
    [held] = session.controller.peers.ask_to_hold([node.address])
    held.get(PATIENCE)
    asked = probe.run.call_one(len, "four")
    session.controller.peers.greet([node.address])
    assert asked.get(PATIENCE) == 4


@contextlib.contextmanager
def session_of(session: Any) -> Iterator[None]:
    """Be the client of the present controller."""
    token = CURRENT.set(Context(Instance("client", "client", SCALAR.point(0), session.controller)))
    try:
        yield
    finally:
        CURRENT.reset(token)


def test_a_late_notified_sender_sends_to_the_next_incarnation(session: Any, succeed: Succeed) -> None:
    """A process that was stopped takes in what came meanwhile in any order."""
    [node] = session.workers(1)
    probe = session.spawn_probe(node)
    probe.note.call_one("before").get(PATIENCE)
    begin(succeed([node]), [node])
    with session_of(session):
        again = call_again(session, probe)
        assert again.noted.call_one().get(PATIENCE) == ["before"]
        node.peers.on_handover(HoldRequest("controller", 1, incarnation=0), ())
        assert again.noted.call_one().get(PATIENCE) == ["before"]
