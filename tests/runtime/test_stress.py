"""Many threads, finalizers, signals and full buffers at once: nothing is lost, and each thread's order is kept.

All counts are fixed, and no test depends on the speed of the machine.
"""

from __future__ import annotations

import contextlib
import contextvars
import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from meshbook.runtime.actor.context import CURRENT
from meshbook.runtime.actor.future import Future
from meshbook.runtime.config import Settings
from meshbook.runtime.errors import QueueFull
from meshbook.runtime.transport import Transport
from tests.runtime.conftest import Received
from tests.support import PATIENCE

pytestmark = pytest.mark.slow

LONG = 30.0  # seconds until a wait in the middle of much work is a failure
LARGE = 300_000  # bytes: more than a socket's buffer takes


class Garbage:
    """A cycle whose finalizer calls a function: it runs wherever the collector happens to."""

    def __init__(self, do: Callable[[], object]) -> None:
        self._do = do
        self._me = self

    def __del__(self) -> None:
        self._do()


@pytest.fixture(autouse=True)
def _collects_often() -> Iterator[None]:
    before = gc.get_threshold()
    gc.collect()
    gc.set_threshold(50)
    yield
    gc.set_threshold(*before)


@contextlib.contextmanager
def handler(handle: Callable[..., object]) -> Iterator[None]:
    """Handle SIGUSR1 like this on the main thread."""
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def signal_main() -> None:
    signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)  # type: ignore[arg-type]


def in_threads(*works: Callable[[], object]) -> None:
    """Run these at once, each as a client like the test; fails with the first error."""
    errors: list[BaseException] = []

    def run(work: Callable[[], object], context: contextvars.Context) -> None:
        try:
            context.run(work)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work, contextvars.copy_context()), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert not [thread for thread in threads if thread.is_alive()]
    assert errors == []


def numbers_by_sender(notes: list[Any]) -> dict[Any, list[int]]:
    found: dict[Any, list[int]] = {}
    for sender, number, *_ in notes:
        found.setdefault(sender, []).append(number)
    return found


# -- threads and finalizers ---------------------------------------------------------


@pytest.mark.parametrize("waits", [False, True], ids=["finalizers send", "finalizers wait"])
def test_threads_and_finalizers_lose_nothing(session: Any, waits: bool) -> None:
    """Some frames are large, and go between small ones."""
    mesh, last = session.spawn_counted(), session.spawn_counted()
    client = contextvars.copy_context()
    done: list[tuple[int, Future[Any]]] = []
    senders: set[int] = set()

    def send_last(number: int) -> None:
        def call() -> None:
            future = last.run.call_one(abs, -number)
            done.append((number, future))
            if waits and threading.get_ident() in senders:
                future.get(LONG)

        client.copy().run(call)

    def pour(sender: int) -> None:
        senders.add(threading.get_ident())
        futures = []
        for number in range(150):
            size = LARGE if number % 50 == 7 else 10
            mesh.note.broadcast((sender, number, b"x" * size))
            futures.append(mesh.run.call_one(abs, -number))
            if number % 3 == 0:
                Garbage(lambda number=number: send_last(number))  # type: ignore[misc]
        assert [future.get(LONG) for future in futures] == list(range(150))

    in_threads(*(lambda sender=sender: pour(sender) for sender in range(4)))  # type: ignore[misc]
    gc.collect()
    assert numbers_by_sender(mesh.noted.call_one().get(LONG)) == {sender: list(range(150)) for sender in range(4)}
    end = time.monotonic() + LONG
    while len(done) < 4 * 50:  # some finalizers run on other threads
        assert time.monotonic() < end
        time.sleep(0.001)
    assert all(future.get(LONG) == number for number, future in done)


def test_finalizers_that_broadcast_to_a_queue_of_one_message(make_session: Any) -> None:
    """They wait for room in the middle of anything, also of another wait for room."""
    session = make_session(queue_messages=1)
    mesh, last = session.spawn_counted(), session.spawn_counted()
    for probe in (mesh, last):
        probe.initialized.get(LONG)  # a finalizer on the thread of a new actor would act as the client and wait for it
    client = contextvars.copy_context()
    sent: list[int] = []
    refused: list[int] = []

    def broadcast(number: int) -> None:
        try:
            last.note.broadcast(number)
            sent.append(number)
        except QueueFull:  # on the thread of that very actor, which alone could make room
            refused.append(number)

    def finalize(number: int) -> None:
        if CURRENT.get() is None:  # on an I/O thread
            client.copy().run(broadcast, number)
        else:
            broadcast(number)

    def pour(sender: int) -> None:
        for number in range(150):
            mesh.note.broadcast((sender, number))
            Garbage(lambda number=number: finalize(number))  # type: ignore[misc]

    in_threads(*(lambda sender=sender: pour(sender) for sender in range(2)))  # type: ignore[misc]
    gc.collect()
    assert numbers_by_sender(mesh.noted.call_one().get(LONG)) == {sender: list(range(150)) for sender in range(2)}
    end = time.monotonic() + LONG
    while len(sent) + len(refused) < 300 or sorted(last.noted.call_one().get(LONG)) != sorted(sent):
        assert time.monotonic() < end  # some finalizers run on other threads


