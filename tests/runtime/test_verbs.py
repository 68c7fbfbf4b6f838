"""The verbs that take their answers as they come, or from one rank; and what an error of `call` tells of the others."""

from __future__ import annotations

import collections
import operator
import typing
from typing import Any

import pytest

from meshbook import Accumulator, Actor, ActorError, SupervisionError, current_rank, current_size, endpoint
from meshbook.runtime.actor.future import Future
from meshbook.runtime.mesh.actors import ActorMesh
from tests.support import PATIENCE


class Member(Actor):
    """Answers with its rank, when its gate is opened."""

    @endpoint
    def rank(self) -> int:
        return current_rank().rank

    @endpoint
    def place(self) -> tuple[int, dict[str, int]]:
        return current_rank().rank, current_size()

    @endpoint
    def pass_gate(self, gates: list[Any]) -> int:
        rank = current_rank().rank
        gates[rank].pass_through(rank)
        return rank

    @endpoint
    def fail_on(self, *ranks: int) -> int:
        rank = current_rank().rank
        if rank in ranks:
            raise ValueError(f"rank {rank}")
        return rank

    @endpoint
    def fail_after_gate(self, gates: list[Any], *ranks: int) -> int:
        rank = current_rank().rank
        gates[rank].pass_through(rank)
        if rank in ranks:
            raise ValueError(f"rank {rank}")
        return rank


@pytest.fixture
def members(session: Any) -> Any:
    return session.spawn(Member, on=session.workers(3))


@pytest.fixture
def gates(gate: Any) -> list[Any]:
    return [gate, type(gate)(), type(gate)()]


# -- choose ------------------------------------------------------------------------


def test_choose_asks_one_rank_and_each_at_times(members: Any) -> None:
    drawn = collections.Counter(members.rank.choose().get(PATIENCE) for _ in range(300))
    assert set(drawn) == {0, 1, 2}
    assert min(drawn.values()) > 50  # of 100 to expect: six standard deviations


def test_the_chosen_rank_knows_its_place_in_the_called_mesh(members: Any) -> None:
    places = {members.slice(gpus=slice(1, 3)).place.choose().get(PATIENCE)[0] for _ in range(100)}
    assert places == {0, 1}
    assert members.place.choose().get(PATIENCE)[1] == {"gpus": 3}


def test_choose_raises_what_the_rank_raised(members: Any) -> None:
    with pytest.raises(ActorError, match="ValueError: rank"):
        members.fail_on.choose(0, 1, 2).get(PATIENCE)


# -- stream ------------------------------------------------------------------------


def test_a_stream_comes_in_order_of_arrival(members: Any, gates: list[Any]) -> None:
    stream = members.pass_gate.stream(gates)
    for rank in (2, 0, 1):
        gates[rank].open()
        assert next(stream).get(PATIENCE) == rank
    assert list(stream) == []


def test_a_stream_is_sent_at_once(members: Any, gates: list[Any]) -> None:
    members.pass_gate.stream(gates)
    assert sorted(gate.wait_entered() for gate in gates) == [0, 1, 2]
    for gate in gates:
        gate.open()


def test_an_error_has_its_place_in_the_stream(members: Any, gates: list[Any]) -> None:
    stream = members.fail_after_gate.stream(gates, 1)
    seen = []
    for rank in (2, 1, 0):
        gates[rank].open()
        future = next(stream)
        seen.append(type(future.exception(PATIENCE)))
    assert seen == [type(None), ActorError, type(None)]


def test_a_lost_rank_has_its_place_in_the_stream(session: Any, gates: list[Any]) -> None:
    nodes = session.workers(3)
    members = session.spawn(Member, on=nodes)
    members.initialized.get(PATIENCE)
    stream = members.pass_gate.stream(gates)
    session.declare_down(nodes[1])
    with pytest.raises(SupervisionError):
        next(stream).get(PATIENCE)
    for rank in (0, 2):
        gates[rank].open()
        assert next(stream).get(PATIENCE) == rank
    gates[1].open()


# -- Accumulator ---------------------------------------------------------------------


def test_an_accumulator_folds_from_the_left_as_answers_come(members: Any, gates: list[Any]) -> None:
    future = Accumulator(members.pass_gate, (), lambda seen, rank: (*seen, rank)).accumulate(gates)
    for rank in (1, 2, 0):
        gates[rank].open()
        members.slice(gpus=rank).rank.call_one().get(PATIENCE)  # what it answered before is here, too
    assert future.get(PATIENCE) == (1, 2, 0)
    assert future.get(PATIENCE) == (1, 2, 0)


