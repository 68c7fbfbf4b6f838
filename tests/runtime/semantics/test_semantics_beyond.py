"""Semantics: where meshbook goes beyond the model that it follows."""

from __future__ import annotations

import sys
from typing import Any

import cloudpickle
import pytest

from meshbook import Actor, ActorError, SupervisionError, current_rank, endpoint

PATIENCE = 60.0
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Member(Actor):
    @endpoint
    def fail_on(self, *ranks: int) -> int:
        rank = current_rank().rank
        if rank in ranks:
            raise ValueError(f"rank {rank}")
        return rank * 10

    @endpoint
    def hold(self, gates: list[Any]) -> int:
        rank = current_rank().rank
        gates[rank].pass_through()
        return rank * 10


# -- 3 ---------------------------------------------------------------------------------


def test_beyond_3_a_failed_call_keeps_what_the_others_answered(world: Any) -> None:
    """`.results` has the values by the points of the called mesh, `.failures` each error by its rank."""
    with pytest.raises(ActorError, match="ValueError: rank 1") as caught:
        world.spawn(Member, gpus=4).fail_on.call(1, 3).get(PATIENCE)
    error = caught.value
    assert list(error.results.values()) == [0, 20]
    assert {rank: str(each.exception) for rank, each in error.failures.items()} == {1: "rank 1", 3: "rank 3"}
    assert error.failures[1] is error


def test_beyond_3_ranks_are_those_of_the_called_mesh(world: Any) -> None:
    """Of a slice they count from zero."""
    part = world.spawn(Member, gpus=4).slice(gpus=slice(2, 4))
    error = part.fail_on.call(1).exception(PATIENCE)
    assert list(error.results.values()) == [0]
    assert set(error.failures) == {1}


def test_beyond_3_without_any_answer_there_are_no_results(world: Any) -> None:
    """None, and not an empty mesh, which does not exist."""
    error = world.spawn(Member).fail_on.call(0, 1).exception(PATIENCE)
    assert error.results is None
    assert set(error.failures) == {0, 1}


def test_beyond_3_a_death_keeps_what_had_been_answered(world: Any) -> None:
    """It ends the wait, so ranks that have not answered yet are in neither."""
    procs, gates = world.procs(3), [world.gate() for _ in range(3)]
    members = procs.spawn("member", Member)
    future = members.hold.call(gates)
    gates[0].open()
    members.slice(gpus=0).fail_on.call_one().get(PATIENCE)  # what it answered before is here, too
    world.kill(procs.slice(gpus=1))
    error = future.exception(PATIENCE)
    assert isinstance(error, SupervisionError)
    assert list(error.results.values()) == [0]
    assert set(error.failures) == {1}
