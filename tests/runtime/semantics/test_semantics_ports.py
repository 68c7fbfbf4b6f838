"""Semantics: ports, and messages that come back."""

from __future__ import annotations

from typing import Any

import pytest

from meshbook import Actor, Channel, SupervisionError, UndeliverableMessageEnvelope, context, endpoint
from meshbook.runtime.mesh.actors import current_node
from meshbook.runtime.mesh.host_ownership import when_ended
from tests.support import PATIENCE

# -- 40 --------------------------------------------------------------------------------


class Teller(Actor):
    @endpoint
    def tell(self, port: Any, value: Any) -> None:
        port.send(value)

    @endpoint
    def hear_of_the_end(self, node: str) -> None:
        """Return when the process that it is in has heard of the end of another."""
        when_ended(current_node(), [node]).get(PATIENCE)

    @endpoint
    def echo(self, port: Any) -> Any:
        return port

    @endpoint
    def end(self) -> None:
        raise SystemExit

    @endpoint
    def forward(self, teller: Any, port: Any, value: Any) -> None:
        teller.tell.call(port, value).get(PATIENCE)


def test_40_each_holder_of_a_port_sends_under_its_own_name(world: Any) -> None:
    """A port that travelled on says the rank of the actor that has it now, within the mesh that was called there."""
    procs = world.procs(3)
    tellers, others = procs.spawn("teller", Teller), procs.slice(gpus=slice(1, 3)).spawn("other", Teller)
    port, told = Channel[str].open_ranked()
    tellers.tell.call(port, "direct").get(PATIENCE)
    assert sorted(told.recv().get(PATIENCE) for _ in range(3)) == [(rank, "direct") for rank in range(3)]
    tellers.slice(gpus=2).forward.call_one(others, port, "forwarded").get(PATIENCE)
    assert sorted(told.recv().get(PATIENCE) for _ in range(2)) == [(0, "forwarded"), (1, "forwarded")]
    port.send("from the client")
    assert told.recv().get(PATIENCE) == (0, "from the client")


class Sender(Actor):
    """Sends what nobody answers, and tells what comes back."""

    def __init__(self, gate: Any, verdict: Any = True) -> None:
        self.gate = gate
        self.verdict = verdict

    def _handle_undeliverable_message(self, envelope: UndeliverableMessageEnvelope) -> Any:
        assert isinstance(envelope, UndeliverableMessageEnvelope)
        self.gate.tell((envelope.sender(), envelope.dest(), envelope.error_msg()[:1000]))
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict

    @endpoint
    def broadcast(self, teller: Any, port: Any) -> str:
        teller.tell.broadcast(port, "for nobody")
        return context().actor_instance.actor_id

    @endpoint
    def send(self, port: Any, returns: bool = True) -> str:
        port.return_undeliverable = returns
        port.send("for nobody")
        return context().actor_instance.actor_id

    @endpoint
    def call(self, teller: Any, port: Any) -> str:
        return type(teller.tell.call(port, "for nobody").exception(PATIENCE)).__name__

    @endpoint
    def open_port(self) -> Any:
        port, self.receiver = Channel[str].open()
        return port


class AsyncSender(Actor):
    """The same on a loop."""

    def __init__(self, gate: Any) -> None:
        self.gate = gate

    async def _handle_undeliverable_message(self, envelope: UndeliverableMessageEnvelope) -> bool:
        self.gate.tell((envelope.sender(), envelope.dest(), envelope.error_msg()[:1000]))
        return True

    @endpoint
    async def broadcast(self, teller: Any, port: Any) -> str:
        teller.tell.broadcast(port, "for nobody")
        return context().actor_instance.actor_id

    @endpoint
    async def send(self, port: Any) -> str:
        port.send("for nobody")
        return context().actor_instance.actor_id


class SenderOfOtherKind(Sender):
    """On a thread, with an async hook."""

    async def _handle_undeliverable_message(self, envelope: UndeliverableMessageEnvelope) -> Any:
        return super()._handle_undeliverable_message(envelope)


class AsyncSenderOfOtherKind(AsyncSender):
    """On a loop, with a sync hook."""

    def _handle_undeliverable_message(self, envelope: UndeliverableMessageEnvelope) -> Any:  # type: ignore[override]
        self.gate.tell((envelope.sender(), envelope.dest(), envelope.error_msg()[:1000]))
        return True


@pytest.fixture(params=[Sender, AsyncSender, SenderOfOtherKind, AsyncSenderOfOtherKind])
def sender(request: pytest.FixtureRequest) -> type[Actor]:
    return request.param  # type: ignore[no-any-return]


