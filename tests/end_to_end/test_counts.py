"""What a call, a cast and a line of output cost in frames, system calls and wake-ups. Counts, no times."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.context import CURRENT
from meshbook.runtime.actor.endpoint import concurrent_endpoint, endpoint
from meshbook.runtime.cells.actor import CellActor
from meshbook.runtime.config import Settings
from meshbook.runtime.hosts.session import Session
from meshbook.runtime.telemetry import capture
from meshbook.runtime.telemetry.output import TELEMETRY, OutputChunk
from meshbook.runtime.wire.frames import Buffer, unpack
from meshbook.runtime.wire.messages import Call, Mark
from tests.counting import Counting, SystemCalls

TIMES = 300
RANKS = 8
ROUNDS = 5
ROOM = 10  # frames of other causes, such as the measurements of the host
pytestmark = [pytest.mark.process, pytest.mark.without_torch]


class Echo(Actor):
    @endpoint
    def echo(self, value: int) -> int:
        return value

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def wait_for(self, held: Any) -> str:
        answer: str = held.hold.call_one().get()
        return answer

    @endpoint
    def say(self, lines: int) -> None:
        for number in range(lines):
            print("line", number)


class Held(Actor):
    """Answers `hold` only after `release`."""

    def __init__(self) -> None:
        self._entered, self._released = threading.Event(), threading.Event()

    @concurrent_endpoint
    async def hold(self) -> str:
        self._entered.set()
        while not self._released.is_set():
            await asyncio.sleep(0.05)
        return "released"

    @concurrent_endpoint
    async def release(self) -> None:
        self._released.set()

    @concurrent_endpoint
    async def began(self) -> None:
        while not self._entered.is_set():
            await asyncio.sleep(0.05)


class Mesh:
    """Eight workers, and the processes that take part in a call of the first one, or of all."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.procs = procs = session.host.spawn_procs(per_host={"gpus": RANKS})
        self.all: Any = procs.spawn("echo", Echo)
        self.one: Any = self.all.slice(gpus=0)
        pids = [pid for _, pid in self.all.pid.call().get().items()]
        self.pair = [os.getpid(), pids[0]]
        self.everyone = [os.getpid(), *pids]
        self.call()
        self.cast()

    def call(self) -> None:
        for number in range(TIMES):
            self.one.echo.call_one(number).get()

    def call_all(self) -> None:
        for number in range(TIMES):
            self.all.echo.call(number).get()

    def cast(self) -> None:
        for number in range(TIMES):
            self.all.echo.broadcast(number)
        self.all.echo.call(0).get()

    def fewest_wake_ups(self, processes: list[int], work: Callable[[], None]) -> int:
        """Of some rounds, since each thread that loses its processor to other work on the machine adds wake-ups."""
        counts = []
        for _ in range(ROUNDS):
            with Counting(processes) as counted:
                work()
            counts.append(counted.wake_ups)
        return min(counts)

    def frames(self, work: Callable[[], None]) -> tuple[int, int]:
        """How many frames the controller sends and receives meanwhile."""
        sent, received, _, _ = self.session.node.traffic()
        work()
        sent_after, received_after, _, _ = self.session.node.traffic()
        return sent_after - sent, received_after - received


@pytest.fixture(scope="module")
def mesh(session: Session) -> Mesh:
    return Mesh(session)


def test_a_call_is_a_frame_each_way(mesh: Mesh) -> None:
    sent, received = mesh.frames(mesh.call)
    assert TIMES <= sent <= TIMES + ROOM
    assert TIMES <= received <= TIMES + ROOM


def test_a_call_wakes_two_threads_of_each_process(mesh: Mesh) -> None:
    """The I/O thread and the thread that waits: the actor's, and the caller's. A contended lock may add one."""
    for process in mesh.pair:
        assert mesh.fewest_wake_ups([process], mesh.call) / TIMES < 3.5


