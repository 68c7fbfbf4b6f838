"""Calls between nodes: what the caller gets, for every way in which a call can end."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
from typing import Any

import pytest

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.context import CURRENT, context, current_actor_name, current_rank, current_size
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import ActorError, MessageTooLarge, PickleError
from meshbook.runtime.node.call_table import CallTable, Target
from meshbook.runtime.threads import Latch
from meshbook.runtime.wire.messages import Address
from tests.support import PATIENCE


class Worker(Actor):
    def __init__(self, offset: int = 0) -> None:
        self.offset = offset
        self.seen: list[int] = []
        self.thread = threading.get_ident()

    @endpoint
    def add(self, x: int) -> int:
        return x + self.offset + current_rank().rank

    @endpoint
    def note(self, x: int) -> None:
        self.seen.append(x)

    @endpoint
    def noted(self) -> list[int]:
        return self.seen

    @endpoint
    def hold(self, gate: Any, note: Any = None) -> Any:
        return gate.pass_through(note)

    @endpoint
    def raises(self, error: BaseException) -> None:
        raise error

    @endpoint
    def raises_on(self, rank: int) -> int:
        if current_rank().rank >= rank:
            raise ValueError(f"rank {current_rank().rank}")
        return 1

    @endpoint
    def takes(self, value: Any) -> None: ...

    @endpoint
    def where(self) -> tuple[str, int, dict[str, int]]:
        here = context()
        return str(here.message_rank), here.actor_instance.rank.rank, current_size()

    @endpoint
    def actor_name(self) -> tuple[str, str]:
        return current_actor_name(), str(context().actor_instance)

    @endpoint
    def has_loop(self) -> bool:
        return asyncio._get_running_loop() is not None

    @endpoint
    def is_own_thread(self) -> bool:
        return threading.get_ident() == self.thread

    @endpoint
    def asks(self, other: Any, x: int) -> int:
        answer: int = other.add.call_one(x).get(PATIENCE)
        return answer

    @endpoint
    def asks_without_limit(self, other: Any, x: int) -> int:
        answer: int = other.add.call_one(x).get()
        return answer


class AsyncWorker(Actor):
    def __init__(self) -> None:
        self.inside = 0
        self.most = 0

    @endpoint
    async def add(self, x: int) -> int:
        return x

    @endpoint
    async def overlap(self) -> int:
        self.inside += 1
        self.most = max(self.most, self.inside)
        await asyncio.sleep(0)
        self.inside -= 1
        return self.most

    @endpoint
    async def raises(self, error: BaseException) -> None:
        await asyncio.sleep(0)
        raise error

    @endpoint
    async def asks(self, other: Any, x: int) -> int:
        answer: int = await other.add.call_one(x)
        return answer


class OwnError(Exception):
    """Cannot be rebuilt from its args, as many cannot."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")


def sliced(mesh: Any, **cut: Any) -> Any:
    return mesh.slice(**cut)


def error_of(future: Future[Any]) -> BaseException:
    error = future.exception(PATIENCE)
    assert error is not None
    return error


# -- values ------------------------------------------------------------------------


def test_the_verbs(session: Any) -> None:
    mesh = session.spawn(Worker, 10, on=session.workers(3))
    assert list(mesh.add.call(1).get(PATIENCE).values()) == [11, 12, 13]
    assert [future.get(PATIENCE) for future in mesh.add.call_each(1)] == [11, 12, 13]
    assert sliced(mesh, gpus=1).add.call_one(1).get(PATIENCE) == 11
    mesh.note.broadcast(5)
    assert list(mesh.noted.call().get(PATIENCE).values()) == [[5]] * 3


def test_without_a_time_limit(session: Any) -> None:
    one = sliced(session.spawn(Worker, on=session.workers(2)), gpus=0)
    assert [one.add.call_one(x).get() for x in range(300)] == list(range(300))


def test_many_outstanding(session: Any) -> None:
    mesh = session.spawn(Worker)
    futures = [mesh.add.call_one(x) for x in range(3000)]
    assert [future.get() for future in futures] == list(range(3000))


