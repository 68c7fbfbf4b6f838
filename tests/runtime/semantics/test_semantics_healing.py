"""Semantics: meshes that are healed, where the model that we follow leaves them poisoned."""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any

import pytest

from meshbook import (
    Actor,
    Channel,
    Future,
    MeshFailure,
    ProcMesh,
    SupervisionError,
    context,
    current_rank,
    endpoint,
    this_host,
)
from meshbook.runtime.errors import ProcessDied
from tests.support import PATIENCE

pytestmark = pytest.mark.usefixtures("faults")  # each death is a fault, of which these tests do not speak


class Member(Actor):
    """Remembers what it was made with, and what happened to it since."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.made_with = args, kwargs
        self.notes: list[Any] = []

    @endpoint
    def note(self, what: Any) -> list[Any]:
        self.notes.append(what)
        return self.notes

    @endpoint
    def run(self, function: Any, *arguments: Any) -> Any:
        return function(self, *arguments)

    @endpoint
    def hold(self, gate: Any, note: Any) -> Any:
        return gate.pass_through(note)

    @endpoint
    def ask(self, other: Any, *arguments: Any) -> Any:
        return other.run.call(*arguments).get()


class AsyncMember(Actor):
    """The same on a loop."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.made_with = args, kwargs
        self.notes: list[Any] = []

    @endpoint
    async def note(self, what: Any) -> list[Any]:
        self.notes.append(what)
        return self.notes

    @endpoint
    async def run(self, function: Any, *arguments: Any) -> Any:
        return function(self, *arguments)


either = pytest.mark.parametrize("kind", [Member, AsyncMember])


def made_with(member: Any) -> Any:
    return member.made_with


def rank_of(member: Any) -> int:
    return current_rank().rank


def fail(member: Any) -> None:
    raise ValueError("for nobody")


def values(future: Any) -> list[Any]:
    return list(future.get(PATIENCE).values())


# -- what comes back -------------------------------------------------------------------


@either
def test_beyond_1_a_dead_rank_comes_back(world: Any, kind: type[Actor]) -> None:
    """The same handle reaches it; it is made as at the spawn, and the others keep their state."""
    procs, argument = world.procs(3), ["as at", "the spawn"]
    members: Any = procs.spawn("member", kind, argument, lr=0.1)
    argument.append("changed since")
    assert values(members.note.call("before")) == [["before"]] * 3
    world.kill(procs.slice(gpus=1))
    with pytest.raises(ProcessDied):
        members.note.call("poisoned").get(PATIENCE)
    members.slice(gpus=slice(0, 3, 2)).note.call("poisoned").get(PATIENCE)  # and the call that failed is through
    assert procs.heal().get(PATIENCE) == [1]
    others = ["before", "poisoned", "poisoned", "after"]
    assert values(members.note.call("after")) == [others, ["after"], others]
    assert values(members.run.call(made_with)) == [((["as at", "the spawn"],), {"lr": 0.1})] * 3
    assert values(members.run.call(rank_of)) == [0, 1, 2]
    assert members.initialized.get(PATIENCE) is None
    assert procs.initialized.get(PATIENCE) is True


def test_beyond_1_a_mesh_that_is_well_is_left_alone(world: Any) -> None:
    """Healing it does nothing."""
    procs = world.procs(2)
    members = procs.spawn("member", Member)
    assert values(members.note.call(1)) == [[1]] * 2
    assert procs.heal().get(PATIENCE) == []
    assert values(members.note.call(2)) == [[1, 2]] * 2


def test_beyond_1_again_and_again(world: Any) -> None:
    """A rank that dies again is healed again, and one that had been well before is."""
    procs = world.procs(3)
    members = procs.spawn("member", Member)
    for dead in (1, 1, 2, 0):
        members.note.call("here").get(PATIENCE)
        world.kill(procs.slice(gpus=dead))
        assert procs.heal().get(PATIENCE) == [dead]
        assert members.slice(gpus=dead).note.call_one("first").get(PATIENCE) == ["first"]


