"""Semantics: stopping, in every order, and what calls say afterwards."""

from __future__ import annotations

import atexit
import gc
import queue
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pytest

from meshbook import Actor, MeshFailure, SupervisionError, context, endpoint, this_proc
from meshbook.runtime.hosts.faults import set_unhandled_fault_hook, unhandled_fault_hook
from tests.support import PATIENCE


class Member(Actor):
    def __init__(self) -> None:
        self.notes: list[str] = []

    @endpoint
    def note(self, what: str) -> list[str]:
        self.notes.append(what)
        return self.notes

    @endpoint
    def hold(self, gate: Any) -> None:
        gate.pass_through()

    @endpoint
    def tell(self, gate: Any, what: str) -> None:
        gate.tell(what)

    @endpoint
    def fail(self) -> None:
        raise ValueError("in a broadcast")


class AsyncMember(Actor):
    def __init__(self) -> None:
        self.notes: list[str] = []

    @endpoint
    async def note(self, what: str) -> list[str]:
        self.notes.append(what)
        return self.notes

    @endpoint
    async def hold(self, gate: Any) -> None:
        await gate.pass_through_async()

    @endpoint
    async def tell(self, gate: Any, what: str) -> None:
        gate.tell(what)


either = pytest.mark.parametrize("kind", [Member, AsyncMember])


def stopped(future: Any, reason: str) -> None:
    with pytest.raises(SupervisionError, match=rf"(?s)Endpoint call member\.\w+\(\) failed,.*stopped.*{reason}"):
        future.get(PATIENCE)


# -- 14 --------------------------------------------------------------------------------


@either
def test_14_calls_after_the_stop_of_an_actor_mesh_say_so(world: Any, kind: type[Actor]) -> None:
    """With the reason, for every verb; nothing hangs."""
    members: Any = world.spawn(kind, name="member")
    members.stop("enough for today: \ud800").get(PATIENCE)  # as in the text of an error
    stopped(members.note.call("late"), "enough for today")
    stopped(members.slice(gpus=1).note.call_one("late"), "enough for today")
    stopped(members.note.choose("late"), "enough for today")
    for future in members.note.stream("late"):
        stopped(future, "enough for today")
    members.note.broadcast("late")


@either
def test_14_calls_after_the_stop_of_the_processes_say_so(world: Any, kind: type[Actor]) -> None:
    """The same where the processes ended with the actors; nothing can be spawned there any more."""
    procs = world.procs(2)
    members: Any = procs.spawn("member", kind)
    procs.stop("enough for today").get(PATIENCE)
    stopped(members.note.call("late"), "enough for today")
    members.note.broadcast("late")
    with pytest.raises(RuntimeError, match="`ProcMesh` has already been stopped"):
        procs.spawn("more", kind)


@either
def test_14_what_was_sent_before_a_stop_is_handled_before_it(world: Any, kind: type[Actor]) -> None:
    """A stop waits its turn, for actors and for processes."""
    procs, gate, done = world.procs(1), world.gate(), world.gate()
    first: Any = procs.spawn("member", kind)
    second: Any = procs.spawn("member", kind)
    for member in (first, second):
        member.hold.broadcast(gate)  # holds it until the stop is on its way
        gate.wait_told()
        member.tell.broadcast(done, "told")
    ending = first.stop(), procs.stop()
    gate.open(2)
    for future in ending:
        future.get(PATIENCE)
    assert done.told() == ["told", "told"]


def test_14_only_the_stopped_mesh_is_stopped(world: Any) -> None:
    """Another actor mesh on the same processes goes on, and stopping a slice leaves the rest."""
    procs = world.procs(3)
    members, others = procs.spawn("member", Member), procs.spawn("other", Member)
    members.slice(gpus=1).stop("no more").get(PATIENCE)
    stopped(members.note.call("late"), "no more")
    assert members.slice(gpus=2).note.call_one("one").get(PATIENCE)
    assert list(others.note.call("one").get(PATIENCE).values()) == [["one"]] * 3


# -- 28 --------------------------------------------------------------------------------


@pytest.fixture
def unhandled() -> Iterator[queue.SimpleQueue[MeshFailure]]:
    """The unhandled faults of this test."""
    found: queue.SimpleQueue[MeshFailure] = queue.SimpleQueue()
    before = unhandled_fault_hook()
    set_unhandled_fault_hook(found.put)
    yield found
    set_unhandled_fault_hook(before)


def test_28_a_stop_is_no_fault(world: Any, unhandled: Any) -> None:
    """Not of actors, not of processes, not while calls are open: the first fault is the one that follows."""
    procs, gate = world.procs(2), world.gate()
    members = procs.spawn("member", Member)
    held = members.hold.call_each(gate)
    for _ in held:
        gate.wait_told()
    waiting = members.note.call("never")
    ending = procs.stop("enough")
    gate.open(2)
    ending.get(PATIENCE)
    waiting.exception(PATIENCE)
    world.spawn(Member).stop().get(PATIENCE)
    last = world.spawn(Member, gpus=1, name="last")
    last.fail.broadcast()
    assert unhandled.get(timeout=PATIENCE).mesh_name == "last"
    assert unhandled.empty()