def test_many_threads_ask(session: Any) -> None:
    mesh = session.spawn(Worker)
    here = CURRENT.get()
    results: dict[int, list[int]] = {}

    def ask(who: int) -> None:
        CURRENT.set(here)
        results[who] = [mesh.add.call_one(x).get() for x in range(who, who + 100)]

    threads = [threading.Thread(target=ask, args=(who,), daemon=True) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert results == {who: list(range(who, who + 100)) for who in range(4)}


@pytest.mark.parametrize("cls", [Worker, AsyncWorker])
def test_awaited(session: Any, cls: type[Actor]) -> None:
    mesh = session.spawn(cls)

    async def main() -> list[int]:
        futures = [mesh.add.call_one(x) for x in range(100)]
        return [await asyncio.wait_for(future.as_asyncio(), PATIENCE) for future in futures]

    assert asyncio.run(main()) == list(range(100))


def test_messages_of_one_sender_keep_their_order(session: Any) -> None:
    mesh = session.spawn(Worker)
    for x in range(500):
        mesh.note.broadcast(x)
    assert mesh.noted.call_one().get(PATIENCE) == list(range(500))


def test_the_rank_is_that_in_the_called_mesh(session: Any) -> None:
    mesh = session.spawn(Worker, on=session.workers(3))
    assert sliced(mesh, gpus=2).where.call_one().get(PATIENCE) == ("{}", 2, {})
    both = sliced(mesh, gpus=slice(1, 3)).where.call().get(PATIENCE)
    assert list(both.values()) == [("{'gpus': 0/2}", 1, {"gpus": 2}), ("{'gpus': 1/2}", 2, {"gpus": 2})]


def test_a_running_process_is_described_in_full(session: Any) -> None:
    mesh = session.spawn(Worker, on=session.workers(2))
    names = [name for name, instance in mesh.actor_name.call().get(PATIENCE).values() if name == instance]
    assert len(set(names)) == 2
    assert all("Worker" in name and f"{{'gpus': {rank}/2}}" in name for rank, name in enumerate(names))
    assert current_actor_name() == str(context().actor_instance)


def test_arguments_are_taken_at_call_time(session: Any, gate: Any) -> None:
    mesh = session.spawn(Worker)
    held = mesh.hold.call_one(gate)
    gate.wait_entered()
    value = [1]
    answer = mesh.hold.call_one(gate, value)
    value.append(2)
    gate.open(2)
    assert (held.get(PATIENCE), answer.get(PATIENCE)) == (None, [1])


# -- how actors run ----------------------------------------------------------------


def test_a_sync_actor_has_one_thread_and_no_loop(session: Any) -> None:
    mesh = session.spawn(Worker)
    assert not mesh.has_loop.call_one().get(PATIENCE)
    assert all(mesh.is_own_thread.call_one().get() for _ in range(20))


def test_an_async_actor_takes_one_message_at_a_time(session: Any) -> None:
    mesh = session.spawn(AsyncWorker)
    assert {future.get(PATIENCE) for future in [mesh.overlap.call_one() for _ in range(50)]} == {1}


def test_two_actors_of_a_process_run_at_the_same_time(session: Any, gate: Any) -> None:
    [node] = session.workers(1)
    held, free = session.spawn(Worker, on=[node]), session.spawn(Worker, on=[node])
    waiting = held.hold.call_one(gate, "held")
    gate.wait_entered()
    assert free.add.call_one(1).get() == 1
    gate.open()
    assert waiting.get() == "held"


@pytest.mark.parametrize("ask", [Worker, AsyncWorker])
@pytest.mark.parametrize("answer", [Worker, AsyncWorker])
@pytest.mark.parametrize("together", [False, True], ids=["two nodes", "one node"])
def test_actors_ask_actors(session: Any, ask: type[Actor], answer: type[Actor], together: bool) -> None:
    nodes = session.workers(2)
    asking = session.spawn(ask, on=nodes[:1])
    answering = session.spawn(answer, on=nodes[:1] if together else nodes[1:])
    answering.initialized.get(PATIENCE)  # its name does not name its creator, as that of a mesh would
    assert [asking.asks.call_one(answering, x).get() for x in range(20)] == list(range(20))


@pytest.mark.parametrize("together", [False, True], ids=["two nodes", "one node"])
def test_actors_ask_actors_without_a_time_limit(session: Any, together: bool) -> None:
    nodes = session.workers(2)
    asking = session.spawn(Worker, on=nodes[:1])
    answering = session.spawn(Worker, on=nodes[:1] if together else nodes[1:])
    answering.initialized.get(PATIENCE)  # its name does not name its creator, as that of a mesh would
    assert [asking.asks_without_limit.call_one(answering, x).get() for x in range(20)] == list(range(20))


def test_the_controller_asks_an_actor_of_its_own(session: Any) -> None:
    mesh = session.spawn(Worker, on=[session.controller])
    assert [mesh.add.call_one(x).get() for x in range(100)] == list(range(100))


# -- errors ------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [Worker, AsyncWorker])
@pytest.mark.parametrize("error", [ValueError("no"), KeyError("k"), StopIteration("s")], ids=repr)
def test_what_an_endpoint_raises(session: Any, cls: type[Actor], error: Exception) -> None:
    mesh = session.spawn(cls)
    raised = error_of(mesh.raises.call_one(error))
    assert isinstance(raised, ActorError)
    assert str(raised).startswith(f"{cls.__name__}-1.raises() on rank {{'gpus': 0/1}} (worker-0, pid {os.getpid()}) ")
    if not isinstance(error, StopIteration) or cls is Worker:
        assert type(raised.exception) is type(error)
        assert type(error).__name__ in str(raised)
    assert __file__ in str(raised)
    assert "hosting.py" not in str(raised)
    assert mesh.add.call_one(1).get(PATIENCE) == 1


class RaisesOwn(Actor):
    @endpoint
    def go(self) -> None:
        try:
            raise KeyError("cause")
        except KeyError as cause:
            raise OwnError(3, "mine") from cause

    @endpoint
    def go_with_a_lock(self) -> None:
        raise ValueError(threading.Lock())


def test_an_exception_that_does_not_travel_leaves_its_text(session: Any) -> None:
    mesh = session.spawn(RaisesOwn)
    raised = error_of(mesh.go.call_one())
    assert isinstance(raised, ActorError)
    assert raised.exception is None
    for said in ("OwnError: 3: mine", "direct cause", "KeyError: 'cause'"):
        assert said in str(raised)
    locked = error_of(mesh.go_with_a_lock.call_one())
    assert isinstance(locked, ActorError)
    assert locked.exception is None


def test_the_lowest_failing_rank_is_raised_once_all_have_answered(session: Any) -> None:
    mesh = session.spawn(Worker, on=session.workers(4))
    raised = error_of(mesh.raises_on.call(2))
    assert isinstance(raised, ActorError)
    assert repr(raised.exception) == "ValueError('rank 2')"
    each = mesh.raises_on.call_each(2)
    assert [future.exception(PATIENCE) is None for future in each] == [True, True, False, False]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (threading.Lock(), r"argument of Worker-1\.takes cannot be pickled: argument 0 \(lock\)"),
        (b"x" * 5000, r"Worker-1\.takes\) is over the limit of 4,000"),
    ],
    ids=["unpicklable", "too large"],
)
def test_an_argument_that_cannot_travel_is_an_error_at_the_call(make_session: Any, value: Any, said: str) -> None:
    session = make_session(max_message_bytes=4000)
    mesh = session.spawn(Worker)
    mesh.initialized.get(PATIENCE)
    with pytest.raises((PickleError, MessageTooLarge), match=said):
        mesh.takes.call(value)
    assert not len(session.controller.table)
    assert mesh.add.call_one(1).get(PATIENCE) == 1