def test_beyond_1_all_ranks_have_died(world: Any) -> None:
    """Then all come back; the process mesh is one that its hosts know, as before."""
    procs = world.procs(2)
    members = procs.spawn("member", Member)
    members.note.call("here").get(PATIENCE)
    world.kill(procs)
    assert procs.heal().get(PATIENCE) == [0, 1]
    assert values(members.note.call("here")) == [["here"]] * 2
    world.host.stop().get(PATIENCE)
    with pytest.raises(SupervisionError, match="its host mesh was stopped"):
        members.note.call("late").get(PATIENCE)


def test_beyond_1_two_heals_at_once(world: Any) -> None:
    """The second has nothing to do, and waits for the first."""
    procs, gate = world.procs(2), world.gate()
    members = procs.spawn("member", Waits, gate)
    gate.open(2)
    members.initialized.get(PATIENCE)
    world.kill(procs.slice(gpus=1))
    first, second = procs.heal(), procs.heal()
    assert {gate.wait_told() for _ in range(3)} == {0, 1}
    assert not second.done()
    gate.open()
    assert [first.get(PATIENCE), second.get(PATIENCE)] == [[1], []]


class Waits(Actor):
    """Its constructor passes a gate."""

    def __init__(self, gate: Any) -> None:
        gate.pass_through(current_rank().rank)

    @endpoint
    def rank(self) -> int:
        return current_rank().rank


@pytest.mark.process
def test_beyond_1_the_process_is_started_as_before(processes: Any) -> None:
    """Environment and bootstrap, in a process of its own; all ranks of the mesh can meet again, at another port."""

    def surroundings(member: Any) -> Any:
        names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GIVEN", "BOOTED")
        return {name: os.environ.get(name) for name in names}

    def boot() -> None:
        os.environ["BOOTED"] = "yes"

    procs = processes.procs(2, bootstrap=boot, env={"GIVEN": "by the user"})
    members = procs.spawn("member", Member)
    before, pids = values(members.run.call(surroundings)), values(members.run.call(lambda member: os.getpid()))
    processes.kill(procs.slice(gpus=1))
    procs.heal().get(PATIENCE)
    again = values(members.run.call(surroundings))
    (old, _), (port, same) = ([each.pop("MASTER_PORT") for each in all_of_them] for all_of_them in (before, again))
    assert again == before
    assert port == same != old
    after = values(members.run.call(lambda member: os.getpid()))
    assert (after[0] == pids[0], after[1] == pids[1]) == (True, False)


@pytest.mark.process
def test_beyond_1_its_last_words_are_its_own(processes: Any) -> None:
    """The report of a second death has nothing of the first life in it."""
    procs = processes.procs(1)
    members = procs.spawn("member", Member)
    for incarnation in ("first life", "second life"):
        members.run.call_one(lambda member, text: print(text, file=sys.stderr), incarnation).get(PATIENCE)
        processes.kill(procs)
        with pytest.raises(ProcessDied) as caught:
            members.note.call_one("late").get(PATIENCE)
        assert caught.value.report.stderr == (incarnation,)
        procs.heal().get(PATIENCE)


# -- __restore__ -----------------------------------------------------------------------


class Restored(Member):
    def __restore__(self) -> None:
        assert self.made_with
        self.notes.append("restored")


class AsyncRestored(AsyncMember):
    async def __restore__(self) -> None:
        assert self.made_with
        self.notes.append("restored")


class MixedRestored(Member, mixed=True):
    async def __restore__(self) -> None:
        self.notes.append("restored")

    @endpoint
    async def wait(self) -> None: ...


