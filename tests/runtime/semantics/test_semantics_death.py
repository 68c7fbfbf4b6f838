"""Semantics: processes that die, and what becomes of who waited and of the rest."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from meshbook import Actor, SupervisionError, current_rank, endpoint, this_host
from meshbook.runtime.mesh.actors import current_node
from meshbook.runtime.mesh.host_ownership import when_ended
from tests.support import PATIENCE, died


class Member(Actor):
    @endpoint
    def rank(self) -> int:
        return current_rank().rank

    @endpoint
    def hold(self, gates: list[Any]) -> None:
        gates[current_rank().rank].pass_through()

    @endpoint
    def run(self, function: Any, *arguments: Any) -> Any:
        return function(*arguments)

    @endpoint
    def end(self) -> None:
        raise SystemExit("it had enough")


# -- 15 --------------------------------------------------------------------------------


def test_15_callers_of_a_dead_process_get_an_error(world: Any) -> None:
    """Each future that waits for it raises SupervisionError, and so does each later call; the others answer."""
    procs, gates = world.procs(3), [world.gate() for _ in range(3)]
    members = procs.spawn("member", Member)
    held = members.hold.call_each(gates)
    for gate in gates:
        gate.wait_told()
    queued, gathered = members.rank.call_each(), members.rank.call()
    world.kill(procs.slice(gpus=1))
    for future in (held[1], queued[1], gathered, members.rank.call()):
        assert "Endpoint call member." in str(died(future))
    for gate in gates:
        gate.open()
    assert [queued[rank].get(PATIENCE) for rank in (0, 2)] == [0, 2]


def test_15_a_mesh_with_a_dead_process_can_be_stopped(world: Any) -> None:
    """`ProcMesh.stop()` ends the rest, and calls then say that it was stopped."""
    procs = world.procs(2)
    members = procs.spawn("member", Member)
    members.initialized.get(PATIENCE)
    world.kill(procs.slice(gpus=0))
    assert procs.stop().get(PATIENCE) is None
    with pytest.raises(SupervisionError, match="stopped"):
        members.slice(gpus=1).rank.call_one().get(PATIENCE)


@pytest.mark.process
def test_15_a_process_that_is_killed_from_outside(processes: Any) -> None:
    """The same where the system or a person kills it: nobody has to ask for it."""
    members, gates = processes.spawn(Member), [processes.gate() for _ in range(2)]
    killed = psutil.Process(members.slice(gpus=1).run.call_one(os.getpid).get(PATIENCE))
    waiting = members.hold.call(gates)
    killed.kill()
    assert died(waiting).report.pid == killed.pid


# -- 16 --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "said"), [(9, "Killed(sig=9) (SIGKILL"), (15, "Terminated(sig=15) (SIGTERM"), (6, "Aborted(sig=6)")]
)
def test_16_the_report_names_the_signal(world: Any, number: int, said: str) -> None:
    """By number and name, with the process that it was."""
    procs = world.procs(2)
    members = procs.spawn("member", Member)
    members.initialized.get(PATIENCE)
    world.kill(procs.slice(gpus=1), number)
    error = died(members.rank.call())
    assert f"the process this actor was running on failed: {said}" in str(error)
    assert f"{procs.nodes[1].node}, pid {error.report.pid})" in str(error)
    assert error.report.returncode == -number


def fail() -> None:
    raise ValueError("no such device")


def test_16_the_report_names_the_exit_code(world: Any) -> None:
    """Of a process that ended by itself, here for what its bootstrap raised; and it has the last lines of stderr."""
    error = died(world.procs(1, bootstrap=fail).initialized)
    assert "exit code 1" in str(error)
    assert error.report.stderr[-1] == "ValueError: no such device"


def crash() -> None:
    import ctypes

    ctypes.string_at(0)


@pytest.mark.process
@pytest.mark.parametrize(
    ("end", "said"), [(lambda: os._exit(3), "exit code 3"), (crash, "Segmentation fault(sig=11) (SIGSEGV")]
)
def test_16_a_process_that_ends_itself(processes: Any, end: Callable[[], None], said: str) -> None:
    """An exit in the midst of an endpoint is a death as well, whatever its code, and a crash is one by a signal."""
    assert said in str(died(processes.spawn(Member, gpus=1).run.call_one(end)))


# -- 17 --------------------------------------------------------------------------------


def test_17_a_dead_rank_fails_its_mesh_and_the_slices_that_have_it(world: Any) -> None:
    """Disjoint slices answer as before; a slice taken afterwards knows of the death."""
    procs = world.procs(4)
    members = procs.spawn("member", Member)
    before = members.slice(gpus=slice(2, 4)), members.slice(gpus=slice(0, 3))
    members.initialized.get(PATIENCE)
    world.kill(procs.slice(gpus=3))
    after = members.slice(gpus=slice(2, 4)), members.slice(gpus=slice(0, 3))
    for with_it, without_it in (before, after):
        died(with_it.rank.call())
        assert list(without_it.rank.call().get(PATIENCE).values()) == [0, 1, 2]
    died(members.rank.call())
    died(members.slice(gpus=3).rank.call_one())


def test_17_an_actor_that_ended_fails_its_mesh_and_no_other(world: Any) -> None:
    """Its process lives, and with it the other meshes on the same processes."""
    procs = world.procs(3)
    members, others = procs.spawn("member", Member), procs.spawn("other", Member)
    with pytest.raises(SupervisionError, match="SystemExit: it had enough"):
        members.slice(gpus=2).end.call_one().get(PATIENCE)
    for part in (members, members.slice(gpus=slice(1, 3)), members.slice(gpus=2)):
        with pytest.raises(SupervisionError, match="SystemExit: it had enough"):
            part.rank.call().get(PATIENCE)
    assert list(members.slice(gpus=slice(0, 2)).rank.call().get(PATIENCE).values()) == [0, 1]
    assert list(others.rank.call().get(PATIENCE).values()) == [0, 1, 2]


def test_17_all_actors_of_a_dead_process_are_lost_and_no_other_process(world: Any) -> None:
    """Each actor mesh on it fails; meshes on other processes do not."""
    procs, elsewhere = world.procs(2), world.spawn(Member)
    meshes = [procs.spawn(name, Member) for name in ("one", "two")]
    for mesh in meshes:
        mesh.initialized.get(PATIENCE)
    world.kill(procs.slice(gpus=1))
    for mesh in meshes:
        died(mesh.rank.call())
        assert mesh.slice(gpus=0).rank.call_one().get(PATIENCE) == 0
    assert list(elsewhere.rank.call().get(PATIENCE).values()) == [0, 1]


def test_17_a_failed_mesh_chooses_no_other_rank(world: Any) -> None:
    """It has failed as a whole: whether the call fails is no matter of luck. Where a slice has no failed rank it goes
    on, and so does another mesh."""
    procs = world.procs(4)
    members, others = procs.spawn("member", Member), procs.spawn("other", Member)
    members.initialized.get(PATIENCE)
    with pytest.raises(SupervisionError, match="it had enough"):
        members.slice(gpus=2).end.call_one().get(PATIENCE)
    world.kill(procs.slice(gpus=3))
    for part, said in ((members, "it had enough|Killed"), (members.slice(gpus=slice(1, 3)), "it had enough")):
        for _ in range(8):
            with pytest.raises(SupervisionError, match=said):
                part.rank.choose().get(PATIENCE)
    assert {members.slice(gpus=slice(0, 2)).rank.choose().get(PATIENCE) for _ in range(8)} <= {0, 1}
    assert {others.slice(gpus=slice(0, 3)).rank.choose().get(PATIENCE) for _ in range(8)} <= {0, 1, 2}
    died(others.rank.choose())


# -- 18 --------------------------------------------------------------------------------


class Founder(Actor):
    """Spawns where it is told to, be that on processes of somebody else, and hands references out."""

    @endpoint
    def spawn(self, procs: Any) -> Any:
        self.members = procs.spawn("child", Member)
        return self.members

    @endpoint
    def spawn_on_own(self) -> Any:
        self.procs = this_host().spawn_procs(per_host={"gpus": 2})
        self.members = self.procs.spawn("child", Member)
        return self.members

    @endpoint
    def spawn_below(self, founder: Any, procs: Any) -> Any:
        return founder.spawn.call_one(procs).get(PATIENCE)


class AsyncFounder(Actor):
    """The same on a loop."""

    @endpoint
    async def spawn(self, procs: Any) -> Any:
        self.members = procs.spawn("child", Member)
        return self.members


def wait_for_end(node: str) -> None:
    """Return when the process that runs this has heard of the end of another."""
    when_ended(current_node(), [node]).get(PATIENCE)


def abandoned(future: Any, owner: str) -> None:
    said = f"timed out reaching controller {re.escape(owner)} for mesh child"
    with pytest.raises(SupervisionError, match=rf"(?s)Endpoint call child\.\w+\(\) failed,.*{said}"):
        future.get(PATIENCE)


@pytest.mark.parametrize("kind", [Founder, AsyncFounder])
def test_18_holders_of_a_reference_get_an_error_when_the_owner_vanishes(world: Any, kind: type[Actor]) -> None:
    """It vanished without a goodbye, and nobody answers for the actors that it spawned: they end, though their
    processes are somebody else's. Who waits for them is told, and who calls later."""
    owners, procs, gates = world.procs(1), world.procs(2), [world.gate() for _ in range(2)]
    founder: Any = owners.spawn("founder", kind)
    children = founder.spawn.call_one(procs).get(PATIENCE)
    bystanders = procs.spawn("bystander", Member)
    held, queued = children.hold.call_each(gates), children.rank.call_each()
    for gate in gates:
        gate.wait_told()
    owner = owners.nodes[0].node
    world.kill(owners)
    bystanders.run.call(wait_for_end, owner).get(PATIENCE)
    late = children.rank.call()
    assert not any(future.done() for future in (*held, *queued, late))  # they are at what they were sent before
    for gate in gates:
        gate.open()
    assert [future.get(PATIENCE) for future in held] == [None, None]
    assert [future.get(PATIENCE) for future in queued] == [0, 1]
    for future in (late, children.rank.call(), children.slice(gpus=1).rank.call_one()):
        abandoned(future, owner)
    assert list(bystanders.rank.call().get(PATIENCE).values()) == [0, 1]