def test_an_accumulator_begins_with_the_identity(members: Any) -> None:
    assert Accumulator(members.rank, 100, operator.add).accumulate().get(PATIENCE) == 103


def test_an_accumulator_sends_at_once(members: Any, gates: list[Any]) -> None:
    Accumulator(members.pass_gate, 0, operator.add).accumulate(gates)
    assert sorted(gate.wait_entered() for gate in gates) == [0, 1, 2]
    for gate in gates:
        gate.open()


def test_an_accumulator_fails_with_the_first_error(members: Any, gates: list[Any]) -> None:
    future = Accumulator(members.fail_after_gate, 0, operator.add).accumulate(gates, 1)
    gates[1].open()
    with pytest.raises(ActorError, match="rank 1"):
        future.get(PATIENCE)
    for rank in (0, 2):
        gates[rank].open()


def test_what_combine_raises_is_raised_where_the_value_is_wanted(members: Any) -> None:
    def refuse(total: int, rank: int) -> int:
        raise OverflowError(rank)

    future = Accumulator(members.rank, 0, refuse).accumulate()
    raised = [future.exception(PATIENCE) for _ in range(2)]
    assert isinstance(raised[0], OverflowError)
    assert raised[0] is raised[1]


@pytest.mark.parametrize("verb", ["call", "choose", "stream", "broadcast"])
def test_arguments_are_checked_at_the_callers_line(members: Any, verb: str) -> None:
    with pytest.raises(TypeError, match="rank"):
        getattr(members.rank, verb)(1)
    with pytest.raises(TypeError, match="rank"):
        Accumulator(members.rank, 0, operator.add).accumulate(1)


# -- what the error of a call tells of the other ranks ---------------------------------


@pytest.mark.parametrize(
    ("failing", "results", "raised"),
    [((1,), [0, 2], 1), ((0, 2), [1], 0), ((0, 1, 2), None, 0)],
)
def test_a_failed_call_keeps_what_the_others_answered(
    members: Any, failing: tuple[int, ...], results: list[int] | None, raised: int
) -> None:
    error = members.fail_on.call(*failing).exception(PATIENCE)
    assert isinstance(error, ActorError)
    assert str(error.exception) == f"rank {raised}"
    assert (error.results and list(error.results.values())) == results
    assert {rank: str(each.exception) for rank, each in error.failures.items()} == {
        rank: f"rank {rank}" for rank in failing
    }
    assert error.failures[raised] is error


def test_failures_count_within_the_called_mesh(members: Any) -> None:
    error = members.slice(gpus=slice(1, 3)).fail_on.call(1).exception(PATIENCE)
    assert set(error.failures) == {1}
    assert list(error.results.values()) == [0]


def test_a_death_keeps_what_had_been_answered(session: Any, gates: list[Any]) -> None:
    nodes = session.workers(3)
    members = session.spawn(Member, on=nodes)
    members.initialized.get(PATIENCE)
    future = members.pass_gate.call(gates)
    gates[0].open()
    members.slice(gpus=0).rank.call_one().get(PATIENCE)  # what it answered before is here, too
    session.declare_down(nodes[1])
    error = future.exception(PATIENCE)
    assert isinstance(error, SupervisionError)
    assert set(error.failures) == {1}
    assert list(error.results.values()) == [0]
    for rank in (1, 2):
        gates[rank].open()


def test_other_errors_know_of_no_other_ranks(members: Any) -> None:
    error = members.slice(gpus=0).fail_on.call_one(0).exception(PATIENCE)
    assert error.results is None
    assert dict(error.failures) == {}


def test_an_accumulator_takes_whatever_streams() -> None:
    """Once it is called; the values are combined in the order in which they come."""

    class Ended:
        def __init__(self) -> None:
            self.asked: list[tuple[Any, ...]] = []

        def stream(self, *arguments: Any) -> list[Future[str]]:
            self.asked.append(arguments)
            return [Future.completed(each) for each in "abc"]

    ended = Ended()
    future = Accumulator(ended, "", operator.add).accumulate(1, 2)
    assert ended.asked == [(1, 2)]
    assert future.get(PATIENCE) == "abc"
    with pytest.raises(TypeError, match="takes an endpoint"):
        Accumulator("step", 0, operator.add)  # type: ignore[arg-type]


def test_an_actor_mesh_is_subscripted_in_annotations() -> None:
    assert typing.get_args(ActorMesh[Member]) == (Member,)
