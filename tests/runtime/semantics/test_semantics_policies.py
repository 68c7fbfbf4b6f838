"""Semantics: ranks that fail come back by themselves, where their mesh was spawned so."""

from __future__ import annotations

import queue
import time
from typing import Any

import pytest

from meshbook import (
    Actor,
    Channel,
    MeshFailure,
    ProcMesh,
    Restarts,
    SupervisionError,
    current_rank,
    endpoint,
    this_host,
)
from meshbook.runtime.errors import ProcessDied
from meshbook.runtime.mesh.actors import current_node
from meshbook.runtime.mesh.policies import Verdict
from meshbook.runtime.telemetry.events import RunEvent
from tests.support import PATIENCE


class Member(Actor):
    def __init__(self, gate: Any = None) -> None:
        self.notes: list[Any] = []
        if gate is not None:
            gate.tell(current_rank().rank)

    @endpoint
    def note(self, what: Any) -> list[Any]:
        self.notes.append(what)
        return self.notes

    @endpoint
    def hold(self, gate: Any) -> None:
        gate.pass_through("held")

    @endpoint
    def fail(self) -> None:
        raise ValueError("for nobody")


class Restored(Member):
    def __restore__(self) -> None:
        self.notes.append("restored")


def values(future: Any) -> list[Any]:
    return list(future.get(PATIENCE).values())


@pytest.fixture
def happened(world: Any) -> Any:
    """The events that come from here on."""
    heard: queue.SimpleQueue[RunEvent] = queue.SimpleQueue()
    world.session.events.when_added.append(heard.put)
    yield heard
    world.session.events.when_added.remove(heard.put)


def wait_for(happened: Any, kind: str) -> RunEvent:
    while (event := happened.get(timeout=PATIENCE)).kind != kind:
        pass
    return event  # type: ignore[no-any-return]


def once_it_is_back(call: Any) -> Any:
    """What the call returns once its actor is there again: the event "respawned" comes before the respawn."""
    end = time.monotonic() + PATIENCE
    while isinstance((future := call()).exception(PATIENCE), SupervisionError) and time.monotonic() < end:
        pass
    return future.get()


# -- processes -------------------------------------------------------------------------


def test_beyond_1_a_process_that_dies_comes_back_by_itself(world: Any, faults: Any, happened: Any) -> None:
    """With its actors, of all meshes; nobody is told, and what happened is in the log."""
    procs = world.procs(3, on_failure="respawn", name="trainers")
    members, others = procs.spawn("member", Restored), procs.spawn("other", Restored)
    values(members.note.call(1)), values(others.note.call(1))
    world.kill(procs.slice(gpus=1))
    healed = wait_for(happened, "healed")
    assert (healed.mesh, healed.procs, healed.ranks) == ("trainers", procs.name, (1,))
    for mesh in (members, others):
        assert values(mesh.note.call(2)) == [[1, 2], ["restored", 2], [1, 2]]
    assert faults.empty()
    mine = [event for event in world.session.events if event.procs == procs.name]
    assert [(event.kind, event.ranks) for event in mine] == [("failed", (1,)), ("respawned", (1,)), ("healed", (1,))]
    assert "sig=9" in mine[0].text


def test_beyond_1_so_does_one_without_actors(world: Any, faults: Any, happened: Any) -> None:
    procs = world.procs(2, on_failure="respawn")
    procs.initialized.get(PATIENCE)
    world.kill(procs.slice(gpus=0))
    wait_for(happened, "healed")
    assert procs.initialized.get(PATIENCE) is True
    assert faults.empty()


