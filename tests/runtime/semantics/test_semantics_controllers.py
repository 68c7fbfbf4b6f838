"""Semantics: controllers, of which a whole run has one by a name."""

from __future__ import annotations

import os
from typing import Any

import pytest

from meshbook import (
    Actor,
    ActorError,
    SupervisionError,
    context,
    current_rank,
    endpoint,
    get_or_spawn_controller,
    this_host,
    this_proc,
)
from tests.support import PATIENCE


class Single(Actor):
    """Tells that it is made, and perhaps waits then."""

    def __init__(self, gate: Any = None, *, waits: bool = False, fails: str = "") -> None:
        self.count = 0
        if gate is not None:
            gate.tell("made")
        if waits:
            gate.pass_through("waits")
        if fails:
            raise ValueError(fails)

    @endpoint
    def add(self) -> int:
        self.count += 1
        return self.count

    @endpoint
    def identity(self) -> tuple[str, int]:
        here = context().actor_instance
        return here.actor_id, os.getpid()

    @endpoint
    def fail(self) -> None:
        raise ValueError("in a broadcast")

    @endpoint
    def end(self) -> None:
        raise SystemExit("it had enough")

    @endpoint
    def spawn_here_and_there(self) -> tuple[int, int]:
        """The process of what it spawns by `this_proc`, and by `this_host`."""
        procs = this_host().spawn_procs(per_host={"gpus": 1})
        here, there = this_proc().spawn("here", Single), procs.spawn("there", Single)
        found = here.identity.call_one().get(PATIENCE)[1], there.identity.call_one().get(PATIENCE)[1]
        procs.stop().get(PATIENCE)
        return found


class Other(Actor):
    @endpoint
    def add(self) -> int:
        return -1


class Seeker(Actor):
    """Asks for a controller, and uses it."""

    @endpoint
    def identity(self, name: str, *arguments: Any, **keywords: Any) -> tuple[str, int]:
        found = get_or_spawn_controller(name, Single, *arguments, **keywords).get(PATIENCE)
        return found.identity.call_one().get(PATIENCE)

    @endpoint
    def try_it(self, name: str, *arguments: Any, **keywords: Any) -> str:
        error = get_or_spawn_controller(name, Single, *arguments, **keywords).exception(PATIENCE)
        return f"{type(error).__name__}: {error}"

    @endpoint
    def pid(self) -> int:
        return os.getpid()


class AsyncSeeker(Actor):
    """The same on a loop."""

    @endpoint
    async def identity(self, name: str, *arguments: Any, **keywords: Any) -> tuple[str, int]:
        found = await get_or_spawn_controller(name, Single, *arguments, **keywords)
        return await found.identity.call_one()


def failed(future: Any, name: str) -> str:
    with pytest.raises(ActorError, match=f"Failure on {name}: ") as caught:
        future.get(PATIENCE)
    return str(caught.value)


# -- 38 --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Seeker, AsyncSeeker])
def test_38_a_controller_lives_in_the_clients_process(world: Any, kind: type[Actor]) -> None:
    """Whoever asked for it; in the node of the client also where all nodes are in one process."""
    seekers: Any = world.spawn(kind)
    found = set(seekers.identity.call("single").get(PATIENCE).values())
    [(identity, pid)] = found
    assert pid == os.getpid()
    assert identity.partition("/")[0] == world.session.node.address.node
    assert get_or_spawn_controller("single", Single).get(PATIENCE).identity.call_one().get(PATIENCE) == (identity, pid)


@pytest.mark.process
def test_38_a_controller_spawns_real_processes(processes: Any) -> None:
    """By `this_host()`; `this_proc()` is the client's own process to it."""
    single = get_or_spawn_controller("spawner", Single).get(PATIENCE)
    here, there = single.spawn_here_and_there.call_one().get(PATIENCE)
    assert here == os.getpid() != there


# -- 39 --------------------------------------------------------------------------------


