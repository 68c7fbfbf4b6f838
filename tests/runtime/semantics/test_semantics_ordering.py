"""Semantics: the order of messages, and what runs at the same time."""

from __future__ import annotations

import asyncio
import threading
import warnings
from typing import Any

import pytest

from meshbook import Actor, SupervisionError, concurrent_endpoint, current_rank, endpoint
from tests.support import PATIENCE


class Log(Actor):
    """Keeps what it gets, in order."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    @endpoint
    def add(self, what: Any) -> None:
        self.seen.append(what)

    @endpoint
    def read(self) -> list[Any]:
        return self.seen

    @endpoint
    def hold(self, gate: Any) -> None:
        self.seen.append("begin")
        gate.pass_through(current_rank().rank)
        self.seen.append("end")


class AsyncLog(Actor):
    """The same on a loop."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    @endpoint
    async def add(self, what: Any) -> None:
        self.seen.append(what)

    @endpoint
    async def read(self) -> list[Any]:
        return self.seen

    @endpoint
    async def hold(self, gate: Any) -> None:
        self.seen.append("begin")
        await gate.pass_through_async(current_rank().rank)
        self.seen.append("end")


class Sender(Actor):
    @endpoint
    def send(self, log: Any, count: int) -> None:
        for number in range(count):
            log.add.broadcast((current_rank().rank, number))
        log.read.call().get(PATIENCE)


either = pytest.mark.parametrize("log", [Log, AsyncLog])


# -- 1 ---------------------------------------------------------------------------------


@either
def test_01_messages_of_one_sender_arrive_in_order(world: Any, log: type[Actor]) -> None:
    """Messages from one sender to one actor arrive as they were sent; a call of a mesh is one message for each rank."""
    logs: Any = world.spawn(log)
    for number in range(50):
        logs.add.broadcast(number)
        logs.slice(gpus=1).add.broadcast(-number)
    first, second = logs.read.call().get(PATIENCE).values()
    assert first == list(range(50))
    assert second == [sign * number for number in range(50) for sign in (1, -1)]


def test_01_each_of_several_senders_keeps_its_order(world: Any) -> None:
    """Between senders there is no order; within what each of them sent there is."""
    log = world.spawn(Log, gpus=1)
    world.spawn(Sender).send.call(log, 50).get(PATIENCE)
    seen = log.read.call_one().get(PATIENCE)
    for sender in range(2):
        assert [number for who, number in seen if who == sender] == list(range(50))


@either
def test_01_actors_of_one_process_run_at_the_same_time(world: Any, log: type[Actor]) -> None:
    """An actor that is busy keeps no other one of its process waiting."""
    procs, gate = world.procs(1), world.gate()
    busy: Any = procs.spawn("busy", log)
    other: Any = procs.spawn("other", log)
    holding = busy.hold.call(gate)
    gate.wait_told()
    assert other.read.call_one().get(PATIENCE) == []
    assert not holding.done()
    gate.open()
    holding.get(PATIENCE)


# -- 2 ---------------------------------------------------------------------------------


@either
def test_02_an_actor_handles_one_message_at_a_time(world: Any, log: type[Actor]) -> None:
    """The next message waits until the endpoint is through, also while an async one awaits something."""
    procs, gate = world.procs(1), world.gate()
    actor: Any = procs.spawn("actor", log)
    other: Any = procs.spawn("other", log)
    first = actor.hold.call_one(gate)
    gate.wait_told()
    second = actor.hold.call_one(gate)
    added = actor.add.call_one("added")
    other.read.call_one().get(PATIENCE)  # sent after them to the same process, and answered
    assert gate.told() == []
    assert not any(future.done() for future in (first, second, added))
    gate.open(2)
    assert actor.read.call_one().get(PATIENCE) == ["begin", "end", "begin", "end", "added"]


class Overlapping(Actor):
    def __init__(self) -> None:
        self.begun: list[int] = []

    @concurrent_endpoint
    async def hold(self, gate: Any, number: int) -> int:
        self.begun.append(number)
        await gate.pass_through_async(number)
        return number

    @endpoint
    async def read(self) -> list[int]:
        return self.begun


def test_02_only_concurrent_endpoints_overlap(world: Any) -> None:
    """Their calls begin in the order in which they were sent, and end as they like."""
    actor, gates = world.spawn(Overlapping, gpus=1), [world.gate() for _ in range(5)]
    futures = [actor.hold.call_one(gate, number) for number, gate in enumerate(gates)]
    for gate in gates:
        gate.wait_told()
    assert actor.read.call_one().get(PATIENCE) == [0, 1, 2, 3, 4]
    assert not any(future.done() for future in futures)
    for number in (3, 0, 4, 2, 1):
        gates[number].open()
        assert futures[number].get(PATIENCE) == number