def test_beyond_1_callers_get_an_error_and_may_wait_for_the_heal(world: Any, happened: Any) -> None:
    """A retry is `heal().get()` and the call again: either heals, whoever is first."""
    procs, gate = world.procs(2, on_failure="respawn"), world.gate()
    members = procs.spawn("member", Member, gate)
    members.initialized.get(PATIENCE)
    for _ in range(3):
        waiting = members.slice(gpus=1).hold.call_one(gate)
        while gate.wait_told() != "held":  # before it the constructors
            pass
        world.kill(procs.slice(gpus=1))
        assert isinstance(waiting.exception(PATIENCE), ProcessDied)
        procs.heal().get(PATIENCE)
        assert members.slice(gpus=1).note.call_one("again").get(PATIENCE) == ["again"]


def test_beyond_1_a_respawn_has_a_limit(world: Any, faults: Any, happened: Any) -> None:
    """Then it goes on as without; each rank has its own; heal() still works."""
    procs = world.procs(2, on_failure="respawn", restarts=Restarts(most=2, within=3600))
    members = procs.spawn("member", Member)
    for _ in range(2):
        values(members.note.call(1))
        world.kill(procs.slice(gpus=1))
        wait_for(happened, "healed")
    values(members.note.call(1))
    world.kill(procs.slice(gpus=1))
    failure = faults.get(timeout=PATIENCE)
    assert (failure.mesh_name, failure.crashed_ranks) == ("member", [1])
    assert failure.report().endswith("it has reached its restart limit: 2 in 3600 s")
    assert wait_for(happened, "given up").ranks == (1,)
    with pytest.raises(ProcessDied):
        members.note.call(2).get(PATIENCE)
    world.kill(procs.slice(gpus=0))
    assert wait_for(happened, "healed").ranks == (0,)
    with pytest.raises(ProcessDied):  # that one is healed does not heal what was given up
        members.slice(gpus=1).note.call(2).get(PATIENCE)
    assert procs.heal().get(PATIENCE) == [1]
    values(members.note.call(3))
    assert faults.empty()


@pytest.mark.process
def test_beyond_1_a_process_that_cannot_start_is_not_started_for_ever(processes: Any, faults: Any) -> None:
    def boot() -> None:
        raise ValueError("no such library")

    procs = processes.procs(1, on_failure="respawn", bootstrap=boot)
    failure = faults.get(timeout=PATIENCE)
    assert "no such library" in failure.report()
    assert "it has reached its restart limit: 3 in 60 s" in failure.report()
    wanted = ["failed", "respawned"] * 3 + ["failed", "given up"]
    end = time.monotonic() + PATIENCE
    while [event.kind for event in processes.session.events if event.procs == procs.name] != wanted:
        assert time.monotonic() < end  # the last event may come after the failure


# -- actors ----------------------------------------------------------------------------


def test_beyond_1_an_actor_that_fails_comes_back_alone(world: Any, faults: Any, happened: Any) -> None:
    """Its process lives, and so do the others in it."""
    procs = world.procs(2, on_failure="respawn")
    members, others = procs.spawn("member", Restored), procs.spawn("other", Member)
    values(members.note.call(1)), values(others.note.call(1))
    members.slice(gpus=1).fail.broadcast()
    assert wait_for(happened, "respawned").mesh == "member"
    assert values(others.note.call(2)) == [[1, 2]] * 2
    assert members.slice(gpus=0).note.call_one(2).get(PATIENCE) == [1, 2]
    assert once_it_is_back(lambda: members.slice(gpus=1).note.call_one(2)) == ["restored", 2]
    assert faults.empty()


def test_beyond_1_a_policy_of_some_actors(world: Any, faults: Any, happened: Any) -> None:
    """Of those that are spawned by that handle; it heals their process, too."""
    procs = world.procs(2)
    stubborn, plain = procs.with_policy("respawn").spawn("stubborn", Restored), procs.spawn("plain", Member)
    values(stubborn.note.call(1)), values(plain.note.call(1))
    plain.slice(gpus=0).fail.broadcast()
    assert faults.get(timeout=PATIENCE).mesh_name == "plain"
    world.kill(procs.slice(gpus=1))
    assert faults.get(timeout=PATIENCE).mesh_name == "plain"
    assert wait_for(happened, "healed").ranks == (1,)
    assert values(stubborn.note.call(2)) == [[1, 2], ["restored", 2]]
    assert plain.slice(gpus=1).note.call_one(2).get(PATIENCE) == [2]
    with pytest.raises(SupervisionError, match="for nobody"):  # that was raised, and nobody healed it
        plain.slice(gpus=0).note.call_one(2).get(PATIENCE)
    assert faults.empty()


