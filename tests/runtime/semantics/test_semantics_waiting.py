"""Semantics: actors that wait for each other, and calls that nobody waits for any more."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any

import pytest

from meshbook import (
    Actor,
    ActorError,
    Channel,
    DeadlockError,
    Port,
    concurrent_endpoint,
    context,
    endpoint,
    this_proc,
)
from meshbook.runtime.node import deadlock
from tests.support import PATIENCE


class Node(Actor):
    """Asks others, and is asked."""

    def __init__(self) -> None:
        self.others: list[Any] = []

    @endpoint
    def meet(self, *others: Any) -> None:
        self.others = list(others)

    @endpoint
    def ask(self, hops: int) -> int:
        """Pass the question on so often along the ring."""
        return self.others[0].ask.call_one(hops - 1).get() + 1 if hops else 0

    @endpoint
    def ask_all(self) -> int:
        return sum(mesh.back.call_one().get() for mesh in self.others)

    @endpoint
    def back(self) -> int:
        return self.others[0].ask.call_one(0).get()

    @endpoint
    def plain(self) -> str:
        return "free"


class AsyncNode(Actor):
    """The same on a loop."""

    def __init__(self) -> None:
        self.others: list[Any] = []

    @endpoint
    async def meet(self, *others: Any) -> None:
        self.others = list(others)

    @endpoint
    async def ask(self, hops: int) -> int:
        return await self.others[0].ask.call_one(hops - 1) + 1 if hops else 0

    @endpoint
    async def plain(self) -> str:
        return "free"


@pytest.fixture
def period(world: Any, monkeypatch: pytest.MonkeyPatch) -> float:
    """Seconds between two looks at who waits; few where all nodes are in this process, so that nobody waits long."""
    if not world.has_processes:
        monkeypatch.setattr(deadlock, "PERIOD", 0.03)
    return deadlock.PERIOD


def let_looks_pass(world: Any, period: float) -> None:
    """Return after a few looks at who waits."""
    looked = threading.Event()
    world.session.node.loop.call_later(4 * period, looked.set)
    assert looked.wait(PATIENCE)


@pytest.fixture(params=[Node, AsyncNode])
def node(request: pytest.FixtureRequest) -> type[Actor]:
    return request.param  # type: ignore[no-any-return]


def failed(future: Any) -> ActorError:
    with pytest.raises(ActorError) as caught:
        future.get(PATIENCE)
    return caught.value


def test_06_an_actor_that_waits_for_itself_gets_an_error_at_once(world: Any, node: Any) -> None:
    """It would wait for ever: it handles one message at a time."""
    mesh = world.spawn(node, gpus=1, name="alone")
    mesh.meet.call_one(mesh).get(PATIENCE)
    error = failed(mesh.ask.call_one(1))
    assert isinstance(error.exception, DeadlockError)
    assert "alone" in str(error)
    assert "waits for its own answer" in str(error)
    assert mesh.plain.call_one().get(PATIENCE) == "free"


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.usefixtures("period")
def test_beyond_2_actors_that_wait_in_a_ring_get_an_error(world: Any, node: Any, count: int) -> None:
    """The error draws who waits for whom; afterwards all are free again."""
    procs = world.procs(count)
    ring = [procs.slice(gpus=place).spawn(f"node{place}", node) for place in range(count)]
    for place, mesh in enumerate(ring):
        mesh.meet.call_one(ring[(place + 1) % count]).get(PATIENCE)
    error = failed(ring[0].ask.call_one(count))
    assert "these actors wait for each other" in str(error)
    for place in range(count):
        assert f"node{place}.ask() on " in str(error)
        assert f"waits for node{(place + 1) % count}.ask()" in str(error)
        assert ring[place].plain.call_one().get(PATIENCE) == "free"


def test_beyond_2_a_long_wait_is_no_deadlock(world: Any, period: float) -> None:
    """Whoever is waited for works; nobody waits in a ring."""
    gate = world.gate()
    first, second = (world.spawn(Runner, gpus=1) for _ in range(2))
    waiting = first.relay.call_one(second, gate.pass_through, "worked")
    gate.wait_told()
    let_looks_pass(world, period)
    gate.open()
    assert waiting.get(PATIENCE) == "worked"


class Runner(Actor):
    """Runs what it is sent, or lets another run it."""

    @endpoint
    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    @endpoint
    def relay(self, other: Any, function: Callable[..., Any], *arguments: Any) -> Any:
        return other.run.call_one(function, *arguments).get()

    @endpoint
    def relay_for(self, seconds: float, other: Any, *arguments: Any) -> Any:
        try:
            return other.relay.call_one(*arguments).get(timeout=seconds)
        except TimeoutError:
            return "gave up"


class Overlapping(Actor):
    """Its calls overlap, so that it can wait for itself."""

    def __init__(self) -> None:
        self.itself: Any = None

    @concurrent_endpoint
    async def meet(self, itself: Any) -> None:
        self.itself = itself

    @concurrent_endpoint
    async def ask(self, hops: int) -> int:
        return await self.itself.ask.call_one(hops - 1) + 1 if hops else 0

    @endpoint
    async def begin(self, hops: int) -> int:
        return await self.itself.ask.call_one(hops)


def test_beyond_2_overlapping_calls_do_not_wait_for_each_other(world: Any) -> None:
    """Only an endpoint that is alone keeps the others waiting."""
    mesh = world.spawn(Overlapping, gpus=1)
    mesh.meet.call_one(mesh).get(PATIENCE)
    assert mesh.ask.call_one(5).get(PATIENCE) == 5
    assert isinstance(failed(mesh.begin.call_one(5)).exception, DeadlockError)


class Service(Actor):
    """Answers some calls while it is at another one."""

    @concurrent_endpoint
    async def hold(self, gate: Any) -> str:
        return await gate.pass_through_async("held")

    @concurrent_endpoint
    async def pass_on(self, other: Any) -> str:
        return await other.plain.call_one()

    @endpoint(explicit_response_port=True)
    async def promise(self, port: Port[str], gate: Any) -> None:
        """Another thread answers, later."""
        here = context()
        threading.Thread(target=lambda: here.run(port.send, gate.pass_through("kept"))).start()

    @endpoint
    async def ask(self, other: Any) -> str:
        return await other.plain.call_one()

    @endpoint
    async def ask_through(self, other: Any, itself: Any) -> str:
        return await other.pass_on.call_one(itself)

    @endpoint
    async def wait_for(self, other: Any, name: str, gate: Any) -> str:
        return await getattr(other, name).call_one(gate)

    @endpoint
    async def plain(self) -> str:
        return "free"


@pytest.mark.parametrize(("name", "said"), [("hold", "held"), ("promise", "kept")])
def test_beyond_2_a_callee_may_be_busy_with_something_else(world: Any, period: float, name: str, said: str) -> None:
    """The answer comes from an overlapping call, or by a port: then its actor's own wait keeps nobody waiting."""
    gate = world.gate()
    first, second = (world.spawn(Service, gpus=1) for _ in range(2))
    waiting = first.wait_for.call_one(second, name, gate)
    gate.wait_told()
    asking = second.ask.call_one(first)  # first is at something that second will end
    let_looks_pass(world, period)
    assert not waiting.done()
    gate.open()
    assert waiting.get(PATIENCE) == said
    assert asking.get(PATIENCE) == "free"