def test_a_call_is_one_send_one_wait_and_one_read_of_each_process(mesh: Mesh) -> None:
    with SystemCalls(mesh.pair) as counted:
        mesh.call()
    per_call = {name: count / TIMES for name, count in counted.by_name.items()}
    assert per_call["sendto"] < 2.2
    assert per_call["recvfrom"] < 2.2
    assert per_call["epoll_wait"] < 2.5
    assert sum(count for name, count in per_call.items() if name != "futex") < 8


def test_a_call_on_all_ranks_is_a_frame_each_way_for_each(mesh: Mesh) -> None:
    sent, received = mesh.frames(mesh.call_all)
    assert TIMES * RANKS <= sent <= TIMES * RANKS + ROOM
    assert TIMES * RANKS <= received <= TIMES * RANKS + RANKS + ROOM  # a credit of each rank, now and then
    assert mesh.fewest_wake_ups(mesh.everyone, mesh.call_all) / (TIMES * RANKS) < 5


def test_a_cast_is_sent_with_others(mesh: Mesh) -> None:
    """The I/O thread joins what is queued: far fewer system calls and wake-ups than frames."""
    sent, _ = mesh.frames(mesh.cast)
    assert (TIMES + 1) * RANKS <= sent <= (TIMES + 1) * RANKS + ROOM
    assert mesh.fewest_wake_ups(mesh.everyone, mesh.cast) / (TIMES * RANKS) < 0.5
    with SystemCalls(mesh.everyone) as calls:
        mesh.cast()
    assert calls.by_name["sendto"] / (TIMES * RANKS) < 0.5
    assert calls.by_name["recvfrom"] / (TIMES * RANKS) < 0.5


def test_lines_of_output_travel_together(mesh: Mesh) -> None:
    """The fewest of some rounds, since a slow worker flushes more often: every 50 ms."""
    lines = 10_000

    def print_lines() -> None:
        mesh.one.say.call_one(lines).get()

    assert min(mesh.frames(print_lines)[1] for _ in range(ROUNDS)) < lines / 50
    assert mesh.fewest_wake_ups(mesh.pair, print_lines) < lines / 20


def test_the_output_of_short_cells_on_many_ranks_travels_with_the_replies() -> None:
    session = Session(Settings(cast_ranks=2))
    token = CURRENT.set(session.context)
    try:
        procs = session.host.spawn_procs(per_host={"gpus": 4}, bootstrap=lengthen_short_cells)
        cells: Any = procs.spawn_on_main("cells", CellActor)
        cells.run.call("pass", 1).get()
        texts, received = list[str](), list[Any]()
        session.output.set_default(lambda chunk: texts.append(chunk.text) if isinstance(chunk, OutputChunk) else None)
        accept = session.node.accept

        def note(frame: Buffer) -> None:
            received.append(unpack(frame)[0])
            accept(frame)

        session.node._transport.accept = note
        for number in range(10):
            cells.run.call(f"for part in 'ab': print({number}, part)", 1).get()
            assert texts == [f"{number} a\n{number} b\n"] * 4
            texts.clear()
        assert not [message for message in received if isinstance(message, Call) and message.actor == TELEMETRY]
        assert sum(isinstance(message, Mark) for message in received) <= 4
    finally:
        CURRENT.reset(token)
        session.close()


def lengthen_short_cells() -> None:
    """Make the output thread wait longer for the end of a cell than any cell here takes."""
    capture.FLUSH_SECONDS = 1000.0


def test_a_worker_that_waits_in_a_call_sleeps(mesh: Mesh) -> None:
    """The deadlock watch wakes it four times a second, the thread that looks for output five times."""
    held = mesh.procs.slice(gpus=1).spawn("held", Held)
    waiting = mesh.one.wait_for.call_one(held)
    held.began.call_one().get()
    with Counting(mesh.pair[1:]) as counted, pytest.raises(TimeoutError):
        waiting.get(timeout=3)
    held.release.call_one().get()
    assert waiting.get() == "released"
    assert counted.wake_ups < 3 * 20
