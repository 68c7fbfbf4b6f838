"""Semantics: shapes of meshes and of what calls return, and the verbs that ask several ranks."""

from __future__ import annotations

import collections
import operator
from typing import Any

import pytest

from meshbook import (
    Accumulator,
    Actor,
    ActorError,
    SupervisionError,
    context,
    current_rank,
    current_size,
    endpoint,
)
from tests.support import PATIENCE


class Member(Actor):
    """Answers with where it is, some endpoints once the gate of its rank is opened."""

    def __init__(self) -> None:
        self.made_as = str(current_rank()), str(context().actor_instance.rank)

    @endpoint
    def rank(self) -> int:
        return context().actor_instance.rank.rank

    @endpoint
    def place(self) -> tuple[str, dict[str, int], int]:
        return str(current_rank()), current_size(), context().actor_instance.rank.rank

    @endpoint
    def constructed(self) -> tuple[str, str]:
        return self.made_as

    @endpoint
    def hold(self, gates: list[Any], failing: tuple[int, ...] = ()) -> int:
        rank = current_rank().rank
        gates[rank].pass_through(rank)
        if rank in failing:
            raise ValueError(f"rank {rank}")
        return rank


@pytest.fixture
def gates(world: Any) -> list[Any]:
    return [world.gate() for _ in range(3)]


def wait_for_answers(members: Any, rank: int) -> None:
    """Return when all is here that this rank has answered so far: what it sends arrives in order."""
    members.slice(gpus=rank).rank.call_one().get(PATIENCE)


def grid(world: Any) -> Any:
    """2 x 3 actors."""
    return world.procs(per_host={"rows": 2, "gpus": 3}).spawn("member", Member)


# -- 33 --------------------------------------------------------------------------------


def test_33_values_come_in_the_row_major_order_of_the_called_mesh(world: Any) -> None:
    """Whatever order the ranks answered in; points are those of the called mesh, and count from zero."""
    members = grid(world)
    values = members.rank.call().get(PATIENCE)
    assert [(str(point), value) for point, value in values][:4] == [
        ("{'rows': 0/2, 'gpus': 0/3}", 0),
        ("{'rows': 0/2, 'gpus': 1/3}", 1),
        ("{'rows': 0/2, 'gpus': 2/3}", 2),
        ("{'rows': 1/2, 'gpus': 0/3}", 3),
    ]
    part = members.slice(gpus=slice(1, 3)).rank.call().get(PATIENCE)
    assert [(str(point), point.rank, value) for point, value in part] == [
        ("{'rows': 0/2, 'gpus': 0/2}", 0, 1),
        ("{'rows': 0/2, 'gpus': 1/2}", 1, 2),
        ("{'rows': 1/2, 'gpus': 0/2}", 2, 4),
        ("{'rows': 1/2, 'gpus': 1/2}", 3, 5),
    ]
    assert part.item(rows=1, gpus=0) == 4


def test_33_an_endpoint_sees_its_place_in_the_called_mesh(world: Any) -> None:
    """`current_rank()` and `current_size()` are of the slice that was called; the instance keeps its rank."""
    members = grid(world)
    row = members.slice(rows=1)
    assert list(row.place.call().get(PATIENCE).values()) == [
        ("{'gpus': 0/3}", {"gpus": 3}, 3),
        ("{'gpus': 1/3}", {"gpus": 3}, 4),
        ("{'gpus': 2/3}", {"gpus": 3}, 5),
    ]
    assert row.slice(gpus=2).place.call_one().get(PATIENCE) == ("{}", {}, 5)
    assert row.slice(gpus=slice(2, 3)).place.call_one().get(PATIENCE) == ("{'gpus': 0/1}", {"gpus": 1}, 5)


def test_33_a_constructor_sees_the_mesh_that_it_is_spawned_on(world: Any) -> None:
    """Which may be a slice of the processes: there both ranks agree."""
    procs = world.procs(3)
    made = procs.slice(gpus=slice(1, 3)).spawn("member", Member).constructed.call().get(PATIENCE)
    assert list(made.values()) == [("{'gpus': 0/2}",) * 2, ("{'gpus': 1/2}",) * 2]


def test_33_the_client_is_at_the_empty_point(world: Any) -> None:
    """It belongs to no mesh."""
    assert (str(current_rank()), current_size()) == ("{}", {})
    assert context().actor_instance.node is world.session.node


# -- 34 --------------------------------------------------------------------------------


def test_34_an_int_removes_its_dimension_and_a_slice_keeps_it(world: Any) -> None:
    """The same for processes, actors and values."""
    procs = world.procs(per_host={"rows": 2, "gpus": 3})
    members = procs.spawn("member", Member)
    for mesh in (procs, members, members.rank.call().get(PATIENCE)):
        assert mesh.slice(gpus=1).sizes == {"rows": 2}
        assert mesh.slice(gpus=slice(1, 2)).sizes == {"rows": 2, "gpus": 1}
        assert mesh.slice(rows=0, gpus=2).sizes == {}
        assert len(mesh.slice(gpus=slice(0, 3, 2))) == 4


