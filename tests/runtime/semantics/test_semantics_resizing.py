"""Semantics: meshes that grow and shrink while their actors work."""

from __future__ import annotations

import os
import pickle
from typing import Any

import pytest

from meshbook import (
    Actor,
    Future,
    ProcMesh,
    SupervisionError,
    context,
    current_rank,
    current_size,
    endpoint,
    this_host,
)
from meshbook.runtime.mesh.actors import current_node
from tests.support import PATIENCE


class Member(Actor):
    def __init__(self, *args: Any) -> None:
        self.made_with = args
        self.made_at = current_rank().rank
        self.notes: list[Any] = []

    def __restore__(self) -> None:
        self.notes.append("restored")

    @endpoint
    def note(self, what: Any) -> list[Any]:
        self.notes.append(what)
        return self.notes

    @endpoint
    def run(self, function: Any, *arguments: Any) -> Any:
        return function(self, *arguments)


def places(member: Member) -> Any:
    """Where it is: in the mesh that is called, and in the one that it was spawned on."""
    return current_rank().rank, dict(current_size()), dict(context().actor_instance.rank), member.made_at


def values(future: Any) -> list[Any]:
    return list(future.get(PATIENCE).values())


def at(rank: int, size: int, **made: int) -> Any:
    return rank, {"gpus": size}, {"gpus": rank}, made.get("made_at", rank)


# -- growing and shrinking ---------------------------------------------------------------


def test_beyond_1_a_mesh_grows(world: Any) -> None:
    """Existing ranks stay, with their state; the new ones are made as at the spawn, and not restored."""
    procs, argument = world.procs(2), ["as at the spawn"]
    members = procs.spawn("member", Member, argument)
    argument.append("changed since")
    values(members.note.call("before"))
    grown = procs.resize(gpus=4)
    everybody = grown.all_of(members)
    assert grown.initialized.get(PATIENCE) is True
    assert everybody.initialized.get(PATIENCE) is None
    assert (dict(grown.extent), dict(everybody.extent)) == ({"gpus": 4}, {"gpus": 4})
    assert values(everybody.note.call("after")) == [["before", "after"]] * 2 + [["after"]] * 2
    assert values(everybody.run.call(places)) == [at(rank, 4) for rank in range(4)]
    assert values(everybody.run.call(lambda member: member.made_with)) == [(["as at the spawn"],)] * 4
    late = grown.spawn("late", Member)
    assert values(late.run.call(places)) == [at(rank, 4) for rank in range(4)]


def test_beyond_1_the_handle_of_before_is_of_those_before(world: Any) -> None:
    """Handles do not change; the ranks that they reach get their new places."""
    procs = world.procs(2)
    members = procs.spawn("member", Member)
    members.initialized.get(PATIENCE)
    procs.resize(gpus=3)
    assert (dict(procs.extent), dict(members.extent)) == ({"gpus": 2}, {"gpus": 2})
    assert values(members.run.call(places)) == [(rank, {"gpus": 2}, {"gpus": rank}, rank) for rank in range(2)]
    extents = [dict(extent) for extent in values(members.run.call(lambda m: context().actor_instance.rank.extent))]
    assert extents == [{"gpus": 3}] * 2
    assert values(members.run.call(lambda m: dict(context().actor_instance.proc_mesh.extent))) == [{"gpus": 3}] * 2
    assert values(members.slice(gpus=1).run.call(lambda m: m.made_at)) == [1]


def test_beyond_1_a_mesh_shrinks(world: Any, faults: Any) -> None:
    """Removed ranks are stopped, in order and with cleanup: no fault. Their callers get an error."""
    procs, gate = world.procs(3), world.gate()
    members, leavers = procs.spawn("member", Member), procs.spawn("leaver", Leaver, gate)
    values(members.note.call("before"))
    leavers.initialized.get(PATIENCE)
    shrunk = procs.resize(gpus=1)
    assert shrunk.initialized.get(PATIENCE) is True
    assert {gate.wait_told() for _ in range(2)} == {1, 2}
    assert values(shrunk.all_of(members).note.call("after")) == [["before", "after"]]
    with pytest.raises(SupervisionError, match=r"its mesh was resized to \{'gpus': 1\}"):
        members.slice(gpus=2).note.call_one("late").get(PATIENCE)
    with pytest.raises(SupervisionError, match=r"its mesh was resized to \{'gpus': 1\}"):
        members.note.call("late").get(PATIENCE)
    procs.stop().get(PATIENCE)
    assert gate.wait_told() == 0
    assert len(current_node().ledger) == 0
    assert faults.empty()