@pytest.mark.parametrize("kind", [Restored, AsyncRestored, MixedRestored])
def test_beyond_1_what_comes_back_is_restored(world: Any, kind: type[Actor]) -> None:
    """After its constructor and before its first message; not at the spawn, and not where it was well."""
    procs = world.procs(2)
    members: Any = procs.spawn("member", kind)
    assert values(members.note.call("spawned")) == [["spawned"]] * 2
    world.kill(procs.slice(gpus=0))
    healing, first = procs.heal(), members.slice(gpus=0).note.call_one("first")
    assert healing.get(PATIENCE) == [0]
    assert first.get(PATIENCE) == ["restored", "first"]
    assert members.slice(gpus=1).note.call_one("next").get(PATIENCE) == ["spawned", "next"]


class Unrestorable(Member):
    def __restore__(self) -> None:
        raise ValueError("no checkpoint")


class AsyncUnrestorable(AsyncMember):
    async def __restore__(self) -> None:
        raise ValueError("no checkpoint")


class WrongColour(Member):
    async def __restore__(self) -> None: ...


def test_beyond_1_a_restore_of_the_other_kind_is_refused_at_the_spawn(world: Any) -> None:
    """Long before it would be needed."""
    with pytest.raises(ValueError, match="its endpoints are sync: make it a plain def"):
        world.procs(1).spawn("member", WrongColour)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Unrestorable, "ValueError: no checkpoint"),
        (AsyncUnrestorable, "ValueError: no checkpoint"),
    ],
)
def test_beyond_1_a_restore_that_fails(world: Any, faults: Any, kind: type[Actor], said: str) -> None:
    """The actor fails, as by its constructor: the heal raises, and so do calls; the owner is told."""
    procs = world.procs(2)
    members: Any = procs.spawn("member", kind)
    members.initialized.get(PATIENCE)
    world.kill(procs.slice(gpus=0))
    faults.get(timeout=PATIENCE)
    with pytest.raises(
        SupervisionError, match=f"(?s)Creating member again failed.*the __restore__ of member .* raised {said}"
    ):
        procs.heal().get(PATIENCE)
    with pytest.raises(SupervisionError, match=said):
        members.note.call("late").get(PATIENCE)
    assert said in faults.get(timeout=PATIENCE).report()


# -- who else holds on to it -----------------------------------------------------------


def test_beyond_1_references_work_wherever_they_are(world: Any) -> None:
    """Slices, pickles, and what other actors hold: of the same mesh, and of another that had called it before."""
    procs, elsewhere = world.procs(3), world.spawn(Member, gpus=1)
    members, askers = procs.spawn("member", Member), procs.spawn("asker", Member)
    taken, kept = members.slice(gpus=slice(1, 3)), pickle.dumps(members)
    for reply_handler in (elsewhere, askers.slice(gpus=0)):
        assert values(reply_handler.ask.call_one(taken, rank_of)) == [0, 1]
    world.kill(procs.slice(gpus=1))
    procs.heal().get(PATIENCE)
    for handle in (taken, pickle.loads(kept).slice(gpus=slice(1, 3))):
        assert values(handle.run.call(rank_of)) == [0, 1]
        for reply_handler in (elsewhere, askers.slice(gpus=0), askers.slice(gpus=1)):
            assert values(reply_handler.ask.call_one(handle, rank_of)) == [0, 1]
    newcomer = world.spawn(Member, gpus=1)
    assert values(newcomer.ask.call_one(taken, rank_of)) == [0, 1]
    assert values(members.slice(gpus=1).ask.call_one(newcomer, rank_of)) == [0]
    assert values(newcomer.ask.call_one(taken, rank_of)) == [0, 1]