def test_40_a_message_for_a_dead_process_comes_back(world: Any, sender: Any) -> None:
    """To the hook of the actor that sent it, a broadcast and a value for a port alike; the actor goes on. What is under
    way when the process dies does not."""
    dying, procs, gate = world.procs(1), world.procs(1), world.gate()
    teller = dying.spawn("teller", Teller)
    port = dying.spawn("holder", Sender, gate).open_port.call_one().get(PATIENCE)
    mesh: Any = procs.spawn("sender", sender, gate)
    world.kill(dying)
    procs.spawn("neighbour", Teller).hear_of_the_end.call_one(dying.nodes[0].node).get(PATIENCE)
    for send, what in (
        (lambda: mesh.broadcast.call_one(teller, port), "teller-"),
        (lambda: mesh.send.call_one(port), "port "),
    ):
        itself = send().get(PATIENCE)
        by, dest, error = gate.wait_told()
        assert by == itself
        assert dest.startswith(f"{dying.nodes[0].node}/{what}")
        assert "Killed(sig=9)" in error
    assert gate.told() == []


def test_40_a_message_for_an_actor_that_has_ended_comes_back(world: Any, sender: Any) -> None:
    """Its process lives, and says so; be the actor stopped or failed."""
    procs, gate = world.procs(1), world.gate()
    port, _ = Channel[str].open()
    mesh = world.spawn(sender, gate, gpus=1)
    stopped, failed = procs.spawn("stopped", Teller), procs.spawn("failed", Teller)
    stopped.stop("enough").get(PATIENCE)
    failed.end.broadcast()
    with pytest.raises(SupervisionError):
        failed.tell.call_one(port, "").get(PATIENCE)
    for teller, why in ((stopped, "enough"), (failed, "SystemExit")):
        itself = mesh.broadcast.call_one(teller, port).get(PATIENCE)
        by, dest, error = gate.wait_told()
        assert by == itself
        assert dest.startswith(f"{procs.nodes[0].node}/{teller.mesh_name}-")
        assert why in error
    assert gate.told() == []


def test_40_a_value_for_a_port_that_is_closed_comes_back(world: Any, sender: Any) -> None:
    """Its receiver was dropped, or it was for one message."""
    gate = world.gate()
    mesh = world.spawn(sender, gate, gpus=1)
    closed, receiver = Channel[str].open()
    del receiver
    once, first = Channel[str].open(once=True)
    once.send("the one")
    for port in (closed, once):
        itself = mesh.send.call_one(port).get(PATIENCE)
        by, dest, error = gate.wait_told()
        assert (by, dest.partition("/")[0]) == (itself, world.session.node.address.node)
        assert "the port is closed" in error
    assert first.recv().get(PATIENCE) == "the one"
    assert gate.told() == []


def test_40_a_port_may_want_nothing_back(world: Any) -> None:
    """Who sends says so, or who made the port: it travels with that."""
    gate, done = world.gate(), world.gate()
    mesh = world.spawn(Sender, gate, gpus=1)
    port, receiver = Channel[str].open()
    assert port.return_undeliverable
    port.return_undeliverable = False
    forwarded = world.spawn(Teller, gpus=1).echo.call_one(port).get(PATIENCE)
    assert not forwarded.return_undeliverable
    del receiver
    mesh.send.call_one(port, False).get(PATIENCE)
    mesh.send.call_one(Channel[str].open()[0]).get(PATIENCE)  # comes back, and after what would have before
    gate.wait_told()
    assert gate.told() == done.told() == []


def test_40_calls_do_not_come_back(world: Any) -> None:
    """Their future says what became of them."""
    procs, gate = world.procs(1), world.gate()
    teller = procs.spawn("teller", Teller)
    teller.stop().get(PATIENCE)
    port, _ = Channel[str].open()
    mesh = world.spawn(Sender, gate, gpus=1)
    assert mesh.call.call_one(teller, port).get(PATIENCE) == "SupervisionError"
    mesh.broadcast.call_one(teller, port).get(PATIENCE)
    assert gate.wait_told()
    assert gate.told() == []


@pytest.mark.parametrize("verdict", [True, False, None, KeyError("in the hook")], ids=repr)
def test_40_what_the_hook_does_not_handle_is_logged(in_memory: Any, caplog: Any, verdict: Any) -> None:
    """Once for each destination; the actor goes on either way."""
    gate, procs = in_memory.gate(), in_memory.procs(1)
    teller = procs.spawn("teller", Teller)
    teller.stop().get(PATIENCE)
    port, _ = Channel[str].open()
    mesh = in_memory.spawn(Sender, gate, verdict, gpus=1)
    for _ in range(3):
        mesh.broadcast.call_one(teller, port).get(PATIENCE)
        gate.wait_told()
    mesh.broadcast.call_one(teller, port).get(PATIENCE)  # the third verdict is heeded by now
    said = [record.getMessage() for record in caplog.records if "could not be delivered" in record.getMessage()]
    assert len(said) == (verdict is not True)
    assert not said or ("KeyError: 'in the hook'" in said[0]) == isinstance(verdict, KeyError)


def test_40_undeliverable_messages_of_the_client_are_not_reported(world: Any, faults: Any) -> None:
    """It has no hook; it may wait for an answer instead."""
    teller = world.spawn(Teller, gpus=1)
    teller.stop().get(PATIENCE)
    port, receiver = Channel[str].open()
    teller.tell.broadcast(port, "for nobody")
    with pytest.raises(SupervisionError):
        teller.tell.call_one(port, "for nobody").get(PATIENCE)
    del receiver
    port.send("for nobody")
    assert faults.empty()