@pytest.mark.usefixtures("period")
def test_beyond_2_an_overlapping_call_may_be_part_of_a_ring(world: Any) -> None:
    """It waits for who is alone and waits for it."""
    first, second = (world.spawn(Service, gpus=1) for _ in range(2))
    error = failed(first.ask_through.call_one(second, first))
    assert "service.pass_on() on " in str(error)
    assert "waits for service.plain()" in str(error)


class Foreman(Actor):
    """Lets all workers ask it for something, and waits for them."""

    @endpoint
    def work(self, workers: Any, itself: Any) -> list[str]:
        return list(workers.fetch.call(itself).get().values())

    @endpoint
    def plain(self) -> str:
        return "free"


class Worker(Actor):
    @endpoint
    def fetch(self, foreman: Any) -> str:
        return foreman.plain.call_one().get()


@pytest.mark.usefixtures("period")
def test_beyond_2_several_rings_through_one_actor(world: Any) -> None:
    """Each rank of a mesh waits for who waits for all of them."""
    workers, foreman = world.spawn(Worker, gpus=3), world.spawn(Foreman, gpus=1)
    error = failed(foreman.work.call_one(workers, foreman))
    assert "these actors wait for each other" in str(error)
    assert foreman.plain.call_one().get(PATIENCE) == "free"


def test_beyond_2_a_wait_with_a_limit_is_no_deadlock(world: Any) -> None:
    """It ends by itself, and what it does then is its own business."""
    first, second = (world.spawn(Runner, gpus=1) for _ in range(2))
    assert first.relay_for.call_one(0.01, second, first, abs, -1).get(PATIENCE) == "gave up"


class Sleeper(Actor):
    """Is at something, until it is broken off."""

    def __init__(self, note: Port[Any]) -> None:
        self.note = note

    @endpoint
    def spin(self, gate: Any) -> None:
        try:
            gate.tell()  # from here on it may come
            while True:
                pass
        except asyncio.CancelledError:
            self.note.send("broken off")
            raise

    @endpoint
    def ask(self, other: Any, gate: Any) -> None:
        try:
            other.spin.call_one(gate).get()
        except asyncio.CancelledError:
            self.note.send("no longer asks")
            raise

    @endpoint
    def add(self, value: int) -> int:
        self.note.send(value)
        return value


