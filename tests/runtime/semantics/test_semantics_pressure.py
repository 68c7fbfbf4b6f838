"""Beyond the specification: a sender to an actor with a full queue waits, and then continues or gets an error."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from meshbook import ActorError, SupervisionError, concurrent_endpoint, endpoint
from meshbook.runtime.actor.base import Actor
from meshbook.runtime.config import Settings
from meshbook.runtime.errors import CallCancelled, CallTimeout, DeadlockError, ProcessDied, QueueFull
from meshbook.runtime.hosts import session as sessions
from meshbook.runtime.hosts.session import Session
from meshbook.runtime.mesh.actors import current_node
from meshbook.runtime.node.flow_control import LONG
from meshbook.runtime.transport.io_loop import Timer
from tests.runtime.semantics.conftest import World
from tests.support import PATIENCE

MOST = 8  # messages of one process in a queue, here
FREE = MOST - 1  # while an actor is held: that it has taken the first message its sender does not know yet


class Sink(Actor):
    """Takes numbers, in the order they come; `hold` keeps it from that."""

    def __init__(self) -> None:
        self.taken: list[Any] = []

    @endpoint
    def hold(self, gate: Any) -> None:
        gate.pass_through()

    @endpoint
    def take(self, number: int, data: bytes = b"") -> int:
        self.taken.append(number)
        return number

    @endpoint
    def all_taken(self) -> list[int]:
        return self.taken


class AsyncSink(Actor):
    """The same on a loop."""

    def __init__(self) -> None:
        self.taken: list[Any] = []

    @endpoint
    async def hold(self, gate: Any) -> None:
        await gate.pass_through_async()

    @endpoint
    async def take(self, number: int, data: bytes = b"") -> int:
        self.taken.append(number)
        return number

    @endpoint
    async def all_taken(self) -> list[int]:
        return self.taken


class Source(Actor):
    """Sends numbers to a sink; says so where it has an answer."""

    @endpoint
    def pour(self, sink: Any, count: int) -> int:
        for number in range(count):
            sink.take.broadcast(number)
        return count

    @endpoint
    def ask(self, sink: Any, count: int) -> list[int]:
        futures = [sink.take.call_one(number) for number in range(count)]
        return [future.get() for future in futures]

    @endpoint
    def look(self, sink: Any) -> list[int]:
        """What the sink has taken once it has all that was sent from here."""
        return sink.all_taken.call_one().get()


class AsyncSource(Actor):
    @endpoint
    async def pour(self, sink: Any, count: int) -> int:
        for number in range(count):
            sink.take.broadcast(number)
        return count

    @endpoint
    async def ask(self, sink: Any, count: int) -> list[int]:
        return list(await asyncio.gather(*(sink.take.call_one(number) for number in range(count))))

    @endpoint
    async def look(self, sink: Any) -> list[int]:
        return await sink.all_taken.call_one()


class Waits:
    """Tells of each wait for room of the test's own node: each sets a timer to complain."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.when_one_begins: Callable[[], object] = lambda: None
        self._begun: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        node = current_node()
        later = node.flow._call_later

        def note(seconds: float, callback: Callable[[], object]) -> Timer:
            if seconds != LONG:
                return later(seconds, callback)
            self._begun.put(callback)
            self.when_one_begins()
            return Timer(callback)

        monkeypatch.setattr(node.flow, "_call_later", note)

    def wait_for_one(self) -> Callable[[], object]:
        """A wait has begun; what is to be called when it has lasted for long."""
        return self._begun.get(timeout=PATIENCE)

    @property
    def is_none(self) -> bool:
        return self._begun.empty()


SMALL = {"queue_messages": MOST, "queue_bytes": 30_000}  # a gate has some 8000 bytes


@pytest.fixture(scope="module")
def narrow_session() -> Iterator[Session]:
    """Processes with small queues, for all tests here."""
    changed = msgspec.structs.replace(Settings.from_environment(), preload="", **SMALL)
    with contextlib.closing(Session(changed)) as session, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions._Current, "session", session)
        session.host.spawn_procs().stop().get(PATIENCE)  # the agent is there: no test is blamed for it
        yield session


@pytest.fixture(scope="module", params=["memory", pytest.param("processes", marks=pytest.mark.process)])
def running(request: pytest.FixtureRequest) -> Session | None:
    return request.getfixturevalue("narrow_session") if request.param == "processes" else None


@pytest.fixture
def narrow(running: Session | None, make_world: Callable[..., World]) -> Iterator[World]:
    """A world with small queues."""
    if running is None:
        yield make_world(**SMALL)
    else:
        with contextlib.closing(World(running)) as world:
            yield world


