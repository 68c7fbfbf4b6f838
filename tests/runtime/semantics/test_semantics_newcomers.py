"""Semantics: processes that are born after others have ended, and are given handles of those."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

from meshbook import Actor, ActorError, Future, SupervisionError, endpoint
from meshbook.runtime.mesh.host_ownership import when_ended
from tests.support import PATIENCE

pytestmark = pytest.mark.usefixtures("faults")  # each death is a fault, of which these tests do not speak


class Caller(Actor):
    """Calls others, and spawns them."""

    @endpoint
    def answer(self) -> str:
        return "here"

    @endpoint
    def ask(self, other: Any) -> list[str]:
        return list(other.answer.call().get(PATIENCE).values())

    @endpoint
    def spawn_on(self, procs: Any) -> Any:
        spawned = procs.spawn("spawned", Caller)
        spawned.answer.call().get(PATIENCE)
        return spawned

    @endpoint
    def own(self, host: Any) -> None:
        self.procs = host.spawn_procs()


def test_beyond_1_a_new_client_that_calls_a_stopped_rank_is_answered(world: Any) -> None:
    procs = world.procs(1)
    gone = procs.spawn("gone", Caller)
    gone.answer.call().get(PATIENCE)
    procs.stop("enough").get(PATIENCE)
    newcomer = world.spawn(Caller, gpus=1)
    with pytest.raises(ActorError, match="enough"):
        newcomer.ask.call_one(gone).get(PATIENCE)


def test_beyond_1_a_new_client_that_calls_a_dead_rank_is_answered(world: Any) -> None:
    """And reaches it once it is healed."""
    procs = world.procs(2)
    members = procs.spawn("member", Caller)
    members.answer.call().get(PATIENCE)
    world.kill(procs.slice(gpus=1))
    newcomer = world.spawn(Caller, gpus=1)
    with pytest.raises(ActorError, match="SIGKILL"):
        newcomer.ask.call_one(members.slice(gpus=1)).get(PATIENCE)
    procs.heal().get(PATIENCE)
    assert newcomer.ask.call_one(members).get(PATIENCE) == ["here", "here"]


@pytest.mark.parametrize("comes_again", [False, True], ids=["gone", "healed"])
def test_beyond_1_a_healed_process_waits_for_no_actor_of_an_owner_that_ended_before(
    world: Any, comes_again: bool
) -> None:
    """Whoever calls that actor is told; the owner that is healed knows nothing of what it had spawned."""
    owners, procs = world.procs(1), world.procs(1)
    spawned = owners.spawn("owner", Caller).spawn_on.call_one(procs).get(PATIENCE)
    assert list(spawned.answer.call().get(PATIENCE).values()) == ["here"]
    world.kill(procs)
    world.kill(owners)
    if comes_again:
        owners.heal().get(PATIENCE)
    procs.heal().get(PATIENCE)
    with pytest.raises(SupervisionError):
        spawned.answer.call().get(PATIENCE)


def test_beyond_1_requests_of_an_owner_that_dies_meanwhile_are_ended(
    in_memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies between the agent's look whether it lives and the start of what it has asked for."""
    owners = in_memory.procs(1)
    owner = owners.spawn("owner", Caller)
    owner.answer.call().get(PATIENCE)
    workers = in_memory.session.agent.workers
    start, stop_owned_by, started, noted = workers.start, workers.stop_owned_by, Future.pending(), threading.Event()

    def stop_what_it_owns(node: str) -> None:
        stop_owned_by(node)
        noted.set()

    def start_after_its_end(specs: Any) -> None:
        workers.signal([owners.nodes[0].node], signal.SIGKILL)
        assert noted.wait(PATIENCE)
        start(specs)
        started.resolve(lambda: specs[0].address.node)

    monkeypatch.setattr(workers, "stop_owned_by", stop_what_it_owns)
    monkeypatch.setattr(workers, "start", start_after_its_end)
    owner.own.broadcast(in_memory.host)
    when_ended(in_memory.session.node, [started.get(PATIENCE)]).get(PATIENCE)
