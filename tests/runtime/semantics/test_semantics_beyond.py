"""Semantics: where meshbook goes beyond the model that it follows."""

from __future__ import annotations

import asyncio
import queue
import threading
import warnings
from typing import Any

import pytest
from ipykernel.kernelapp import IPKernelApp

from meshbook import (
    Actor,
    ActorError,
    MeshFailure,
    SupervisionError,
    concurrent_endpoint,
    context,
    current_rank,
    endpoint,
)
from meshbook.runtime.hosts.faults import default_hook, set_unhandled_fault_hook
from tests.support import PATIENCE


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


# -- 4 ---------------------------------------------------------------------------------


class Mixed(Actor, mixed=True):
    """Some of its endpoints block, others await."""

    def __init__(self, gate: Any = None) -> None:
        self.gate = gate
        self.mine = threading.local()
        self.mine.value = "of the constructor"
        self.notes: list[str] = []

    @endpoint
    def block(self, gate: Any) -> None:
        self.notes.append("block begins")
        gate.pass_through("blocks")
        self.notes.append("block ends")

    @endpoint
    async def wait(self, gate: Any) -> None:
        self.notes.append("wait begins")
        await gate.pass_through_async("waits")
        self.notes.append("wait ends")

    @concurrent_endpoint
    async def overlap(self, gate: Any) -> str:
        return await gate.pass_through_async("overlaps")

    @endpoint
    def read(self) -> list[str]:
        return self.notes

    @endpoint
    def look(self) -> tuple[str, bool, int]:
        return getattr(self.mine, "value", ""), asyncio._get_running_loop() is not None, threading.get_ident()

    @endpoint
    async def look_on_the_loop(self) -> tuple[str, bool, int]:
        return getattr(self.mine, "value", ""), asyncio._get_running_loop() is not None, threading.get_ident()

    @endpoint
    def ask(self, other: Any) -> list[str]:
        """Wait as sync endpoints do; what Python warns of."""
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            other.read.call_one().get(PATIENCE)
        return [str(each.message) for each in warned]

    @endpoint
    def fail(self) -> None:
        raise ValueError("in a sync one")

    @endpoint
    async def fail_on_the_loop(self) -> None:
        raise ValueError("in an async one")

    @endpoint
    def end(self, gate: Any) -> None:
        context().actor_instance.abort("enough")
        gate.pass_through("has aborted")
        self.gate.tell("has ended")

    def __cleanup__(self, error: BaseException | None) -> None:
        if self.gate is not None:
            self.gate.tell("cleans up")


class MixedBelow(Mixed):
    """A class of the kind stays one."""

    @endpoint
    async def below(self) -> str:
        return "below"


@pytest.mark.parametrize("kind", [Mixed, MixedBelow])
def test_beyond_4_sync_endpoints_have_the_actors_thread_and_async_ones_a_loop(world: Any, kind: type[Mixed]) -> None:
    """The sync ones share what the constructor has kept in its thread, see no loop, and may block."""
    procs = world.procs(1)
    mixed, other = procs.spawn("mixed", kind), procs.spawn("other", Mixed)
    sync = [mixed.look.call_one().get(PATIENCE) for _ in range(2)]
    slow = [mixed.look_on_the_loop.call_one().get(PATIENCE) for _ in range(2)]
    assert sync == [("of the constructor", False, sync[0][2])] * 2
    assert slow == [("", True, slow[0][2])] * 2
    assert sync[0][2] != slow[0][2]
    assert mixed.ask.call_one(other).get(PATIENCE) == []


def test_beyond_4_a_sync_endpoint_does_not_block_the_loop(world: Any) -> None:
    """What overlaps goes on meanwhile."""
    mixed, gates = world.spawn(Mixed, gpus=1), [world.gate() for _ in range(2)]
    overlapping = mixed.overlap.call_one(gates[0])
    assert gates[0].wait_told() == "overlaps"
    blocking = mixed.block.call_one(gates[1])
    assert gates[1].wait_told() == "blocks"
    gates[0].open()
    assert overlapping.get(PATIENCE) == "overlaps"
    assert not blocking.done()
    gates[1].open()
    blocking.get(PATIENCE)