def test_beyond_1_answers_to_the_previous_incarnation_are_dropped(world: Any) -> None:
    """What an actor asked before its end is answered after its return: that is no answer to what it asks now."""
    procs, gate, other = world.procs(1), world.gate(), world.spawn(Member, gpus=1)
    members = procs.spawn("member", Member)
    lost = members.run.call_one(lambda member: other.hold.call_one(gate, "to the first").get())
    assert gate.wait_told() == "to the first"
    world.kill(procs)
    with pytest.raises(ProcessDied):
        lost.get(PATIENCE)
    procs.heal().get(PATIENCE)
    now = members.run.call_one(lambda member: other.hold.call_one(gate, "to the second").get())
    gate.open(2)
    assert now.get(PATIENCE) == "to the second"


class Landlord(Actor):
    """Owns actors in processes of others."""

    def __init__(self, procs: ProcMesh) -> None:
        self.tenants = procs.spawn("tenant", Restored, "of the landlord's")

    @endpoint
    def give(self) -> Any:
        return self.tenants

    def __supervise__(self, failure: MeshFailure) -> bool:
        return True


def test_beyond_1_actors_of_other_owners_come_back(world: Any) -> None:
    """Each owner creates its own again, with what it had spawned them with."""
    procs, landlord = world.procs(2), world.procs(1)
    owner = landlord.spawn("landlord", Landlord, procs)
    tenants = owner.give.call_one().get(PATIENCE)
    assert values(tenants.note.call(0)) == [[0]] * 2
    world.kill(procs.slice(gpus=1))
    procs.heal().get(PATIENCE)
    assert values(tenants.note.call(1)) == [[0, 1], ["restored", 1]]
    assert values(tenants.run.call(made_with)) == [(("of the landlord's",), {})] * 2


def test_beyond_1_actors_that_were_stopped_stay_so(world: Any) -> None:
    """Of all ranks, or of that rank alone; who calls them is told, and does not wait."""
    procs = world.procs(2)
    stopped, partly, living = (procs.spawn(name, Member) for name in ("stopped", "partly", "living"))
    for mesh in (stopped, partly.slice(gpus=1)):
        mesh.stop().get(PATIENCE)
    living.initialized.get(PATIENCE)
    world.kill(procs.slice(gpus=1))
    procs.heal().get(PATIENCE)
    for mesh in (stopped, partly):
        with pytest.raises(SupervisionError, match="it was stopped, or never spawned"):
            mesh.slice(gpus=1).note.call_one("late").get(PATIENCE)
    assert living.slice(gpus=1).note.call_one(1).get(PATIENCE) == [1]
    assert partly.slice(gpus=0).note.call_one(1).get(PATIENCE) == [1]


# -- actors that fail while their process lives ----------------------------------------


@pytest.mark.parametrize("kind", [Restored, AsyncRestored])
def test_beyond_1_an_actor_that_failed_comes_back(world: Any, faults: Any, kind: type[Actor]) -> None:
    """Its process goes on, and the other actors in it."""
    procs = world.procs(2)
    members: Any = procs.spawn("member", kind)
    neighbours = procs.spawn("neighbour", Member)
    values(neighbours.note.call("before"))
    members.slice(gpus=1).run.broadcast(fail)
    assert faults.get(timeout=PATIENCE).crashed_ranks == [1]
    assert procs.heal().get(PATIENCE) == [1]
    assert values(members.note.call("now")) == [["now"], ["restored", "now"]]
    assert values(neighbours.note.call("after")) == [["before", "after"]] * 2
    members.slice(gpus=1).run.broadcast(fail)
    assert faults.get(timeout=PATIENCE).crashed_ranks == [1]  # it is told of a second time


class Slow(Restored):
    """Takes its time to end."""

    def __cleanup__(self, error: BaseException | None) -> None:
        if error is not None:
            gate, told = self.made_with[0]
            gate.pass_through("ends")
            told.tell("has ended")

    def __restore__(self) -> None:
        self.made_with[0][1].tell("comes back")
        super().__restore__()


