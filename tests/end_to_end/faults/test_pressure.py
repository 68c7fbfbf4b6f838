"""A receiver that is slow, stopped or killed, with 100,000 messages on the way: nothing is lost, memory is bounded."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from meshbook import Accumulator, Actor, endpoint
from meshbook.runtime.errors import ProcessDied

PATIENCE = 120.0
MANY = 100_000
DATA = bytes(1000)
ALL_MB = MANY * len(DATA) / 1e6  # what would pile up somewhere without flow control
MOST_MB = 40.0  # that a process may grow by: 4096 messages of this size, and what Python keeps for them
pytestmark = [pytest.mark.process, pytest.mark.without_torch]


class Sink(Actor):
    """Takes numbered messages, and notes whether they came in order."""

    def __init__(self) -> None:
        self.count = 0
        self.in_order = True

    @endpoint
    def hold(self, fifo: str) -> None:
        """Until the test opens the other end."""
        with open(fifo, "rb"):
            pass

    @endpoint
    def take(self, number: int, data: bytes) -> int:
        self.in_order = self.in_order and number == self.count
        self.count += 1
        return number

    @endpoint
    def state(self) -> tuple[int, bool]:
        return self.count, self.in_order

    @endpoint
    def pid(self) -> int:
        return os.getpid()


class Source(Actor):
    """Another actor that sends."""

    @endpoint
    def pour(self, sink: Any, count: int) -> tuple[int, bool]:
        for number in range(count):
            sink.take.broadcast(number, DATA)
        return sink.state.call_one().get()

    @endpoint
    def ask(self, sink: Any, count: int) -> tuple[int, bool]:
        futures = [sink.take.call_one(number, DATA) for number in range(count)]
        assert [future.get() for future in futures] == list(range(count))
        return sink.state.call_one().get()

    @endpoint
    def pid(self) -> int:
        return os.getpid()


class AsyncSource(Actor):
    @endpoint
    async def pour(self, sink: Any, count: int) -> tuple[int, bool]:
        for number in range(count):
            sink.take.broadcast(number, DATA)
        return await sink.state.call_one()

    @endpoint
    async def ask(self, sink: Any, count: int) -> tuple[int, bool]:
        found = await asyncio.gather(*(sink.take.call_one(number, DATA) for number in range(count)))
        assert found == list(range(count))
        return await sink.state.call_one()

    @endpoint
    async def pid(self) -> int:
        return os.getpid()


class Growth:
    """How much a process has grown at most, in MB: asked by the test at moments when the most is in its memory."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._before = self._mb()

    def _mb(self) -> float:
        return float(self._process.memory_info().rss) / 1e6

    def __call__(self) -> float:
        return self._mb() - self._before


@pytest.fixture
def fifo(tmp_path: Any) -> str:
    path = str(tmp_path / "held")
    os.mkfifo(path)
    return path


def suspend(pid: int) -> None:
    """When this returns, the process does nothing any more."""
    process = psutil.Process(pid)
    process.suspend()
    while process.status() != psutil.STATUS_STOPPED:
        pass


def pour(sink: Any, numbers: range, look: Callable[[], object] = lambda: None) -> None:
    for number in numbers:
        sink.take.broadcast(number, DATA)
        if number % 5000 == 0:
            look()


def test_a_script_that_sends_more_than_a_slow_receiver_takes(spawn_procs: Any, fifo: str) -> None:
    sink = spawn_procs().spawn("sink", Sink)
    growths = [Growth(os.getpid()), Growth(sink.pid.call_one().get(PATIENCE))]
    seen: list[float] = []
    sink.hold.broadcast(fifo)
    opening = threading.Timer(0.2, lambda: open(fifo, "wb").close())  # it holds for a while, or not: both must do
    opening.start()
    pour(sink, range(MANY), lambda: seen.extend(growth() for growth in growths))
    assert sink.state.call_one().get(PATIENCE) == (MANY, True)
    opening.join()
    assert max(seen) < MOST_MB < ALL_MB / 2


@pytest.mark.parametrize("kind", [Source, AsyncSource])
@pytest.mark.parametrize(("how", "count"), [("pour", MANY // 2), ("ask", MANY // 10)])
def test_an_actor_that_sends_more_than_a_slow_receiver_takes(spawn_procs: Any, kind: Any, how: str, count: int) -> None:
    procs = spawn_procs(2)
    sink = procs.slice(gpus=0).spawn("sink", Sink)
    source = procs.slice(gpus=1).spawn("source", kind)
    growths = [Growth(actor.pid.call_one().get(PATIENCE)) for actor in (sink, source)]
    assert getattr(source, how).call_one(sink, count).get(PATIENCE) == (count, True)
    assert max(growth() for growth in growths) < MOST_MB + count * 0.002  # the caller keeps a future of each


def test_a_receiver_that_is_stopped_and_goes_on(spawn_procs: Any) -> None:
    sink = spawn_procs().spawn("sink", Sink)
    pid = sink.pid.call_one().get(PATIENCE)
    growth = Growth(os.getpid())
    suspend(pid)
    going_on = threading.Timer(0.3, os.kill, (pid, signal.SIGCONT))
    going_on.start()
    pour(sink, range(MANY // 4))
    assert sink.state.call_one().get(PATIENCE) == (MANY // 4, True)
    assert growth() < MOST_MB
    going_on.join()


@pytest.mark.parametrize("verb", ["call", "stream", "call_one", "broadcast"])
def test_a_receiver_that_is_killed_while_its_senders_wait(spawn_procs: Any, faults: Any, verb: str) -> None:
    """Each gets the reason, for each message; what wants no answer is dropped with the process."""
    procs = spawn_procs(2)
    sink = procs.spawn("sink", Sink)
    pid = sink.slice(gpus=1).pid.call_one().get(PATIENCE)
    suspend(pid)
    killing = threading.Timer(0.3, os.kill, (pid, signal.SIGKILL))
    killing.start()
    target = sink.slice(gpus=1) if verb == "call_one" else sink
    sent = [getattr(target.take, verb)(number, DATA) for number in range(6000)]
    killing.join()
    faults.get(timeout=PATIENCE)
    if verb != "broadcast":
        answers = [list(each) if verb == "stream" else [each] for each in sent]  # by order of arrival
        errors = [[future.exception(PATIENCE) for future in each] for each in answers]
        assert all(any(isinstance(error, ProcessDied) for error in each) for each in errors)
        assert "SIGKILL" in str(errors[0]) + str(errors[-1])
    procs.heal().get(PATIENCE)
    target.state.call(timeout=PATIENCE).get(PATIENCE)


def test_answers_that_are_folded_come_in_while_it_waits(spawn_procs: Any) -> None:
    """Many calls of a whole mesh, whose answers the sender takes in while it waits for room."""
    sink = spawn_procs(2).spawn("sink", Sink)
    total = Accumulator(sink.take, 0, lambda so_far, number: so_far + number)
    sums = [total.accumulate(number, DATA) for number in range(5000)]
    assert [each.get(PATIENCE) for each in sums] == [2 * number for number in range(5000)]