class AsyncSleeper(Actor):
    """The same on a loop."""

    def __init__(self, note: Port[Any]) -> None:
        self.note = note

    @endpoint
    async def spin(self, gate: Any) -> None:
        try:
            gate.tell()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.note.send("broken off")
            raise

    @endpoint
    async def ask(self, other: Any, gate: Any) -> None:
        try:
            await other.spin.call_one(gate)
        except asyncio.CancelledError:
            self.note.send("no longer asks")
            raise

    @endpoint
    async def add(self, value: int) -> int:
        self.note.send(value)
        return value


class OverlappingSleeper(Actor):
    """Several at once."""

    def __init__(self, note: Port[Any]) -> None:
        self.note = note

    @concurrent_endpoint
    async def spin(self, gate: Any) -> None:
        try:
            gate.tell()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.note.send("broken off")
            raise

    @concurrent_endpoint
    async def add(self, value: int) -> int:
        self.note.send(value)
        return value


@pytest.fixture(params=[Sleeper, AsyncSleeper])
def sleeper(request: pytest.FixtureRequest) -> type[Actor]:
    return request.param  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", [Sleeper, AsyncSleeper, OverlappingSleeper])
def test_beyond_6_a_cancelled_future_breaks_the_endpoint_off(world: Any, faults: Any, kind: Any) -> None:
    """The endpoint gets a CancelledError; the actor lives and goes on with the next message."""
    port, notes = Channel[Any].open()
    mesh = world.spawn(kind, port, gpus=1)
    gate = world.gate()
    spinning = mesh.spin.call_one(gate)
    gate.wait_told()
    assert spinning.cancel()
    with pytest.raises(concurrent.futures.CancelledError, match=r"spin\(\) was cancelled"):
        spinning.get(PATIENCE)
    assert notes.recv().get(PATIENCE) == "broken off"
    assert mesh.add.call_one(1).get(PATIENCE) == 1
    assert not spinning.cancel()
    assert faults.empty()


def test_beyond_6_a_call_that_has_not_begun_never_does(world: Any, sleeper: Any) -> None:
    """It waits in the queue when it is cancelled."""
    port, notes = Channel[Any].open()
    mesh = world.spawn(sleeper, port, gpus=1)
    gate = world.gate()
    spinning, waiting, last = mesh.spin.call_one(gate), mesh.add.call_one(1), mesh.add.call_one(2)
    gate.wait_told()
    assert waiting.cancel()
    assert spinning.cancel()
    assert last.get(PATIENCE) == 2
    assert [notes.recv().get(PATIENCE) for _ in range(2)] == ["broken off", 2]


def test_beyond_6_it_goes_down_to_what_the_endpoint_waits_for(world: Any, sleeper: Any) -> None:
    """Who is asked on behalf of a cancelled call is not asked any more."""
    port, notes = Channel[Any].open()
    first, second = (world.spawn(sleeper, port, gpus=1) for _ in range(2))
    gate = world.gate()
    asking = first.ask.call_one(second, gate)
    gate.wait_told()
    assert asking.cancel()
    told = {notes.recv().get(PATIENCE) for _ in range(2)}
    assert told == ({"broken off", "no longer asks"} if sleeper is Sleeper else {"no longer asks", "broken off"})
    assert first.add.call_one(1).get(PATIENCE) == 1
    assert second.add.call_one(2).get(PATIENCE) == 2


def test_beyond_6_a_call_of_a_mesh_is_cancelled_on_all_ranks(world: Any, sleeper: Any) -> None:
    """One future, several endpoints."""
    port, notes = Channel[Any].open()
    mesh = world.spawn(sleeper, port, gpus=2)
    gate = world.gate()
    spinning = mesh.spin.call(gate)
    for _ in range(2):
        gate.wait_told()
    assert spinning.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        spinning.get(PATIENCE)
    assert [notes.recv().get(PATIENCE) for _ in range(2)] == ["broken off"] * 2
    assert list(mesh.add.call(1).get(PATIENCE).values()) == [1, 1]


def test_beyond_6_an_answer_that_is_here_cannot_be_cancelled(world: Any, sleeper: Any) -> None:
    """It stays."""
    port, _ = Channel[Any].open()
    answer = world.spawn(sleeper, port, gpus=1).add.call_one(1)
    assert answer.get(PATIENCE) == 1
    assert not answer.cancel()
    assert answer.get() == 1


def test_beyond_6_an_actor_of_the_own_process(world: Any, sleeper: Any) -> None:
    """There the caller and the endpoint are threads of one process."""
    port, notes = Channel[Any].open()
    mesh = this_proc().spawn("here", sleeper, port)
    gate = world.gate()
    spinning = mesh.spin.call_one(gate)
    gate.wait_told()
    assert spinning.cancel()
    assert notes.recv().get(PATIENCE) == "broken off"
    mesh.stop().get(PATIENCE)