# -- the table ---------------------------------------------------------------------


class Noted:
    """A reply handler that notes what it gets."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any]] = []

    def answer(self, index: int, decode: Any) -> None:
        self.answers.append((index, decode()))

    def refuse(self, index: int, error: BaseException) -> None:
        self.answers.append((index, error))


def targets_on(*nodes: str) -> list[Target]:
    return [Target(Address(node, f"memory://{node}"), "actor") for node in nodes]


def test_targets_of_a_call_are_taken_in_any_order_and_once() -> None:
    table, noted = CallTable(), Noted()
    single = table.open_one(noted, "c")
    first, second, third = table.open(noted, targets_on("a", "b", "a"))
    for call in (third, first, single, second, third):
        if (found := table.take(call)) is not None:
            noted.answer(found[1], lambda: found[0] is noted)
    assert noted.answers == [(2, True), (0, True), (0, True), (1, True)]
    assert len(table) == 0


def test_the_calls_of_a_node_are_taken_together() -> None:
    table, noted = CallTable(), Noted()
    calls = table.open(noted, targets_on("a", "b", "a"))
    table.open_one(noted, "a")
    table.adopt(noted, [(1000, "b"), (1001, "a")])
    port = table.open_port(noted, once=True)
    assert [index for _, index, _ in table.take_all({"a"})] == [0, 2, 0, 1]
    assert [table.is_open(call) for call in (*calls, 1000, port)] == [False, True, False, True, True]
    assert len(table.take_all()) == 3


def test_a_call_has_as_many_tracked_objects_for_a_thousand_targets_as_for_two() -> None:
    """The garbage collector visits each of them, again and again, while the replies are pending."""
    few, many = targets_on("a", "b"), targets_on(*["a"] * 1000)
    gc.disable()
    try:
        counts = []
        for targets in (few, many):
            table, before = CallTable(), len(gc.get_objects())
            table.open(Noted(), targets)
            counts.append(len(gc.get_objects()) - before)
    finally:
        gc.enable()
    assert counts[1] <= counts[0] + 2  # the ids and a larger table


def test_a_wait_that_ends_early_names_the_call_and_its_ranks(session: Any, gate: Any) -> None:
    mesh = session.spawn(Worker, on=session.workers(2))
    future = mesh.hold.call(gate)
    for _ in range(2):
        gate.wait_entered()
    with pytest.raises(TimeoutError, match=r"^Worker-\d+\.hold\(\) on ranks 0-1 did not answer within 0\.01 s$"):
        future.get(timeout=0.01)
    with pytest.raises(TimeoutError, match=r"^Worker-\d+\.hold\(\) on rank 1 did not answer"):
        sliced(mesh, gpus=1).hold.call_one(gate).get(timeout=0.01)
    gate.open(3)
    future.get(PATIENCE)


def test_an_interrupted_wait_says_that_the_call_goes_on_and_how_to_cancel_it(session: Any, gate: Any) -> None:
    mesh = session.spawn(Worker)
    future = mesh.hold.call_one(gate)
    gate.wait_entered()
    main = threading.get_ident()

    def interrupt() -> None:
        while (frame := sys._current_frames()[main]) and frame.f_code is not Latch.wait.__code__:
            os.sched_yield()
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt) as caught:
        future.get(PATIENCE)
    thread.join()
    (note,) = caught.value.__notes__
    assert ".hold() on rank 0 continues; cancel it with cancel() of its future" in note
    assert future.cancel()
    gate.open()