@pytest.fixture
def waits(narrow: World, monkeypatch: pytest.MonkeyPatch) -> Waits:
    return Waits(monkeypatch)


@pytest.fixture(params=[Sink, AsyncSink])
def sink(request: pytest.FixtureRequest, narrow: World) -> Any:
    return narrow.spawn(request.param, gpus=1, name="sink")


@pytest.fixture
def gate(narrow: World) -> Any:
    return narrow.gate()


class Doing(threading.Thread):
    """Something that a client does on a thread of its own; `outcome` is what comes of it."""

    def __init__(self, what: Callable[[], Any]) -> None:
        super().__init__()
        self._what = what
        self._outcome: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def run(self) -> None:
        try:
            self._outcome.put(self._what())
        except BaseException as error:
            self._outcome.put(error)

    def outcome(self) -> Any:
        found = self._outcome.get(timeout=PATIENCE)
        self.join()
        return found


@pytest.fixture
def do() -> Iterator[Callable[[Callable[[], Any]], Doing]]:
    """Begin to do something, on a thread that has ended when the test has."""
    begun: list[Doing] = []

    def begin(what: Callable[[], Any]) -> Doing:
        begun.append(Doing(what))
        begun[-1].start()
        return begun[-1]

    yield begin
    for each in begun:
        each.join(PATIENCE)


def held(sink: Any, gate: Any) -> Any:
    """A sink that is held at the gate, so its queue fills."""
    sink.hold.broadcast(gate)
    gate.wait_told()
    return sink


def pour(sink: Any, count: int) -> None:
    for number in range(count):
        sink.take.broadcast(number)


SENDING: dict[str, Callable[[Any, int], Any]] = {
    "broadcast": lambda sink, number: sink.take.broadcast(number),
    "call": lambda sink, number: sink.take.call(number),
    "call_one": lambda sink, number: sink.take.call_one(number),
    "stream": lambda sink, number: sink.take.stream(number),
}


@pytest.mark.parametrize("verb", SENDING)
def test_a_sender_to_a_full_queue_waits(sink: Any, gate: Any, waits: Waits, do: Any, verb: str) -> None:
    """By any verb; then all of it arrives, in order."""
    held(sink, gate)
    for number in range(FREE):
        SENDING[verb](sink, number)
    assert waits.is_none
    sending = do(lambda: [SENDING[verb](sink, number) for number in range(FREE, 5 * MOST)])
    waits.wait_for_one()
    gate.open()
    sending.outcome()
    assert sink.all_taken.call_one().get(PATIENCE) == list(range(5 * MOST))


def test_bytes_fill_a_queue_as_well(sink: Any, gate: Any, waits: Waits, do: Any) -> None:
    held(sink, gate)
    sink.take.broadcast(0, b"x" * 50_000)  # one goes, however large
    sending = do(lambda: [sink.take.broadcast(number, b"x" * 12_000) for number in range(1, 20)])
    waits.wait_for_one()
    gate.open()
    sending.outcome()
    assert sink.all_taken.call_one().get(PATIENCE) == list(range(20))


@pytest.mark.parametrize("kind", [Source, AsyncSource])
@pytest.mark.parametrize("how", ["pour", "ask"])
def test_an_actor_that_sends_waits_as_well(narrow: World, sink: Any, gate: Any, kind: Any, how: str) -> None:
    """On a thread and on a loop, and with answers that come in meanwhile."""
    source = narrow.spawn(kind, gpus=1, name="source")
    held(sink, gate)
    sending = getattr(source, how).call_one(sink, 10 * MOST)
    gate.open()
    sending.get(PATIENCE)
    assert source.look.call_one(sink).get(PATIENCE) == list(range(10 * MOST))


def test_each_process_has_room_of_its_own(narrow: World, sink: Any, gate: Any, waits: Waits, do: Any) -> None:
    source = narrow.spawn(Source, gpus=1, name="source")
    held(sink, gate)
    sending = do(lambda: [sink.take.broadcast(number) for number in range(MOST + 1)])
    waits.wait_for_one()
    assert source.pour.call_one(sink, MOST).get(PATIENCE) == MOST
    gate.open()
    sending.outcome()
    assert len(source.look.call_one(sink).get(PATIENCE)) >= MOST


