"""Semantics: time limits of calls, where meshbook goes beyond the model that it follows."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshbook import Actor, CallTimeout, SupervisionError, current_rank, endpoint
from meshbook.runtime.transport.io_loop import Timer
from tests.support import PATIENCE

SHORT = 0.05


class Member(Actor):
    @endpoint
    def work(self, gates: list[Any], wanted: tuple[int, ...] = ()) -> int:
        rank = current_rank().rank
        if rank in wanted:
            gates[rank].pass_through()
        return rank

    @endpoint
    def other(self, gate: Any) -> None:
        gate.pass_through()

    @endpoint
    def rank(self) -> int:
        return current_rank().rank

    @endpoint
    def pid(self) -> int:
        return os.getpid()


class AsyncMember(Actor):
    @endpoint
    async def work(self, gates: list[Any], wanted: tuple[int, ...] = ()) -> int:
        rank = current_rank().rank
        if rank in wanted:
            await gates[rank].pass_through_async()
        return rank

    @endpoint
    async def other(self, gate: Any) -> None:
        await gate.pass_through_async()

    @endpoint
    async def rank(self) -> int:
        return current_rank().rank


@pytest.fixture(params=[Member, AsyncMember])
def member(request: pytest.FixtureRequest) -> type[Actor]:
    return request.param  # type: ignore[no-any-return]


def late(future: Any) -> CallTimeout:
    with pytest.raises(CallTimeout) as caught:
        future.get(PATIENCE)
    assert isinstance(caught.value, TimeoutError)
    return caught.value


class Time:
    """Stands still for the client's node, until the test lets the next thing happen that is due."""

    def __init__(self, world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self._due: list[Timer] = []
        monkeypatch.setattr(world.session.node.calls, "call_later", self._call_later)

    def _call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        self._due.append(Timer(callback))
        return self._due[-1]

    def go_on(self) -> None:
        self._due.pop(0).run()


@pytest.fixture
def time(world: Any, monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(world, monkeypatch)


def test_beyond_8_a_call_that_is_not_answered_in_time_fails(world: Any, member: Any) -> None:
    """By every verb with one answer; the endpoint goes on, and what it answers is dropped."""
    gates = [world.gate()]
    mesh = world.spawn(member, gpus=1, name="member")
    calls: list[Callable[[], Any]] = [
        lambda: mesh.work.call(gates, (0,), timeout=SHORT),
        lambda: mesh.work.call_one(gates, (0,), timeout=SHORT),
        lambda: mesh.work.choose(gates, (0,), timeout=0),
        lambda: mesh.work.within(SHORT).call(gates, (0,)),
    ]
    for call in calls:
        error = late(call())
        assert str(error).startswith("member.work() timed out: the actor did not answer within 0")
        gates[0].wait_told()
        gates[0].open()
        assert mesh.rank.call_one().get(PATIENCE) == 0


def test_beyond_8_it_can_be_awaited(world: Any, member: Any) -> None:
    """As every future."""
    gates = [world.gate()]
    mesh = world.spawn(member, gpus=1)

    async def wait() -> None:
        await mesh.work.call(gates, (0,), timeout=SHORT)

    with pytest.raises(CallTimeout):
        asyncio.run(wait())
    gates[0].open()


def test_beyond_8_calls_that_are_answered_in_time_succeed(world: Any, member: Any) -> None:
    """Nor a dead callee: then the error says that."""
    procs, gates = world.procs(2), [world.gate() for _ in range(2)]
    mesh: Any = procs.spawn("member", member)
    assert list(mesh.work.call(gates, timeout=PATIENCE).get(PATIENCE).values()) == [0, 1]
    assert mesh.slice(gpus=1).rank.call_one(timeout=PATIENCE).get(PATIENCE) == 0
    waiting = mesh.work.call(gates, (0, 1), timeout=PATIENCE)
    for gate in gates:
        gate.wait_told()
    world.kill(procs.slice(gpus=1))
    with pytest.raises(SupervisionError):
        waiting.get(PATIENCE)
    gates[0].open()


def test_beyond_8_the_error_says_where_each_silent_rank_is(world: Any, time: Time, member: Any) -> None:
    """At which line of the user's, or behind what in the queue. What the others answered is in the error as well."""
    procs, gates = world.procs(3), [world.gate() for _ in range(3)]
    mesh: Any = procs.spawn("member", member)
    mesh.slice(gpus=2).other.broadcast(gates[2])
    gates[2].wait_told()
    waiting = mesh.work.call(gates, (1, 2), timeout=1.5)
    gates[1].wait_told()
    assert mesh.slice(gpus=0).rank.call_one().get(PATIENCE) == 0  # what it answered before is here, too
    time.go_on()
    error = late(waiting)
    first, *lines = str(error).splitlines()
    nodes = [re.escape(node.node) for node in procs.nodes]
    gate = r"in \w+\(\) at .*conftest.py:\d+"  # somewhere in the gate
    assert first == "member.work() timed out: 2 of 3 ranks did not answer within 1.5 s"
    assert re.fullmatch(rf"    rank 1 \({nodes[1]}\) is in work\(\), {gate}", lines[0])
    assert re.fullmatch(rf"    rank 2 \({nodes[2]}\) is in its queue; the actor is in other\(\), {gate}", lines[1])
    assert list(error.results.values()) == [0]
    assert set(error.failures) == {1, 2}
    assert error.failures[2] is not error.failures[1]
    for each in gates:
        each.open(2)


class Slow(Member):
    def __init__(self, gate: Any) -> None:
        gate.pass_through()


def test_beyond_8_a_rank_may_not_be_made_yet(world: Any, time: Time) -> None:
    """Then it says so."""
    procs, gate = world.procs(1), world.gate()
    slow = procs.spawn("slow", Slow, gate)
    gate.wait_told()
    waiting = slow.rank.call_one(timeout=1)
    assert procs.spawn("member", Member).rank.call_one().get(PATIENCE) == 0  # the other call is there as well
    time.go_on()
    assert "is still in its constructor" in str(late(waiting))
    gate.open()


def test_beyond_8_ranks_are_those_of_the_called_mesh(world: Any, time: Time) -> None:
    """Of a slice they count from zero."""
    procs, gates = world.procs(3), [world.gate() for _ in range(3)]
    mesh = procs.spawn("member", Member)
    waiting = mesh.slice(gpus=slice(1, 3)).work.call(gates, (1,), timeout=1)
    gates[1].wait_told()
    assert mesh.slice(gpus=1).rank.call_one().get(PATIENCE) == 0
    time.go_on()
    assert f"\n    rank 1 ({procs.nodes[2].node}) is in work()" in str(late(waiting))
    gates[1].open()


def wait_until_stopped(pid: int) -> None:
    """Until no thread of it runs any more, which the signal brings about sooner or later."""

    def states() -> set[str]:
        stats = Path(f"/proc/{pid}/task").glob("*/stat")
        return {stat.read_text().rpartition(")")[2].split()[0] for stat in stats}

    for _ in range(int(PATIENCE * 100)):
        if states() == {"T"}:
            return
        threading.Event().wait(0.01)
    raise AssertionError(states())


@pytest.mark.process
def test_beyond_8_a_process_may_be_silent(processes: Any) -> None:
    """It is stopped, and cannot say where it is; the error does not wait for that."""
    procs = processes.procs(2)
    mesh = procs.spawn("member", Member)
    pid = mesh.slice(gpus=1).pid.call_one().get(PATIENCE)
    procs.slice(gpus=1).kill(signal.SIGSTOP).get(PATIENCE)
    wait_until_stopped(pid)
    error = late(mesh.slice(gpus=1).rank.call(timeout=SHORT))
    assert f"rank 0 ({procs.nodes[1].node}) is unresponsive: its process" in str(error)
    assert error.results is None
    procs.slice(gpus=1).kill(signal.SIGCONT).get(PATIENCE)
    assert list(mesh.rank.call().get(PATIENCE).values()) == [0, 1]