def test_beyond_1_one_that_is_still_at_its_cleanup_is_waited_for(world: Any, faults: Any) -> None:
    """There are never two of one name: what is sent meanwhile is for the one that comes."""
    procs, gate, told = world.procs(1), world.gate(), world.gate()
    members = procs.spawn("member", Slow, gate, told)
    members.run.broadcast(fail)
    faults.get(timeout=PATIENCE)
    assert gate.wait_told() == "ends"
    healing = procs.heal()
    note = members.note.call_one("for the next")
    gate.open()
    assert healing.get(PATIENCE) == [0]
    assert note.get(PATIENCE) == ["restored", "for the next"]
    assert [told.wait_told(), told.wait_told()] == ["has ended", "comes back"]


class Moody(Actor):
    """Its constructor fails unless the file is there."""

    def __init__(self, path: str) -> None:
        open(path).close()

    @endpoint
    def rank(self) -> int:
        return current_rank().rank


def test_beyond_1_a_constructor_that_failed_is_run_again(world: Any, faults: Any, tmp_path: Any) -> None:
    """As long as it fails the heal raises that; then the mesh is one whose constructors have run."""
    procs, path = world.procs(2), tmp_path / "there"
    mesh = procs.spawn("moody", Moody, str(path))
    for _ in range(2):
        faults.get(timeout=PATIENCE)
    with pytest.raises(SupervisionError, match="FileNotFoundError"):
        procs.heal().get(PATIENCE)
    for _ in range(2):
        faults.get(timeout=PATIENCE)
    path.touch()
    assert procs.heal().get(PATIENCE) == [0, 1]
    assert mesh.initialized.get(PATIENCE) is None
    assert values(mesh.rank.call()) == [0, 1]


# -- what cannot be healed -------------------------------------------------------------


def test_beyond_1_a_rank_that_dies_while_it_is_healed(world: Any) -> None:
    """The heal raises that, and the next one heals it."""
    procs, gate = world.procs(2), world.gate()
    members = procs.spawn("member", Waits, gate)
    gate.open(2)
    members.initialized.get(PATIENCE)
    world.kill(procs.slice(gpus=1))
    healing = procs.heal()
    assert {gate.wait_told() for _ in range(3)} == {0, 1}
    world.kill(procs.slice(gpus=1))
    with pytest.raises(ProcessDied, match="sig=9"):
        healing.get(PATIENCE)
    if not world.has_processes:
        gate.open()  # who is dead waits on, as a thread
    gate.open()
    assert procs.heal().get(PATIENCE) == [1]
    assert values(members.rank.call()) == [0, 1]


def test_beyond_1_a_mesh_that_was_stopped_is_not_healed(world: Any) -> None:
    """Nor one whose host is gone."""
    procs = world.procs(2)
    procs.spawn("member", Member).initialized.get(PATIENCE)
    world.kill(procs.slice(gpus=1))
    procs.stop().get(PATIENCE)
    with pytest.raises(RuntimeError, match="`ProcMesh` has already been stopped"):
        procs.heal()
    assert len(context().actor_instance.node.ledger) == 0


def test_beyond_1_only_an_owner_heals(world: Any) -> None:
    """Not who holds a slice or a reference."""
    procs = world.procs(2)
    for reference in (procs.slice(gpus=1), pickle.loads(pickle.dumps(procs))):
        with pytest.raises(ValueError, match="ProcMesh is not owned; must be healed by an owner"):
            reference.heal()


# -- from within -----------------------------------------------------------------------


class Owner(Actor):
    """Owns a mesh, and heals it when it fails."""

    def __init__(self, note: Any, *, with_members: bool = True) -> None:
        self.note = note
        self.procs = this_host().spawn_procs(per_host={"gpus": 2})
        self.members = self.procs.spawn("member", Restored) if with_members else None

    def __supervise__(self, failure: MeshFailure) -> bool:
        procs = self.procs if self.members is not None else failure.mesh
        self.note.send((failure.mesh_name, failure.crashed_ranks, procs.heal().get()))
        return True

    @endpoint
    def give(self) -> Any:
        return self.members

    @endpoint
    def kill(self, rank: int) -> None:
        self.procs.initialized.get()
        self.procs.slice(gpus=rank).kill().get()