def test_beyond_1_a_policy_is_said_where_an_actor_is_spawned(world: Any, faults: Any, happened: Any) -> None:
    procs = world.procs(1)
    stubborn = procs.spawn("stubborn", Restored, on_failure="respawn", restarts=Restarts(most=1))
    stubborn.fail.broadcast()
    wait_for(happened, "respawned")
    once_it_is_back(lambda: stubborn.note.call(1))
    stubborn.fail.broadcast()
    assert faults.get(timeout=PATIENCE).report().endswith("it has reached its restart limit: 1 in 60 s")


class Choosy(Actor):
    def __init__(self, on_failure: str) -> None:
        self.what = on_failure

    @endpoint
    def tell(self) -> str:
        return self.what


def test_beyond_1_a_constructor_that_takes_such_a_parameter_gets_it(world: Any) -> None:
    assert values(world.procs(1).spawn("choosy", Choosy, on_failure="weep").tell.call()) == ["weep"]


def test_beyond_1_a_policy_that_says_nothing_is_refused(world: Any) -> None:
    with pytest.raises(ValueError, match="'weep'"):
        world.procs(1).spawn("member", Member, on_failure="weep")


class Broken(Actor):
    def __init__(self, gate: Any) -> None:
        gate.tell()
        raise ValueError("never works")

    @endpoint
    def hear(self) -> None: ...


def test_beyond_1_a_constructor_that_always_fails_is_given_up(world: Any, faults: Any) -> None:
    procs, gate = world.procs(1, on_failure="respawn", restarts=Restarts(most=2)), world.gate()
    broken = procs.spawn("broken", Broken, gate)
    failure = faults.get(timeout=PATIENCE)
    assert "ValueError: never works" in failure.report()
    assert "it has reached its restart limit: 2 in 60 s" in failure.report()
    assert len(gate.told()) == 3
    with pytest.raises(SupervisionError, match="never works"):
        broken.hear.call().get(PATIENCE)
    assert faults.empty()


def test_beyond_1_what_is_stopped_is_not_respawned(world: Any, faults: Any) -> None:
    procs = world.procs(2, on_failure="respawn")
    members = procs.spawn("member", Member)
    values(members.note.call(1))
    members.stop().get(PATIENCE)
    world.kill(procs.slice(gpus=0))
    procs.stop().get(PATIENCE)
    assert len(current_node().ledger) == 0
    assert faults.empty()


# -- a function that decides -------------------------------------------------------------


def test_beyond_1_a_function_decides(world: Any, faults: Any, happened: Any) -> None:
    """It is asked of each failure; what it lets go on is told to the owner."""
    asked, answers = [], ["respawn", "raise"]

    def decide(failure: MeshFailure) -> Verdict:
        asked.append((failure.mesh_name, failure.crashed_ranks))
        return answers.pop(0)  # type: ignore[return-value]

    procs = world.procs(2, on_failure=decide, name="trainers")
    members = procs.spawn("member", Member)
    values(members.note.call(1))
    world.kill(procs.slice(gpus=1))
    wait_for(happened, "healed")
    world.kill(procs.slice(gpus=1))
    failure = faults.get(timeout=PATIENCE)
    assert asked == [("trainers", [1])] * 2
    assert (failure.mesh_name, failure.remark) == ("member", "")


def wrong(failure: MeshFailure) -> Any:
    return True


def broken(failure: MeshFailure) -> Any:
    raise KeyError("what")