class Leaver(Actor):
    def __init__(self, gate: Any) -> None:
        self.gate = gate
        self.procs = this_host().spawn_procs()

    def __cleanup__(self, error: BaseException | None) -> None:
        if error is None:
            self.gate.tell(current_rank().rank)


def test_beyond_1_there_and_back(world: Any) -> None:
    """The ranks that come are new ones, under handles that are made then; nothing accumulates."""
    procs = world.procs(2)
    members = procs.spawn("member", Member)
    for size in (4, 1, 3):
        procs = procs.resize(gpus=size)
        members = procs.all_of(members)
        notes = values(members.note.call(size))
        assert len(notes) == size
    assert notes == [[4, 1, 3], [3], [3]]
    assert values(members.run.call(places)) == [at(rank, 3) for rank in range(3)]
    procs.stop().get(PATIENCE)
    assert len(current_node().ledger) == 0


def test_beyond_1_the_same_size_is_no_change(world: Any) -> None:
    procs = world.procs(2)
    members = procs.spawn("member", Member)
    assert procs.resize(gpus=2).nodes == procs.nodes
    assert procs.resize().nodes == procs.nodes
    assert values(procs.all_of(members).run.call(places)) == [at(rank, 2) for rank in range(2)]


def test_beyond_1_any_dimension(world: Any) -> None:
    """A rank is its coordinates: its number may be another one."""
    procs = world.procs(per_host={"rows": 2, "columns": 2})
    members = procs.spawn("member", Member)
    assert values(members.run.call(lambda m: m.made_at)) == [0, 1, 2, 3]
    wider = procs.resize(columns=3)
    members = wider.all_of(members)
    assert values(members.run.call(lambda m: m.made_at)) == [0, 1, 2, 2, 3, 5]
    assert values(members.run.call(lambda m: context().actor_instance.rank.rank)) == [0, 1, 2, 3, 4, 5]
    narrow = wider.resize(columns=1, rows=3)
    members = narrow.all_of(members)
    assert values(members.run.call(lambda m: m.made_at)) == [0, 2, 2]
    assert dict(members.extent) == {"rows": 3, "columns": 1}