class AsyncOwner(Actor):
    """The same on a loop."""

    def __init__(self, note: Any, *, with_members: bool = True) -> None:
        self.note = note
        self.procs = this_host().spawn_procs(per_host={"gpus": 2})
        self.members = self.procs.spawn("member", Restored) if with_members else None

    async def __supervise__(self, failure: MeshFailure) -> bool:
        procs = self.procs if self.members is not None else failure.mesh
        self.note.send((failure.mesh_name, failure.crashed_ranks, await procs.heal()))
        return True

    @endpoint
    async def give(self) -> Any:
        return self.members

    @endpoint
    async def kill(self, rank: int) -> None:
        await self.procs.initialized
        await self.procs.slice(gpus=rank).kill()


@pytest.mark.parametrize("kind", [Owner, AsyncOwner])
def test_beyond_1_an_owner_heals_when_it_is_notified(world: Any, faults: Any, kind: type[Actor]) -> None:
    """From `__supervise__`, each time; the client has a reference, and sees nothing of it but that it works again."""
    port, notes = Channel[Any].open()
    owner: Any = world.procs(1).spawn("owner", kind, port)
    members = owner.give.call_one().get(PATIENCE)
    for rank in (1, 1, 0):
        values(members.note.call("before"))
        owner.kill.call_one(rank).get(PATIENCE)
        assert notes.recv().get(PATIENCE) == ("member", [rank], [rank])
        assert members.slice(gpus=rank).note.call_one("after").get(PATIENCE) == ["restored", "after"]
    assert faults.empty()


@pytest.mark.parametrize("kind", [Owner, AsyncOwner])
def test_beyond_1_a_mesh_without_actors(world: Any, faults: Any, kind: type[Actor]) -> None:
    """Then it is the process mesh that fails; the handle that the failure has can heal it."""
    port, notes = Channel[Any].open()
    owner: Any = world.procs(1).spawn("owner", kind, port, with_members=False)
    owner.kill.call_one(1).get(PATIENCE)
    assert notes.recv().get(PATIENCE) == ("procs", [1], [1])
    assert faults.empty()


# -- what follows a heal ----------------------------------------------------------------


def test_beyond_1_what_is_to_follow_is_waited_for(world: Any) -> None:
    """Groups of processes are made anew then: the new ranks are up, and the heal is not over."""
    procs, gate, told = world.procs(3), world.gate(), []
    members = procs.spawn("member", Member)

    def follow(mesh: ProcMesh, ranks: list[int]) -> Any:
        told.append((mesh, ranks))
        return members.slice(gpus=1).hold.call_one(gate, "asked")

    procs.after_heal(lambda mesh, ranks: None)
    procs.after_heal(follow)
    assert procs.heal().get(PATIENCE) == []
    assert told == []
    world.kill(procs.slice(gpus=1))
    healing = procs.heal()
    assert gate.wait_told() == "asked"
    assert not healing.done()
    gate.open()
    assert healing.get(PATIENCE) == [1]
    assert told == [(procs, [1])]


def test_beyond_1_a_heal_fails_with_what_should_follow(world: Any) -> None:
    """Whether that cannot begin or fails; the ranks are well."""
    procs = world.procs(2)
    members = procs.spawn("member", Member)
    members.initialized.get(PATIENCE)
    follow = [lambda: Future.failed(ValueError("did not come")), lambda: int("no number")]
    procs.after_heal(lambda mesh, ranks: follow.pop()())
    for said in ("no number", "did not come"):
        world.kill(procs.slice(gpus=1))
        with pytest.raises(ValueError, match=said):
            procs.heal().get(PATIENCE)
        assert values(members.run.call(rank_of)) == [0, 1]