def test_beyond_4_it_is_still_one_message_at_a_time(world: Any) -> None:
    """In the order in which they were sent, of whichever kind."""
    procs, gate = world.procs(1), world.gate()
    mixed, other = procs.spawn("mixed", Mixed), procs.spawn("other", Mixed)
    for name in ("block", "wait", "block"):
        getattr(mixed, name).broadcast(gate)
    notes = mixed.read.call_one()
    for said in ("blocks", "waits", "blocks"):
        assert gate.wait_told() == said
        other.read.call_one().get(PATIENCE)
        assert gate.told() == []
        gate.open()
    assert notes.get(PATIENCE) == [
        f"{name} {what}" for name in ("block", "wait", "block") for what in ("begins", "ends")
    ]


@pytest.mark.parametrize("name", ["fail", "fail_on_the_loop"])
def test_beyond_4_errors_are_those_of_any_actor(world: Any, faults: Any, name: str) -> None:
    """To the caller, or to the owner if there is none."""
    mixed = world.spawn(Mixed, gpus=1)
    with pytest.raises(ActorError, match=r"ValueError: in an? (a?sync) one"):
        getattr(mixed, name).call_one().get(PATIENCE)
    assert mixed.read.call_one().get(PATIENCE) == []
    getattr(mixed, name).broadcast()
    assert "raised in a broadcast" in faults.get(timeout=PATIENCE).report()
    with pytest.raises(SupervisionError, match="raised in a broadcast"):
        mixed.read.call_one().get(PATIENCE)


def test_beyond_4_what_is_under_way_ends_before_the_cleanup(world: Any, faults: Any) -> None:
    """Also where the actor is lost meanwhile: a sync endpoint cannot be broken off."""
    notes, gate = world.gate(), world.gate()
    mixed = world.spawn(Mixed, notes, gpus=1)
    ending = mixed.end.call_one(gate)
    assert gate.wait_told() == "has aborted"
    with pytest.raises(SupervisionError, match="aborted: enough"):
        mixed.read.call_one().get(PATIENCE)
    assert "aborted: enough" in faults.get(timeout=PATIENCE).report()
    stopping = mixed.stop()
    assert notes.told() == []
    gate.open()
    assert [notes.wait_told() for _ in range(2)] == ["has ended", "cleans up"]
    with pytest.raises(SupervisionError, match="aborted: enough"):
        ending.get(PATIENCE)
    stopping.get(PATIENCE)


class NotMixed(Mixed, mixed=False):
    """Takes it back."""


def test_beyond_4_the_default_is_the_rule_of_one_kind(in_memory: Any) -> None:
    """And the error says what else there is."""
    with pytest.raises(ValueError, match=r"(?s)mixes both async and sync.*class NotMixed\(Actor, mixed=True\)"):
        in_memory.procs(1).spawn("mixed", NotMixed)


# -- 5 ---------------------------------------------------------------------------------


@pytest.fixture
def notebook() -> Any:
    """This process is that of a kernel, as far as anybody can tell."""
    IPKernelApp.instance()
    yield
    IPKernelApp.clear_instance()


def outcome_of(failure: MeshFailure) -> str:
    try:
        default_hook(failure)
    except SystemExit as end:
        return f"exit code {end.code}"
    return "goes on"


@pytest.mark.usefixtures("notebook")
def test_beyond_5_a_fault_does_not_end_a_notebook(world: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """It is shown, and the session and everything else in it live. (In which cell: tests/kernel/test_faults.py.)"""
    outcomes: queue.SimpleQueue[str] = queue.SimpleQueue()
    set_unhandled_fault_hook(lambda failure: outcomes.put(outcome_of(failure)))
    members = world.spawn(Member)
    members.slice(gpus=1).fail_on.broadcast(0)
    assert outcomes.get(timeout=PATIENCE) == "goes on"
    assert "MeshFailure of mesh member, crashed_ranks=[1]: " in capsys.readouterr().err
    assert members.slice(gpus=0).fail_on.call_one().get(PATIENCE) == 0


def test_beyond_5_a_script_ends_there(world: Any) -> None:
    """With exit code 1: the hook rules in scripts. (What of the script still runs: point 23.)"""
    outcomes: queue.SimpleQueue[str] = queue.SimpleQueue()
    set_unhandled_fault_hook(lambda failure: outcomes.put(outcome_of(failure)))
    world.spawn(Member).slice(gpus=1).fail_on.broadcast(0)
    assert outcomes.get(timeout=PATIENCE) == "exit code 1"