@pytest.mark.process
def test_beyond_1_processes_know_their_place(processes: Any) -> None:
    """The environment of remaining ranks is that of the new mesh, except for what was changed there."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT", "MINE")

    def look(member: Any) -> Any:
        return os.getpid(), tuple(os.environ.get(name) for name in names)

    procs = processes.procs(per_host={"a": 2, "b": 1}, env={"MINE": "given"})
    members = procs.spawn("member", Member)
    before = values(members.run.call(look))
    port = before[0][1][4]
    members.slice(a=0).run.call(lambda member: os.environ.update(LOCAL_WORLD_SIZE="mine")).get(PATIENCE)
    procs = procs.resize(b=2)
    assert procs.initialized.get(PATIENCE) is True
    after = values(procs.all_of(members).run.call(look))
    assert after[0][1][4] != port  # the ranks of before may still meet at theirs
    port = after[0][1][4]
    assert [environment for _, environment in after] == [
        ("0", "0", "4", "mine", port, "given"),
        *((str(rank), str(rank), "4", "4", port, "given") for rank in (1, 2, 3)),
    ]
    assert [after[rank][0] for rank in (0, 2)] == [pid for pid, _ in before]


# -- with other things that happen ---------------------------------------------------------


def test_beyond_1_what_was_resized_is_healed(world: Any, faults: Any) -> None:
    """Old ranks and new ones, by any handle of the mesh."""
    procs = world.procs(2)
    members = procs.spawn("member", Member)
    grown = procs.resize(gpus=3)
    everybody = grown.all_of(members)
    for rank, handle in ((2, procs), (0, grown), (2, grown)):
        values(everybody.note.call("before"))
        world.kill(grown.slice(gpus=rank))
        assert handle.heal().get(PATIENCE) == [rank]
        assert everybody.slice(gpus=rank).note.call_one("first").get(PATIENCE) == ["restored", "first"]
        assert everybody.slice(gpus=rank).run.call_one(places).get(PATIENCE)[2] == {"gpus": rank}


def test_beyond_1_dead_ranks_go_or_stay_dead(world: Any, faults: Any) -> None:
    """A resize does not heal. A mesh that has lost its last ranks may go on without them."""
    procs = world.procs(per_host={"rows": 2, "columns": 2})
    members = procs.spawn("member", Member)
    members.initialized.get(PATIENCE)
    for dead in (1, 2):
        world.kill(procs.slice(rows=dead // 2, columns=dead % 2))
    narrow = procs.resize(columns=1)
    members = narrow.all_of(members)
    assert values(members.slice(rows=0).run.call(lambda m: m.made_at)) == [0]
    with pytest.raises(SupervisionError, match="sig=9"):
        members.note.call("poisoned").get(PATIENCE)
    assert narrow.heal().get(PATIENCE) == [1]
    assert values(members.run.call(lambda m: context().actor_instance.rank.rank)) == [0, 1]


def test_beyond_1_actors_on_a_slice_stay_there(world: Any) -> None:
    """Actors that were not on all ranks are not created on new ones, and are stopped with removed ranks."""
    procs = world.procs(3)
    some = procs.slice(gpus=slice(1, 3)).spawn("some", Member)
    flat = procs.flatten("rank").spawn("flat", Member)
    values(some.note.call(1))
    grown = procs.resize(gpus=4)
    assert [len(grown.all_of(mesh)) for mesh in (some, flat)] == [2, 3]
    shrunk = grown.resize(gpus=2)
    shrunk.initialized.get(PATIENCE)
    assert some.slice(gpus=0).note.call_one(2).get(PATIENCE) == [1, 2]
    with pytest.raises(SupervisionError, match="its mesh was resized"):
        some.slice(gpus=1).note.call_one(2).get(PATIENCE)
    assert dict(some.slice(gpus=0).run.call_one(lambda m: context().actor_instance.rank).get(PATIENCE)) == {"gpus": 0}


def test_beyond_1_stopped_actors_do_not_come_to_new_ranks(world: Any) -> None:
    procs = world.procs(1)
    members = procs.spawn("member", Member)
    members.stop().get(PATIENCE)
    grown = procs.resize(gpus=2)
    grown.initialized.get(PATIENCE)
    with pytest.raises(ValueError, match="were not spawned from this process, or have been stopped"):
        grown.all_of(members)


def test_beyond_1_all_are_stopped_by_any_handle(world: Any) -> None:
    procs = world.procs(1)
    members = procs.spawn("member", Member)
    grown = procs.resize(gpus=3)
    everybody = grown.all_of(members)
    everybody.initialized.get(PATIENCE)
    members.stop().get(PATIENCE)  # of the one rank
    assert values(everybody.slice(gpus=slice(1, 3)).note.call(1)) == [[1]] * 2
    procs.stop().get(PATIENCE)
    with pytest.raises(SupervisionError, match="stopped"):
        everybody.slice(gpus=2).note.call_one(2).get(PATIENCE)
    assert world.host._ownership.meshes.get(procs.name) is None


def test_beyond_1_a_constructor_that_fails_on_new_ranks(world: Any, faults: Any, tmp_path: Any) -> None:
    """It is a failure like any other; the mesh has its size, and can be healed."""
    path = tmp_path / "there"
    path.touch()
    procs = world.procs(1)
    picky = procs.spawn("picky", Picky, str(path))
    picky.initialized.get(PATIENCE)
    path.unlink()
    grown = procs.resize(gpus=2)
    everybody = grown.all_of(picky)
    for _ in range(2):  # also once the failure is known
        with pytest.raises(SupervisionError, match="FileNotFoundError"):
            grown.initialized.get(PATIENCE)
    assert faults.get(timeout=PATIENCE).crashed_ranks == [1]
    path.touch()
    assert grown.heal().get(PATIENCE) == [1]
    assert grown.initialized.get(PATIENCE) is True
    assert values(everybody.rank.call()) == [0, 1]


class Picky(Actor):
    def __init__(self, path: str) -> None:
        open(path).close()

    @endpoint
    def rank(self) -> int:
        return current_rank().rank


def test_beyond_1_what_follows_a_resize(world: Any) -> None:
    """As after a heal: it gets the new handle and the new ranks, none where the mesh only shrank."""
    told: list[Any] = []
    procs, gate = world.procs(2), world.gate()
    holders = procs.spawn("holder", Holder)

    def follow(mesh: ProcMesh, ranks: list[int]) -> Future[Any]:
        told.append((dict(mesh.extent), ranks))
        return holders.slice(gpus=0).hold.call_one(gate)

    procs.after_heal(follow)
    for size, ranks in ((3, [2]), (1, [])):
        procs = procs.resize(gpus=size)
        gate.wait_told()
        assert not procs.initialized.done()
        gate.open()
        assert procs.initialized.get(PATIENCE) is True
        assert told.pop() == ({"gpus": size}, ranks)


class Holder(Actor):
    @endpoint
    def hold(self, gate: Any) -> None:
        gate.pass_through()


@pytest.mark.process
def test_beyond_1_new_ranks_come_from_spares(processes: Any) -> None:
    procs = processes.procs(1, spares=1)
    procs.initialized.get(PATIENCE)
    while procs.spares().get(PATIENCE) < 1:  # nothing tells of it
        pass
    procs.resize(gpus=2).initialized.get(PATIENCE)
    kinds = [(event.kind, event.ranks) for event in processes.session.events if event.procs == procs.name]
    assert sorted(kinds) == [("resized", (1,)), ("spare used", (1,))]


# -- permissions -----------------------------------------------------------------------------


def test_beyond_1_what_cannot_be_resized(world: Any) -> None:
    procs = world.procs(2)
    for reference in (procs.slice(gpus=1), pickle.loads(pickle.dumps(procs))):
        with pytest.raises(ValueError, match="ProcMesh is not owned; must be resized by an owner"):
            reference.resize(gpus=3)
    with pytest.raises(ValueError, match="unknown dimension 'cores'; there are gpus"):
        procs.resize(cores=3)
    with pytest.raises(ValueError, match="'gpus' needs a size of at least 1, not 0"):
        procs.resize(gpus=0)
    procs.stop().get(PATIENCE)
    with pytest.raises(RuntimeError, match="`ProcMesh` has already been stopped"):
        procs.resize(gpus=3)


@pytest.mark.process
def test_beyond_1_new_ranks_that_nothing_binds(processes: Any) -> None:
    """Where each process was given its CPUs, more of them have none; fewer are no question."""
    cpu = str(min(os.sched_getaffinity(0)))
    procs = processes.procs(2, proc_bind=[{"cpus": cpu}] * 2)
    with pytest.raises(ValueError, match=r"proc_bind length \(2\) must equal procs_per_host \(3\)"):
        procs.resize(gpus=3)
    assert procs.heal().get(PATIENCE) == []
    assert procs.resize(gpus=1).initialized.get(PATIENCE) is True


# -- from within -------------------------------------------------------------------------------


class Owner(Actor):
    def __init__(self) -> None:
        self.procs = this_host().spawn_procs(per_host={"gpus": 1})
        self.members = self.procs.spawn("member", Member)

    @endpoint
    def grow(self, size: int) -> Any:
        self.procs = self.procs.resize(gpus=size)
        self.members = self.procs.all_of(self.members)
        return self.members

    @endpoint
    def ask(self) -> Any:
        return list(self.members.run.call(places).get().values())


def test_beyond_1_an_actor_resizes_what_it_owns(world: Any) -> None:
    """References that it gives are of the mesh as it is then."""
    owner = world.procs(1).spawn("owner", Owner)
    for size in (3, 2):
        members = owner.grow.call_one(size).get(PATIENCE)
        assert (
            values(members.run.call(places)) == owner.ask.call_one().get(PATIENCE) == [at(r, size) for r in range(size)]
        )