@pytest.mark.parametrize(
    ("decide", "said"),
    [(wrong, "returned True instead of"), (broken, "raised KeyError: 'what'")],
)
def test_beyond_1_a_function_that_does_not_decide(world: Any, faults: Any, decide: Any, said: str) -> None:
    """Then the failure goes on, with what became of the asking."""
    members = world.procs(1).with_policy(decide).spawn("member", Member)
    members.fail.broadcast()
    report = faults.get(timeout=PATIENCE).report()
    assert "for nobody" in report
    assert said in report


# -- owners ------------------------------------------------------------------------------


class Owner(Actor):
    """Hears of what its policy does not settle."""

    def __init__(self, note: Any, *, of_others: ProcMesh | None = None) -> None:
        self.note = note
        limit = Restarts(most=1, within=3600)
        if of_others is None:
            self.procs = this_host().spawn_procs(per_host={"gpus": 2}, on_failure="respawn", restarts=limit)
        else:
            self.procs = of_others.with_policy("respawn")
        self.members = self.procs.spawn("member", Restored)

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.note.send((failure.mesh_name, failure.crashed_ranks, failure.remark))
        return True

    @endpoint
    def give(self) -> Any:
        return self.members, self.procs


def test_beyond_1_an_owner_is_notified_of_actors_that_are_not_respawned(world: Any, faults: Any, happened: Any) -> None:
    """The policy comes before `__supervise__`."""
    port, notes = Channel[Any].open()
    owner: Any = world.procs(1).spawn("owner", Owner, port)
    members, procs = owner.give.call_one().get(PATIENCE)
    values(members.note.call(1))
    world.kill(procs.slice(gpus=1))
    wait_for(happened, "healed")
    assert values(members.note.call(2)) == [[1, 2], ["restored", 2]]
    world.kill(procs.slice(gpus=1))
    assert notes.recv().get(PATIENCE) == (
        *("member", [1]),
        "it has reached its restart limit: 1 in 3600 s",
    )
    assert faults.empty()


def test_beyond_1_an_unexpected_error_hides_no_failure(
    world: Any, faults: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def heal(*_: Any, **__: Any) -> Any:
        raise KeyError("what")

    procs = world.procs(2, on_failure="respawn")
    values(procs.spawn("member", Member).note.call(1))
    with monkeypatch.context() as patch:
        patch.setattr(ProcMesh, "heal_ranks", heal)
        world.kill(procs.slice(gpus=1))
        failure = faults.get(timeout=PATIENCE)
    assert failure.report().endswith("it could not be respawned: KeyError: 'what'")


def test_beyond_1_a_process_of_others_is_not_respawned(world: Any, faults: Any) -> None:
    """Its owner may do that; who only has actors there hears of it, as ever, and his actors come back then."""
    port, notes = Channel[Any].open()
    procs = world.procs(2)
    owner: Any = world.procs(1).spawn("owner", Owner, port, of_others=procs)
    members, _ = owner.give.call_one().get(PATIENCE)
    values(members.note.call(1))
    world.kill(procs.slice(gpus=1))
    remark = "it cannot be respawned from here: its process belongs to another owner"
    assert notes.recv().get(PATIENCE) == ("member", [1], remark)
    procs.heal().get(PATIENCE)
    assert values(members.note.call(2)) == [[1, 2], ["restored", 2]]
    faults.get(timeout=PATIENCE)  # of the processes, which the test owns


def test_beyond_1_what_follows_a_heal_follows_a_respawn(world: Any, happened: Any) -> None:
    """And a heal by the handle of a failure: there is one mesh, whoever has a handle of it."""
    followed: queue.SimpleQueue[Any] = queue.SimpleQueue()
    procs = world.procs(2, on_failure="respawn")
    procs.after_heal(lambda mesh, ranks: followed.put((mesh.name, ranks)))
    procs.spawn("member", Member).initialized.get(PATIENCE)
    world.kill(procs.slice(gpus=1))
    assert followed.get(timeout=PATIENCE) == (procs.name, [1])