def test_39_all_callers_get_the_same_controller(make_world: Any) -> None:
    """At the same time or later, from any process, with whatever class and arguments: it is made once."""
    world = make_world()
    gate = world.gate()
    sync, slow = world.spawn(Seeker, gpus=3), world.spawn(AsyncSeeker, gpus=3)
    own = [get_or_spawn_controller("single", Single, gate, waits=True) for _ in range(3)]
    theirs = [mesh.identity.call("single", gate, waits=True) for mesh in (sync, slow)]
    assert [gate.wait_told() for _ in range(2)] == ["made", "waits"]
    assert not any(future.done() for future in (*own, *theirs))
    gate.open(10)  # for all that might be made
    singles = [future.get(PATIENCE) for future in own]
    found = {identity for future in theirs for identity in future.get(PATIENCE).values()}
    found |= {single.identity.call_one().get(PATIENCE) for single in singles}
    assert len(found) == 1
    other: Any = get_or_spawn_controller("single", Other).get(PATIENCE)
    assert [single.add.call_one().get(PATIENCE) for single in (*singles, other)] == [1, 2, 3, 4]
    assert gate.told() == []


def test_39_another_name_is_another_one(make_world: Any) -> None:
    """And making one keeps nobody waiting who asks for the other."""
    world = make_world()
    gate = world.gate()
    held = get_or_spawn_controller("held", Single, gate, waits=True)
    assert [gate.wait_told() for _ in range(2)] == ["made", "waits"]
    single = get_or_spawn_controller("single", Single).get(PATIENCE)
    assert single.add.call_one().get(PATIENCE) == 1
    assert not held.done()
    gate.open()
    assert held.get(PATIENCE).add.call_one().get(PATIENCE) == 1


def test_39_one_that_could_not_be_made_stays_failed(make_world: Any, faults: Any) -> None:
    """Who waited for it is told, and who asks later: the constructor does not run again. It is nobody's fault else."""
    world = make_world()
    gate = world.gate()
    seekers = world.spawn(Seeker)
    first = [get_or_spawn_controller("broken", Single, gate, fails="no such device") for _ in range(2)]
    for future in first:
        assert "ValueError: no such device" in failed(future, "broken")
    for said in seekers.try_it.call("broken", gate).get(PATIENCE).values():
        assert said.startswith("ActorError: ")
        assert "Failure on broken: " in said
        assert "ValueError: no such device" in said
    failed(get_or_spawn_controller("broken", Single), "broken")
    assert gate.told() == ["made"]
    assert get_or_spawn_controller("whole", Single).get(PATIENCE).add.call_one().get(PATIENCE) == 1
    assert first_fault(world, faults) == "last"


@pytest.mark.parametrize("end", ["fail", "end"])
def test_39_one_that_has_died_stays_dead(make_world: Any, faults: Any, end: str) -> None:
    """Calls of who has it fail, and who asks for it is told why it died."""
    world = make_world()
    seekers = world.spawn(Seeker)
    single: Any = get_or_spawn_controller("single", Single).get(PATIENCE)
    getattr(single, end).broadcast()
    with pytest.raises(SupervisionError, match=r"in a broadcast|it had enough"):
        single.add.call_one().get(PATIENCE)
    for said in seekers.try_it.call("single").get(PATIENCE).values():
        assert "Failure on single: " in said
        assert ("in a broadcast" if end == "fail" else "it had enough") in said
    failed(get_or_spawn_controller("single", Single), "single")
    assert first_fault(world, faults) == "last"


def first_fault(world: Any, faults: Any) -> str:
    """The name of the mesh of the first fault that nobody handled; here one is caused, which comes after all others."""
    world.spawn(Single, gpus=1, name="last").fail.broadcast()
    name: str = faults.get(timeout=PATIENCE).mesh_name
    return name


def test_39_what_is_no_actor_is_refused_where_it_is_asked_for(in_memory: Any) -> None:
    """And takes no name."""
    for wrong in (int, Single.add, "Single"):
        with pytest.raises(ValueError, match="not a subclass of Actor"):
            get_or_spawn_controller("single", wrong)  # type: ignore[type-var,arg-type]
    with pytest.raises(TypeError, match="unknown"):
        get_or_spawn_controller("single", Single, unknown=1)
    assert get_or_spawn_controller("single", Single).get(PATIENCE).add.call_one().get(PATIENCE) == 1


def test_39_a_controller_may_ask_for_another(world: Any) -> None:
    """While it is made, too."""

    class Outer(Actor):
        def __init__(self) -> None:
            self.inner = get_or_spawn_controller("inner", Single).get(PATIENCE)

        @endpoint
        def add(self) -> int:
            return self.inner.add.call_one().get(PATIENCE) + current_rank().rank

    outer = get_or_spawn_controller("outer", Outer).get(PATIENCE)
    assert outer.add.call_one().get(PATIENCE) == 1