def test_34_a_slice_of_a_slice_counts_within_it(world: Any) -> None:
    """Also with steps, and of what was called by a slice."""
    members = world.spawn(Member, gpus=5)
    part = members.slice(gpus=slice(1, 5)).slice(gpus=slice(0, 4, 2))
    assert list(part.rank.call().get(PATIENCE).values()) == [1, 3]
    assert part.slice(gpus=1).rank.call_one().get(PATIENCE) == 3
    values = members.slice(gpus=slice(1, 5)).rank.call().get(PATIENCE)
    assert list(values.slice(gpus=slice(2, 4)).values()) == [3, 4]


@pytest.mark.parametrize("index", [-1, -2, 2])
def test_34_indices_are_those_of_the_mesh(in_memory: Any, index: int) -> None:
    """Negative ones and those out of range are refused, so that a wrong rank is not asked by mistake."""
    procs = in_memory.procs(2)
    for mesh in (procs, procs.spawn("member", Member)):
        with pytest.raises(IndexError):
            mesh.slice(gpus=index)
        with pytest.raises(TypeError, match="rows"):
            mesh.slice(rows=0)


# -- 35 --------------------------------------------------------------------------------


def test_35_a_stream_comes_in_order_of_arrival(world: Any, gates: list[Any]) -> None:
    """Its futures are as many as ranks and belong to none of them; an error takes its place among them."""
    members = world.spawn(Member, gpus=3)
    stream = members.hold.stream(gates, (1,))
    for rank in (2, 1, 0):
        gates[rank].open()
        future = next(stream)
        if rank == 1:
            assert isinstance(future.exception(PATIENCE), ActorError)
        else:
            assert future.get(PATIENCE) == rank
    assert list(stream) == []


def test_35_call_waits_for_all_and_raises_the_error_of_the_lowest_rank(world: Any, gates: list[Any]) -> None:
    """Not the earliest error, and not before the last answer is there."""
    members = world.spawn(Member, gpus=3)
    future = members.hold.call(gates, (1, 2))
    for rank in (2, 1):
        gates[rank].open()
        wait_for_answers(members, rank)
        assert not future.done()
    gates[0].open()
    with pytest.raises(ActorError, match="ValueError: rank 1"):
        future.get(PATIENCE)


def test_35_a_death_ends_the_wait_at_once(world: Any, gates: list[Any]) -> None:
    """Though others have not answered yet, and one of a lower rank has failed."""
    procs = world.procs(3)
    members = procs.spawn("member", Member)
    future = members.hold.call(gates, (0,))
    gates[0].open()
    wait_for_answers(members, 0)
    assert not future.done()
    world.kill(procs.slice(gpus=2))
    with pytest.raises(SupervisionError):
        future.get(PATIENCE)
    gates[1].open()


def test_35_choose_draws_each_rank_alike(world: Any) -> None:
    """Of 300 draws of three ranks each gets some 100; under 50 would be six standard deviations."""
    members = world.spawn(Member, gpus=3)
    drawn = collections.Counter(future.get(PATIENCE) for future in [members.rank.choose() for _ in range(300)])
    assert set(drawn) == {0, 1, 2}
    assert min(drawn.values()) > 50


# -- 36 --------------------------------------------------------------------------------


def test_36_an_accumulator_folds_from_the_left_over_the_stream(world: Any, gates: list[Any]) -> None:
    """In order of arrival, from the identity on."""
    members = world.spawn(Member, gpus=3)
    future = Accumulator(members.hold, ("identity",), lambda seen, rank: (*seen, rank)).accumulate(gates)
    for rank in (1, 2, 0):
        gates[rank].open()
        wait_for_answers(members, rank)
    assert future.get(PATIENCE) == ("identity", 1, 2, 0)


def test_36_accumulate_sends_when_it_is_called(world: Any, gates: list[Any]) -> None:
    """Not when the future is looked at; and folding waits until then."""
    folded = []

    def add(total: int, rank: int) -> int:
        folded.append(rank)
        return total + rank

    members = world.spawn(Member, gpus=3)
    future = Accumulator(members.hold, 100, add).accumulate(gates)
    for rank, gate in enumerate(gates):
        assert gate.wait_told() == rank
        gate.open()
        wait_for_answers(members, rank)
    assert folded == []
    assert future.get(PATIENCE) == future.get(PATIENCE) == 103
    assert sorted(folded) == [0, 1, 2]


def test_36_the_fold_of_one_rank_begins_with_the_identity(world: Any) -> None:
    """The smallest mesh has one rank: a slice that selects nothing is refused."""
    member = world.spawn(Member, gpus=1)
    assert Accumulator(member.rank, 7, operator.add).accumulate().get(PATIENCE) == 7
    with pytest.raises(IndexError, match="selects nothing"):
        member.slice(gpus=slice(0, 0))