def test_28_what_fails_on_the_way_to_a_stop_is_no_fault(world: Any, unhandled: Any) -> None:
    """Its owner does not want it any more: all of a mesh, or a slice of one that goes on."""
    members, others = world.spawn(Member, gpus=3), world.spawn(Member, gpus=1)
    gate = world.gate()
    for mesh in (members.slice(gpus=1), others):
        mesh.hold.broadcast(gate)
        gate.wait_told()
        mesh.fail.broadcast()
        ending = mesh.stop("enough")
        gate.open()
        ending.get(PATIENCE)
    assert members.slice(gpus=2).note.call_one("goes on").get(PATIENCE)
    members.slice(gpus=2).fail.broadcast()
    failure = unhandled.get(timeout=PATIENCE)
    assert (failure.mesh_name, failure.crashed_ranks) == ("member", [2])


class Traced:
    """Tells when it is finalised."""

    def __init__(self, gate: Any, name: str) -> None:
        self.tell = lambda: gate.tell(name)

    def __del__(self) -> None:
        self.tell()


class Owner(Actor):
    """Has something to be finalised: of its own, of the module `__main__`, at the exit."""

    def __init__(self, gate: Any) -> None:
        self.traced = Traced(gate, "actor")
        sys.modules["__main__"].traced = Traced(gate, "main")  # type: ignore[attr-defined]
        atexit.register(gate.tell, "atexit")


@pytest.mark.process
def test_28_finalisers_run_in_processes_that_are_stopped(processes: Any) -> None:
    """`__del__` and atexit, as in any process that ends well."""
    procs, gate = processes.procs(2), processes.gate()
    procs.spawn("owner", Owner, gate).initialized.get(PATIENCE)
    procs.stop().get(PATIENCE)
    assert sorted(gate.told()) == ["actor"] * 2 + ["atexit"] * 2 + ["main"] * 2


# -- 29 --------------------------------------------------------------------------------


def test_29_dropping_the_handles_stops_nothing(world: Any) -> None:
    """Neither processes nor actors: holders of a reference continue to use them."""
    procs = world.host.spawn_procs(per_host={"gpus": 2})
    members = procs.spawn("member", Member)
    assert list(members.note.call("before").get(PATIENCE).values()) == [["before"]] * 2
    references = cloudpickle.dumps((procs, members))
    handle = weakref.ref(members)
    del procs, members
    gc.collect()
    assert handle() is None
    procs, members = cloudpickle.loads(references)
    assert list(members.note.call("after").get(PATIENCE).values()) == [["before", "after"]] * 2
    world.kill(procs)


def test_29_the_client_keeps_nothing_of_meshes_that_ended(world: Any) -> None:
    """However many it spawns and stops, of processes and of actors on the same process."""
    node = context().actor_instance.node

    def kept() -> tuple[int, ...]:
        host = len(world.host._ownership.meshes)
        return len(node.ledger), len(node.table), len(node.peers.when_down), len(node.actors.names()), host

    procs = world.procs(1)
    procs.initialized.get(PATIENCE)
    before, handles = kept(), []
    for _ in range(3):
        more = world.host.spawn_procs(per_host={"gpus": 1})
        members = more.spawn("member", Member)
        members.note.call_one("once").get(PATIENCE)
        handles += [weakref.ref(more), weakref.ref(members)]
        more.stop().get(PATIENCE)
        del more, members
        for mesh in (procs, this_proc()):
            member = mesh.spawn("member", Member)
            member.note.call_one("once").get(PATIENCE)
            member.stop().get(PATIENCE)
    assert kept() == before
    gc.collect()
    assert [handle() for handle in handles] == [None] * 6


# -- 31 --------------------------------------------------------------------------------


@either
def test_31_actors_first_and_processes_after(world: Any, kind: type[Actor]) -> None:
    """Stopping an actor mesh and then its processes works, and so does stopping either again."""
    procs = world.procs(2)
    members: Any = procs.spawn("member", kind)
    for _ in range(2):
        assert members.stop().get(PATIENCE) is None
    for _ in range(2):
        assert procs.stop().get(PATIENCE) is None
    stopped(members.note.call("late"), "stopped by client")


def test_31_without_waiting_in_between(world: Any) -> None:
    """Neither stop loses the other's confirmation, be the processes just starting or up."""
    for is_up in (False, True):
        procs = world.procs(2)
        members = procs.spawn("member", Member)
        if is_up:
            members.initialized.get(PATIENCE)
        ending = members.stop(), procs.stop()
        assert [future.get(PATIENCE) for future in ending] == [None, None]


def test_31_processes_first_and_actors_after(world: Any) -> None:
    """An actor whose process has ended is stopped, whatever ended the process; the others are waited for."""
    procs = world.procs(2)
    members, others = procs.spawn("member", Member), procs.spawn("other", Member)
    members.initialized.get(PATIENCE)
    world.kill(procs.slice(gpus=0))
    assert members.stop().get(PATIENCE) is None
    stopped(members.slice(gpus=1).note.call_one("late"), "stopped by client")
    procs.stop().get(PATIENCE)
    assert others.stop().get(PATIENCE) is None
