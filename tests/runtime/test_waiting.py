"""Waiting for answers in every way: no answer is lost, no thread holds up another, and Ctrl-C ends a wait."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.context import CURRENT
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import SupervisionError
from tests.support import PATIENCE


def get(future: Future[Any]) -> Any:
    return future.get()


def get_in_time(future: Future[Any]) -> Any:
    return future.get(PATIENCE)


def await_(future: Future[Any]) -> Any:
    async def wait() -> Any:
        return await asyncio.wait_for(future.as_asyncio(), PATIENCE)

    return asyncio.run(wait())


def call_back(future: Future[Any]) -> Any:
    done = threading.Event()
    future.when_done(done.set)
    assert done.wait(PATIENCE)
    return future.get(0)


WAYS: list[Callable[[Future[Any]], Any]] = [get, get_in_time, await_, call_back]


class Threads:
    """Threads that are clients like the test, and have all ended well when it has."""

    def __init__(self) -> None:
        self._context = CURRENT.get()
        self._started: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def start(self, work: Callable[..., Any], *arguments: Any) -> None:
        thread = threading.Thread(target=self._run, args=(work, arguments), daemon=True)
        thread.start()
        self._started.append(thread)

    def _run(self, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        CURRENT.set(self._context)
        try:
            work(*arguments)
        except BaseException as error:
            self._errors.append(error)

    def join(self) -> None:
        for thread in self._started:
            thread.join(PATIENCE)
        assert not [thread for thread in self._started if thread.is_alive()]
        assert self._errors == []


@pytest.fixture
def threads(session: Any) -> Threads:
    return Threads()


class Inline(Actor):
    """Runs what comes in on the I/O thread."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    @endpoint
    def run(self, *arguments: Any) -> None:
        self._function(*arguments)


def inline_on_controller(session: Any, function: Callable[..., Any]) -> Any:
    session.controller.actors.host_inline("inline", Inline(function))
    return session.refer(Inline, "inline", session.controller)


# -- all ways to wait -----------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("on_main", [True, False], ids=["main thread", "another"])
def test_each_way_to_wait(session: Any, threads: Threads, way: Callable[..., Any], on_main: bool) -> None:
    mesh = session.spawn_probe()

    def ask() -> None:
        assert [way(mesh.run.call_one(abs, -number)) for number in range(50)] == list(range(50))

    ask() if on_main else threads.start(ask)
    threads.join()


def test_many_threads_wait_in_all_ways_at_once(session: Any, threads: Threads) -> None:
    mesh = session.spawn_probe()

    def ask(way: Callable[..., Any]) -> None:
        assert [way(mesh.run.call_one(abs, -number)) for number in range(50)] == list(range(50))

    for way in WAYS * 4:
        threads.start(ask, way)
    ask(get)
    threads.join()


def test_many_threads_wait_for_one_answer(session: Any, threads: Threads, gate: Any) -> None:
    held = session.spawn_probe().run.call_one(gate.pass_through, "answer")
    seen: list[str] = []
    for way in WAYS * 3:
        threads.start(lambda way=way: seen.append(way(held)))  # type: ignore[misc]
    gate.wait_entered()
    gate.open()
    threads.join()
    assert seen == ["answer"] * 12


def test_messages_are_received_while_no_thread_waits(session: Any, gate: Any) -> None:
    mesh, here = session.spawn_probe(), session.spawn_probe(session.controller)
    for number in range(20):
        mesh.run.broadcast(lambda number=number: here.run.broadcast(gate.tell, number))
        assert gate.wait_entered() == number


def test_a_wait_with_a_limit_does_not_hold_up_others(session: Any, gate: Any) -> None:
    [node] = session.workers(1)
    held, free = session.spawn_probe(node), session.spawn_probe(node)
    waiting = held.run.call_one(gate.pass_through, "late")
    for _ in range(5):
        with pytest.raises(TimeoutError):
            waiting.get(timeout=0.01)
        assert free.run.call_one(abs, -1).get() == 1
    gate.open()
    assert waiting.get(PATIENCE) == "late"


@pytest.mark.parametrize("way", WAYS)
def test_an_actor_that_works_for_long_holds_up_no_other(session: Any, gate: Any, way: Callable[..., Any]) -> None:
    """On the controller the test waits at the same node."""
    [node] = session.workers(1)
    free = [session.spawn_probe(node), session.spawn_probe(session.controller)]
    working = [session.spawn_probe(node), session.spawn_probe(session.controller), session.spawn_probe(node)]
    held = [mesh.run.call_one(gate.pass_through, "worked") for mesh in working]
    for _ in held:
        gate.wait_entered()
    for number in range(20):
        assert [way(mesh.run.call_one(abs, -number)) for mesh in free] == [number, number]
    gate.open(len(held))
    assert [way(future) for future in held] == ["worked"] * 3


def test_frames_keep_their_order_between_waits(session: Any) -> None:
    seen: list[int] = []
    inline = inline_on_controller(session, seen.append)
    mesh = session.spawn_probe()

    def send(*numbers: int) -> None:
        for number in numbers:
            inline.run.broadcast(number)

    for start, way in enumerate(WAYS * 10):
        way(mesh.run.call_one(send, *range(start * 10, start * 10 + 10)))
    assert seen == list(range(400))