# -- 3 ---------------------------------------------------------------------------------


class SlowToMake(Actor):
    def __init__(self, gate: Any) -> None:
        self.state = "half made"
        gate.pass_through()
        self.state = "made"

    @endpoint
    def read(self) -> str:
        return self.state


def test_03_the_constructor_ends_before_the_first_endpoint_begins(world: Any) -> None:
    """`spawn` returns at once; messages wait until the constructor is through."""
    gate = world.gate()
    actor = world.spawn(SlowToMake, gate, gpus=1)
    early = actor.read.call_one()
    gate.wait_told()
    assert not early.done()
    assert not actor.initialized.done()
    gate.open()
    assert early.get(PATIENCE) == "made"
    assert actor.initialized.get(PATIENCE) is None


def test_03_a_mesh_whose_constructor_never_returns_can_be_stopped(world: Any) -> None:
    """It keeps its messages waiting, and ends with its processes."""
    world.be_impatient()
    gate, procs = world.gate(), world.procs(1)
    actor = procs.spawn("actor", SlowToMake, gate)
    waiting = actor.read.call_one()
    gate.wait_told()
    procs.stop().get(PATIENCE)
    for future in (waiting, actor.initialized):
        with pytest.raises(SupervisionError, match="stopped"):
            future.get(PATIENCE)


def test_03_its_actors_alone_can_be_stopped_as_well(make_world: Any) -> None:
    """They are, as far as anybody can tell, once the time for stopping is over; the processes go on."""
    world = make_world(stop_timeout=0.1)
    gate, procs = world.gate(), world.procs(1)
    actor, other = procs.spawn("actor", SlowToMake, gate), procs.spawn("other", Log)
    waiting = actor.read.call_one()
    gate.wait_told()
    assert actor.stop("enough").get(PATIENCE) is None
    for future in (waiting, actor.read.call_one(), actor.initialized):
        with pytest.raises(SupervisionError, match="enough"):
            future.get(PATIENCE)
    assert other.read.call_one().get(PATIENCE) == []
    gate.open()


# -- 4 ---------------------------------------------------------------------------------


def get_and_listen(other: Any, gate: Any) -> list[str]:
    """What Python warns of while an answer is waited for that comes once the gate is opened, here by the warning."""
    warned = []

    def show(message: Any, *rest: Any) -> None:
        warned.append(str(message))
        gate.open()

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        other.hold.call_one(gate).get(PATIENCE)
    return warned


class Asker(Actor):
    @endpoint
    def gets(self, other: Any, gate: Any) -> tuple[list[str], bool]:
        return get_and_listen(other, gate), asyncio._get_running_loop() is not None


class AsyncAsker(Actor):
    @endpoint
    async def gets(self, other: Any, gate: Any) -> tuple[list[str], bool]:
        return get_and_listen(other, gate), asyncio._get_running_loop() is not None

    @endpoint
    async def awaits(self, other: Any) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            await other.read.call_one()
        return [str(each.message) for each in caught]


def test_04_a_sync_endpoint_may_get(world: Any) -> None:
    """It sees no running loop, so `future.get()` is valid there and gives no warning."""
    procs, gate = world.procs(1), world.gate()
    asking = procs.spawn("asker", Asker).gets.call_one(procs.spawn("log", Log), gate)
    gate.wait_told()
    gate.open()
    assert asking.get(PATIENCE) == ([], False)


def test_04_get_warns_inside_an_async_endpoint(world: Any) -> None:
    """There it holds up the loop; `await` is what to use."""
    procs, gate = world.procs(1), world.gate()
    reply_handler, log = procs.spawn("asker", AsyncAsker), procs.spawn("log", Log)
    (warned,), has_loop = reply_handler.gets.call_one(log, gate).get(PATIENCE)
    assert "blocks the running event loop; await the future instead" in warned
    assert has_loop
    assert reply_handler.awaits.call_one(log).get(PATIENCE) == []


# -- 5 ---------------------------------------------------------------------------------


class Threaded(Actor):
    """Keeps something in its thread."""

    def __init__(self) -> None:
        self.mine = threading.local()
        self.mine.value = "constructor"
        self.thread = threading.get_ident()

    @endpoint
    def swap(self, value: str) -> str:
        value, self.mine.value = getattr(self.mine, "value", "nothing"), value
        return value

    @endpoint
    def swap_too(self, value: str) -> str:
        value, self.mine.value = getattr(self.mine, "value", "nothing"), value
        return value

    @endpoint
    def ident(self) -> tuple[int, int]:
        return self.thread, threading.get_ident()


