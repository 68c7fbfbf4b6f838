"""Semantics: processes that are born after others have ended, and are given handles of those."""

from __future__ import annotations

import sys
from typing import Any

import cloudpickle
import pytest

from meshbook import Actor, ActorError, SupervisionError, endpoint

PATIENCE = 60.0
pytestmark = pytest.mark.usefixtures("faults")  # each death is a fault, of which these tests do not speak
cloudpickle.register_pickle_by_value(sys.modules[__name__])


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


def test_beyond_1_a_newcomer_that_calls_who_was_stopped_is_answered(world: Any) -> None:
    procs = world.procs(1)
    gone = procs.spawn("gone", Caller)
    gone.answer.call().get(PATIENCE)
    procs.stop("enough").get(PATIENCE)
    newcomer = world.spawn(Caller, gpus=1)
    with pytest.raises(ActorError, match="enough"):
        newcomer.ask.call_one(gone).get(PATIENCE)


def test_beyond_1_a_newcomer_that_calls_who_died_is_answered(world: Any) -> None:
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