class Slow(Member):
    def __init__(self, gate: Any) -> None:
        gate.pass_through()


class SlowFounder(Actor):
    @endpoint
    def spawn(self, procs: Any, gate: Any) -> Any:
        return procs.spawn("child", Slow, gate)


def test_18_what_has_just_been_spawned_is_abandoned_as_well(world: Any) -> None:
    """It ends when its constructor is through."""
    owners, procs, gate = world.procs(1), world.procs(1), world.gate()
    bystander = procs.spawn("bystander", Member)
    children = owners.spawn("founder", SlowFounder).spawn.call_one(procs, gate).get(PATIENCE)
    gate.wait_told()
    owner = owners.nodes[0].node
    world.kill(owners)
    bystander.run.call(wait_for_end, owner).get(PATIENCE)
    late = children.rank.call()
    assert not late.done()
    gate.open()
    abandoned(late, owner)


def test_18_only_what_the_vanished_owner_has_spawned_is_abandoned(world: Any) -> None:
    """Its own processes end, too. What it has asked another actor to spawn is that one's."""
    owners, procs = world.procs(1), world.procs(1)
    founder, other = owners.spawn("founder", Founder), procs.spawn("other", Founder)
    children = founder.spawn_on_own.call_one().get(PATIENCE)
    others = founder.spawn_below.call_one(other, procs).get(PATIENCE)
    children.initialized.get(PATIENCE)
    assert others.rank.call_one().get(PATIENCE) == 0
    world.kill(owners)
    with pytest.raises(SupervisionError, match="its owner has ended"):
        children.hold.call([world.gate(), world.gate()]).get(PATIENCE)
    assert others.rank.call_one().get(PATIENCE) == 0