def test_answers_of_this_process_and_of_another_end_their_waits(session: Any, threads: Threads) -> None:
    mesh, here = session.spawn_probe(), session.spawn_probe(session.controller)
    for _ in range(50):
        mine = here.run.call_one(abs, -1)  # a frame that never leaves the process
        threads.start(get, mesh.run.call_one(abs, -2))
        assert mine.get() == 1
    threads.join()


def test_the_io_thread_cannot_wait_for_an_answer(session: Any, gate: Any) -> None:
    """It would wait for ever, as it delivers the answer."""
    mesh = session.spawn_probe()
    errors: list[BaseException | None] = []

    def wait() -> None:
        try:
            mesh.run.call_one(abs, -1).get()
        except RuntimeError as error:
            errors.append(error)
        gate.tell()

    inline_on_controller(session, wait).run.broadcast()
    gate.wait_entered()
    assert "cannot wait" in str(errors)
    assert mesh.run.call_one(abs, -1).get(PATIENCE) == 1


# -- Ctrl-C ------------------------------------------------------------------------------


def interrupt_main() -> None:
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # type: ignore[arg-type]


@pytest.fixture
def _python_handles_sigint() -> Any:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_python_handles_sigint")
@pytest.mark.parametrize("way", [get, get_in_time])
def test_ctrl_c_ends_the_wait_and_spoils_nothing(session: Any, threads: Threads, gate: Any, way: Any) -> None:
    mesh = session.spawn_probe()
    held = mesh.run.call_one(gate.pass_through, "answer")
    gate.wait_entered()

    def wait_and_be_interrupted() -> None:
        threads.start(interrupt_main)
        way(held)

    with pytest.raises(KeyboardInterrupt):
        wait_and_be_interrupted()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not held.done()
    assert not held._callbacks
    gate.open()
    assert way(held) == "answer"
    threads.join()


@pytest.mark.usefixtures("_python_handles_sigint")
def test_ctrl_c_while_a_frame_is_handled_loses_none(session: Any) -> None:
    """The signal comes while the I/O thread handles a frame, and is raised where the main thread waits."""
    handled: list[int] = []

    def handle(number: int) -> None:
        interrupt_main()
        handled.append(number)

    inline = inline_on_controller(session, handle)
    mesh = session.spawn_probe()
    mesh.initialized.get(PATIENCE)

    def send(number: int) -> None:
        inline.run.broadcast(number)

    def send_and_wait(number: int) -> None:
        mesh.run.broadcast(send, number)
        Future.pending().get()

    open_calls: list[Future[int]] = []
    for number in range(50):
        open_calls += [mesh.run.call_one(abs, -2) for _ in range(3)]
        with pytest.raises(KeyboardInterrupt):
            send_and_wait(number)
        open_calls += [mesh.run.call_one(abs, -2) for _ in range(3)]
    assert {future.get(PATIENCE) for future in open_calls} == {2}
    assert handled == list(range(50))


@pytest.mark.usefixtures("_python_handles_sigint")
def test_a_handler_that_does_not_raise_ends_no_wait(session: Any, threads: Threads, gate: Any) -> None:
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    held = session.spawn_probe().run.call_one(gate.pass_through, "answer")
    gate.wait_entered()

    def interrupt_and_open() -> None:
        interrupt_main()
        gate.open()

    threads.start(interrupt_and_open)
    assert held.get() == "answer"
    assert came == [signal.SIGINT]
    threads.join()


# -- the end -----------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("on_main", ["wait", "close"])
def test_close_while_a_thread_waits(
    session: Any, threads: Threads, gate: Any, way: Callable[..., Any], on_main: str
) -> None:
    held = session.spawn_probe().run.call_one(gate.pass_through)
    gate.wait_entered()

    def wait() -> None:
        with pytest.raises(SupervisionError, match="shut down while the call was pending"):
            way(held)

    waits, closes = wait, session.controller.close
    if on_main == "wait":
        waits, closes = closes, waits
    threads.start(waits)
    closes()
    threads.join()
    gate.open()


def test_the_io_thread_may_close_its_node(session: Any, gate: Any) -> None:
    inline = inline_on_controller(session, session.controller.close)
    [node] = session.workers(1)
    held = session.spawn_probe(node).run.call_one(gate.pass_through)
    gate.wait_entered()
    session.spawn_probe(node).run.broadcast(lambda: inline.run.broadcast())
    with pytest.raises(SupervisionError, match="shut down while the call was pending"):
        held.get()
    session.controller.close()
    gate.open()


def test_no_value_is_kept_that_was_waited_for(session: Any) -> None:
    """It may be gigabytes, or lie in memory that another process waits to use again."""
    [node] = session.workers(1)
    there = session.spawn_probe(node).run.call_one(frozenset, "abc").get(PATIENCE)
    held = weakref.ref(there)
    del there
    gc.collect()
    assert held() is None