# -- signals -------------------------------------------------------------------------


class Interrupted(BaseException):
    """What the handler of a signal raises, as that of Ctrl-C raises KeyboardInterrupt."""


def test_interrupted_waits_lose_nothing(session: Any) -> None:
    mesh = session.spawn_counted()
    pending = [mesh.run.call_one(abs, -number) for number in range(100)]
    interrupted, calls = 0, 0

    def interrupt(number: int, frame: Any) -> None:
        raise Interrupted

    goes_on = threading.Event()
    count = 200

    def press() -> None:
        for _ in range(count):
            goes_on.wait(PATIENCE)
            goes_on.clear()
            signal_main()

    presser = threading.Thread(target=press, daemon=True)

    def call_until_interrupted() -> None:
        nonlocal calls
        goes_on.set()
        while True:
            assert mesh.run.call_one(abs, -1).get(LONG) == 1
            calls += 1

    with handler(interrupt):
        presser.start()
        for _ in range(count):
            try:
                call_until_interrupted()
            except Interrupted:
                interrupted += 1
        presser.join(PATIENCE)
    assert interrupted == count
    assert [future.get(LONG) for future in pending] == list(range(100))
    assert mesh.run.call_one(abs, -5).get(LONG) == 5


def test_a_signal_handler_may_call_and_wait_in_the_middle_of_calls(session: Any) -> None:
    mesh = session.spawn_counted()
    handled: list[int] = []
    asked = 0
    over = threading.Event()

    def handle(number: int, frame: Any) -> None:
        handled.append(mesh.run.call_one(abs, -len(handled)).get(LONG))

    def press() -> None:
        nonlocal asked
        while not over.wait(0.002):
            if asked == len(handled):  # one at a time, else handlers nest until the stack is full
                asked += 1
                signal_main()

    presser = threading.Thread(target=press, daemon=True)
    with handler(handle):
        presser.start()
        futures: list[Future[Any]] = []
        for number in range(3000):
            futures.append(mesh.run.call_one(abs, -number))
            if number % 10 == 0:
                assert futures[-1].get(LONG) == number
        assert [future.get(LONG) for future in futures] == list(range(3000))
        over.set()
        presser.join(PATIENCE)
        while len(handled) < asked:
            mesh.run.call_one(abs, -1).get(LONG)
    assert handled == list(range(asked))
    assert asked


# -- receivers that do not read ----------------------------------------------------------


@pytest.fixture
def opened(connect: Any) -> Iterator[Callable[..., Transport]]:
    made: list[Transport] = []

    def make(name: str, mark: int = 10_000) -> Transport:
        transport: Transport = connect(name, Settings(high_water_mark=mark))
        transport.greeting = b"hello"
        made.append(transport)
        return transport

    yield make
    for transport in made:
        transport.close()


def test_a_receiver_that_does_not_read_holds_up_no_others(opened: Callable[..., Transport]) -> None:
    here, deaf, other = opened("here"), opened("deaf"), opened("other")
    here.start()
    received = Received(other)
    frames = [b"%d:" % number + bytes(100_000 * (number % 3 == 0)) for number in range(300)]
    for frame in frames:  # far more than a socket's buffer takes
        here.send(deaf.address, frame)
        here.send(other.address, frame[:5])
    assert received.take(301)[1:] == [frame[:5] for frame in frames]
    assert Received(deaf).take(301)[1:] == frames


@pytest.mark.parametrize("size", [100, 4_000, 40_000, LARGE])
def test_frames_that_fill_the_buffer_arrive_in_order(opened: Callable[..., Transport], size: int) -> None:
    """From several threads, directly and by way of the queue, while the receiver starts late."""
    here, there = opened("here"), opened("there")
    here.start()
    count = max(10, min(1000, 4_000_000 // size))

    def pour(sender: int) -> None:
        for number in range(count):
            send = here.send_soon if number % 7 == 3 else here.send
            send(there.address, b"%d:%d:" % (sender, number) + bytes(size if number % 2 else 10))

    in_threads(*(lambda sender=sender: pour(sender) for sender in range(3)))  # type: ignore[misc]
    notes = [frame.split(b":", 2) for frame in Received(there).take(1 + 3 * count)[1:]]
    assert all(len(rest) == (size if int(number) % 2 else 10) for _, number, rest in notes)
    found = numbers_by_sender([(int(sender), int(number)) for sender, number, _ in notes])
    assert found == {sender: list(range(count)) for sender in range(3)}


def test_both_ways_at_once_with_low_marks(opened: Callable[..., Transport]) -> None:
    """Each waits for room while the other one sends as well: their I/O threads go on meanwhile."""
    here, there = opened("here", 5), opened("there", 5)
    received = {"here": Received(here), "there": Received(there)}
    frames = [b"%d:" % number + bytes(LARGE * (number % 20 == 0)) for number in range(400)]

    def pour(sender: Transport, to: Transport) -> None:
        for frame in frames:
            sender.send(to.address, frame)

    in_threads(lambda: pour(here, there), lambda: pour(there, here))
    assert received["here"].take(401)[1:] == frames
    assert received["there"].take(401)[1:] == frames