def test_a_stop_overtakes_waiting_messages(sink: Any, gate: Any, waits: Waits, do: Any) -> None:
    """And waiting senders get an error that the actor was stopped."""
    held(sink, gate)
    sending = do(lambda: [sink.take.call_one(number) for number in range(2 * MOST)])
    waits.wait_for_one()
    stopped = sink.stop("enough")
    gate.open()
    stopped.get(PATIENCE)
    errors = [future.exception(PATIENCE) for future in sending.outcome()]
    assert errors[:FREE] == [None] * FREE
    assert all(error is None or "enough" in str(error) for error in errors)
    assert isinstance(errors[-1], SupervisionError)


def test_an_ended_actor_keeps_no_caller_waiting(sink: Any, waits: Waits) -> None:
    sink.stop("enough").get(PATIENCE)
    for number in range(5 * MOST):
        sink.take.broadcast(number)
    with pytest.raises(SupervisionError, match="enough"):
        sink.take.call_one(0).get(PATIENCE)


def test_the_death_of_the_receiver_wakes_waiting_senders(narrow: World, gate: Any, waits: Waits, do: Any) -> None:
    procs = narrow.procs(gpus=1)
    sink = held(procs.spawn("sink", Sink), gate)
    sending = do(lambda: [sink.take.call_one(number) for number in range(5 * MOST)])
    waits.wait_for_one()
    narrow.kill(procs)
    assert {type(future.exception(PATIENCE)) for future in sending.outcome()} == {ProcessDied}


def test_a_call_that_failed_while_it_waited_is_not_sent_to_the_next_incarnation(
    narrow: World, gate: Any, waits: Waits
) -> None:
    """Its caller got an error, and may have made it again."""
    procs = narrow.procs(gpus=1)
    sink = held(procs.spawn("sink", Sink), gate)

    def die_and_come_again() -> None:
        narrow.kill(procs)
        procs.heal().get(PATIENCE)

    waits.when_one_begins = die_and_come_again
    futures = [sink.take.call_one(number) for number in range(FREE + 1)]
    assert {type(future.exception(PATIENCE)) for future in futures} == {ProcessDied}
    assert sink.all_taken.call_one().get(PATIENCE) == []


def test_a_healed_actor_has_an_empty_queue(narrow: World, gate: Any, waits: Waits) -> None:
    """What its former lives were sent, and never said to have taken, takes no room in it."""
    procs = narrow.procs(gpus=1)
    sink = procs.spawn("sink", Sink)
    for _ in range(3):
        held(sink, gate)
        for number in range(FREE):
            sink.take.broadcast(number)
        narrow.kill(procs)
        procs.heal().get(PATIENCE)
    assert waits.is_none
    assert sink.all_taken.call_one().get(PATIENCE) == []


def test_the_end_of_the_session_wakes_waiting_callers(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch, do: Any
) -> None:
    world = make_world(**SMALL)
    waits, gate = Waits(monkeypatch), world.gate()
    # Not by `world.spawn`: only the end of the session stops this mesh.
    sink = held(world.host.spawn_procs(per_host={"gpus": 1}).spawn("sink", Sink), gate)
    world.be_impatient()
    sending = do(lambda: [sink.take.call_one(number) for number in range(5 * MOST)])
    waits.wait_for_one()
    ending = do(world.session.close)
    futures = sending.outcome()
    assert isinstance(futures[-1].exception(PATIENCE), SupervisionError)
    gate.open()
    ending.outcome()


def test_a_call_with_a_time_limit_waits_no_longer(sink: Any, gate: Any, waits: Waits) -> None:
    held(sink, gate)
    for number in range(FREE):
        sink.take.broadcast(number)
    late = sink.take.call_one(7, timeout=0.05)
    with pytest.raises(CallTimeout, match=rf"timed out sending sink.take\(\) .*queue there is full \({MOST} mess"):
        late.get(PATIENCE)
    gate.open()
    assert sink.all_taken.call_one().get(PATIENCE) == list(range(FREE))