class AsyncThreaded(Actor):
    def __init__(self) -> None:
        self.mine = threading.local()
        self.mine.value = "constructor"
        self.thread = threading.get_ident()

    @endpoint
    async def swap(self, value: str) -> str:
        value, self.mine.value = getattr(self.mine, "value", "nothing"), value
        return value

    @endpoint
    async def swap_too(self, value: str) -> str:
        await asyncio.sleep(0)
        value, self.mine.value = getattr(self.mine, "value", "nothing"), value
        return value

    @endpoint
    async def ident(self) -> tuple[int, int]:
        return self.thread, threading.get_ident()


@pytest.mark.parametrize("kind", [Threaded, AsyncThreaded])
def test_05_an_actor_stays_on_one_thread(world: Any, kind: type[Actor]) -> None:
    """Constructor and endpoints share the state of the thread, for all callers; another actor has its own."""
    procs = world.procs(1)
    actor: Any = procs.spawn("actor", kind)
    other: Any = procs.spawn("other", kind)
    assert actor.swap.call_one("one").get(PATIENCE) == "constructor"
    assert actor.swap_too.call_one("two").get(PATIENCE) == "one"
    assert actor.swap.call_one("three").get(PATIENCE) == "two"
    assert other.swap.call_one("other").get(PATIENCE) == "constructor"
    threads = {*actor.ident.call_one().get(PATIENCE)}, {*other.ident.call_one().get(PATIENCE)}
    assert [len(each) for each in threads] == [1, 1]
    assert threads[0] != threads[1]


# -- 7 ---------------------------------------------------------------------------------


class Mixed(Actor):
    @endpoint
    def sync(self) -> None: ...

    @endpoint
    async def slow(self) -> None: ...


class MixedByInheritance(Log):
    @endpoint
    async def slow(self) -> None: ...


class MixedByConcurrency(Log):
    @concurrent_endpoint
    async def overlaps(self) -> None: ...


@pytest.fixture
def silent(in_memory: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Processes to which nothing may be sent."""
    procs = in_memory.procs(1)
    procs.initialized.get(PATIENCE)
    with monkeypatch.context() as patch:
        patch.setattr(
            in_memory.session.node.calls, "create", lambda *arguments, **keywords: pytest.fail("it was spawned")
        )
        yield procs


@pytest.mark.parametrize("kind", [Mixed, MixedByInheritance, MixedByConcurrency])
def test_07_sync_and_async_endpoints_do_not_mix(silent: Any, kind: type[Actor]) -> None:
    """Such a class is refused where it is spawned, before any process hears of it."""
    with pytest.raises(ValueError, match="mixes both async and sync endpoints"):
        silent.spawn("mixed", kind)


class SyncHooks:
    def __supervise__(self, failure: Any) -> bool:
        return True

    def __cleanup__(self, error: BaseException | None) -> None: ...

    def _handle_undeliverable_message(self, envelope: Any) -> bool:
        return True


class AsyncHooks:
    async def __supervise__(self, failure: Any) -> bool:
        return True

    async def __cleanup__(self, error: BaseException | None) -> None: ...

    async def _handle_undeliverable_message(self, envelope: Any) -> bool:
        return True


class NoEndpoints(Actor):
    """Runs on a thread."""


@pytest.mark.parametrize(("kind", "hooks"), [(Log, AsyncHooks), (AsyncLog, SyncHooks), (NoEndpoints, AsyncHooks)])
def test_07_cleanup_is_of_the_kind_of_the_endpoints(silent: Any, kind: type[Actor], hooks: type) -> None:
    """Another would block the loop, or never be awaited."""
    with pytest.raises(ValueError, match=r"__cleanup__ is a?sync, but its endpoints are"):
        silent.spawn("mixed", type("Hooked", (kind,), {"__cleanup__": vars(hooks)["__cleanup__"]}))


@pytest.mark.parametrize(("kind", "hooks"), [(Log, SyncHooks), (AsyncLog, AsyncHooks), (NoEndpoints, SyncHooks)])
def test_07_hooks_of_that_kind_are_no_mixture(in_memory: Any, kind: type[Actor], hooks: type) -> None:
    """Nor are those of a class that says that it mixes."""
    procs = in_memory.procs(1)
    procs.spawn("hooked", type("Hooked", (kind, hooks), {})).initialized.get(PATIENCE)
    for other in (SyncHooks, AsyncHooks):
        mixed = type("Mixture", (Mixed, other), {}, mixed=True)
        procs.spawn("mixed", mixed).initialized.get(PATIENCE)