def test_ctrl_c_ends_the_wait(sink: Any, gate: Any, waits: Waits, do: Any) -> None:
    held(sink, gate)
    waits.when_one_begins = lambda: do(lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        pour(sink, 5 * MOST)
    waits.when_one_begins = lambda: None
    gate.open()
    assert sink.all_taken.call_one().get(PATIENCE) == list(range(FREE))


def test_the_log_reports_a_long_wait(sink: Any, gate: Any, waits: Waits, do: Any, caplog: Any) -> None:
    """Once of each queue, with the remedy."""
    held(sink, gate)
    caplog.set_level(logging.WARNING, "meshbook.runtime.node.flow_control")
    sending = do(lambda: [sink.take.broadcast(number) for number in range(MOST + 1)])
    complain = waits.wait_for_one()
    complain()
    complain()
    gate.open()
    sending.outcome()
    complain()
    (record,) = caplog.records
    assert "to send sink.take() to" in record.getMessage()
    assert "MESHBOOK_QUEUE_MESSAGES" in record.getMessage()


class Loner(Actor):
    """Sends to itself."""

    @endpoint
    def pour(self, itself: Any, count: int) -> None:
        for _ in range(count):
            itself.nothing.broadcast()

    @endpoint
    def nothing(self) -> None:
        """Take the message."""


class AsyncLoner(Actor):
    @endpoint
    async def pour(self, itself: Any, count: int) -> None:
        for _ in range(count):
            itself.nothing.broadcast()

    @endpoint
    async def nothing(self) -> None:
        """Take the message."""


class OverlappingLoner(AsyncLoner):
    @concurrent_endpoint
    async def pour(self, itself: Any, count: int) -> None:
        for _ in range(count):
            itself.nothing.broadcast()


class MixedLoner(AsyncLoner, mixed=True):
    @endpoint
    def pour(self, itself: Any, count: int) -> None:
        for _ in range(count):
            itself.nothing.broadcast()


@pytest.mark.parametrize("kind", [Loner, AsyncLoner, OverlappingLoner, MixedLoner])
def test_an_actor_that_fills_its_own_queue_gets_an_error_with_the_limit(narrow: World, kind: Any) -> None:
    loner = narrow.spawn(kind, gpus=1, name="loner")
    loner.pour.call_one(loner, MOST).get(PATIENCE)
    with pytest.raises(ActorError) as caught:
        loner.pour.call_one(loner, 3 * MOST).get(PATIENCE)
    assert isinstance(caught.value.exception, QueueFull)
    said = ["the queue of loner is full", f"{MOST} messages", "nothing()", "MESHBOOK_QUEUE_MESSAGES"]
    assert [each for each in said if each not in str(caught.value)] == []


class Member(Actor):
    """Pours into the next one of a ring, once all are there."""

    @endpoint
    def pour(self, other: Any, gate: Any, count: int) -> None:
        gate.pass_through()
        for _ in range(count):
            other.nothing.broadcast()

    @endpoint
    def nothing(self) -> None:
        """Take the message."""


class AsyncMember(Actor):
    @endpoint
    async def pour(self, other: Any, gate: Any, count: int) -> None:
        await gate.pass_through_async()
        for _ in range(count):
            other.nothing.broadcast()

    @endpoint
    async def nothing(self) -> None:
        """Take the message."""


@pytest.mark.parametrize("kind", [Member, AsyncMember])
def test_actors_that_fill_each_others_queues_are_a_deadlock(narrow: World, kind: Any, gate: Any) -> None:
    ring = [narrow.spawn(kind, gpus=1, name=f"member{number}") for number in range(3)]
    calls = [ring[n].pour.call_one(ring[(n + 1) % 3], gate, 3 * MOST) for n in range(3)]
    for _ in ring:
        gate.wait_told()
    gate.open(3)
    errors = [future.exception(PATIENCE) for future in calls]
    failed = [error for error in errors if error is not None]
    assert all(isinstance(error, ActorError) and isinstance(error.exception, DeadlockError) for error in failed)
    assert len(failed) == 1
    said = ["waits for room in the queue of member1 to send nothing()", "MESHBOOK_QUEUE_MESSAGES"]
    assert [each for each in said if each not in str(failed[0])] == []


def test_a_message_that_waits_for_room_can_be_broken_off(narrow: World, sink: Any, gate: Any) -> None:
    source = narrow.spawn(Source, gpus=1, name="source")
    held(sink, gate)
    sending = source.pour.call_one(sink, 10 * MOST)
    assert sending.cancel()
    with pytest.raises(CallCancelled):
        sending.get(PATIENCE)
    assert source.pour.call_one(sink, 0).get(PATIENCE) == 0
    gate.open()


def test_what_comes_before_its_actor_counts(narrow: World, gate: Any, waits: Waits, do: Any) -> None:
    """References travel while constructors run: what is sent by them is in the queue already."""
    sink = narrow.spawn(SlowSink, gate, gpus=1, name="sink")
    sending = do(lambda: [sink.take.broadcast(number) for number in range(3 * MOST)])
    waits.wait_for_one()
    gate.open()
    sending.outcome()
    assert sink.all_taken.call_one().get(PATIENCE) == list(range(3 * MOST))


class SlowSink(Sink):
    def __init__(self, gate: Any) -> None:
        super().__init__()
        gate.pass_through()
