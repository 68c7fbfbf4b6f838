"""`returns_future`: when the body runs, where, in which context, and what ends it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import inspect
import queue
import signal
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from meshbook import Actor, ActorError, DeadlockError, Future, current_rank, endpoint, returns_future
from tests.support import PATIENCE

WORD: contextvars.ContextVar[str] = contextvars.ContextVar("word", default="unset")


class Body:
    """Counts its runs, and waits until the test lets it go on."""

    def __init__(self) -> None:
        self.runs = 0
        self.events: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._door: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @returns_future
    async def value(self, value: int, *, more: int = 0) -> int:
        self.runs += 1
        await asyncio.sleep(0)
        return value + more

    @returns_future
    async def fail(self, error: BaseException) -> int:
        self.runs += 1
        raise error

    @returns_future
    async def place(self) -> tuple[int, bool, str]:
        return threading.get_ident(), threading.current_thread().daemon, WORD.get()

    @returns_future
    async def wait(self) -> str:
        """Ends when `open` is called."""
        self.runs += 1
        self._loop, self._door = asyncio.get_running_loop(), asyncio.Event()
        self.events.put("began")
        try:
            await self._door.wait()
        except asyncio.CancelledError:
            self.events.put("cancelled")
            raise
        return "opened"

    @returns_future
    async def deaf(self) -> str:
        """Does not heed its cancellation."""
        self._loop, self._door = asyncio.get_running_loop(), asyncio.Event()
        self.events.put("began")
        try:
            await self._door.wait()
        except asyncio.CancelledError:
            self.events.put("cancelled")
            await self._door.wait()
        self.events.put("ended")
        return "too late"

    def open(self) -> None:
        assert self._loop is not None
        assert self._door is not None
        self._loop.call_soon_threadsafe(self._door.set)

    def event(self) -> str:
        return self.events.get(timeout=PATIENCE)


@pytest.fixture
def body() -> Body:
    return Body()


def in_a_thread(function: Callable[[], Any]) -> concurrent.futures.Future[Any]:
    answer: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def run() -> None:
        try:
            answer.set_result(function())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer


# -- when -------------------------------------------------------------------------------


def test_the_body_begins_when_it_is_observed_and_runs_once(body: Body) -> None:
    future = body.value(1, more=2)
    assert not future.done()
    assert repr(future).startswith("<Future pending: ")
    assert body.runs == 0
    assert [future.get(), future.result(), future.get(PATIENCE)] == [3, 3, 3]
    assert future.exception() is None
    assert body.runs == 1


async def awaited(future: Future[Any]) -> Any:
    return await future


async def twinned(future: Future[Any]) -> Any:
    return await future.as_asyncio()


def called_back(future: Future[Any]) -> Any:
    told: queue.SimpleQueue[None] = queue.SimpleQueue()
    future.when_done(lambda: told.put(None))
    told.get(timeout=PATIENCE)
    return future.get()


OBSERVERS: dict[str, Callable[[Future[Any]], Any]] = {
    "get": lambda future: future.get(),
    "get with a limit": lambda future: future.get(PATIENCE),
    "await": lambda future: asyncio.run(awaited(future)),
    "as_asyncio": lambda future: asyncio.run(twinned(future)),
    "when_done": called_back,
    "then": lambda future: future.then(lambda value: value).get(),
    "then, await": lambda future: asyncio.run(awaited(future.then(lambda value: value))),
}


@pytest.mark.parametrize("observe", OBSERVERS.values(), ids=OBSERVERS)
@pytest.mark.parametrize("again", OBSERVERS.values(), ids=OBSERVERS)
def test_all_observers_see_one_run(body: Body, observe: Any, again: Any) -> None:
    future = body.value(5)
    assert (observe(future), again(future)) == (5, 5)
    assert body.runs == 1


@pytest.mark.parametrize("observe", OBSERVERS.values(), ids=OBSERVERS)
def test_an_error_is_the_same_object_for_all(body: Body, observe: Any) -> None:
    error = KeyError("k")
    future = body.fail(error)
    for _ in range(2):
        with pytest.raises(KeyError) as raised:
            observe(future)
        assert raised.value is error
    assert future.exception() is error
    assert body.runs == 1


def test_exception_observes(body: Body) -> None:
    error = ValueError("v")
    assert body.fail(error).exception() is error
    assert body.value(1).exception(PATIENCE) is None


def test_errors_that_are_no_exceptions_reach_the_observer(body: Body) -> None:
    with pytest.raises(SystemExit):
        body.fail(SystemExit(3)).get()
    with pytest.raises(SystemExit):
        body.fail(SystemExit(3)).get(PATIENCE)


def test_an_unobserved_future_never_runs(body: Body) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        body.value(1)
        body.value(1).then(str)
    assert body.runs == 0


# -- where -------------------------------------------------------------------------------


def test_get_runs_it_in_the_calling_thread(body: Body) -> None:
    assert body.place().get()[0] == threading.get_ident()


def test_with_a_limit_get_runs_it_in_a_thread_of_its_own(body: Body) -> None:
    thread, is_daemon, _ = body.place().get(PATIENCE)
    assert thread != threading.get_ident()
    assert is_daemon


def test_get_leaves_the_threads_event_loop_alone(body: Body) -> None:
    def ask() -> Any:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            return body.value(1).get(), asyncio.get_event_loop() is loop
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    assert in_a_thread(ask).result(PATIENCE) == (1, True)


def test_await_runs_it_on_the_running_loop(body: Body) -> None:
    async def main() -> Any:
        future = body.wait()
        task = asyncio.create_task(awaited(future))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert body._loop is asyncio.get_running_loop()
        body.open()
        return await task

    assert asyncio.run(main()) == "opened"


def test_get_on_a_running_loop_warns_and_works(body: Body) -> None:
    async def main() -> Any:
        with pytest.warns(UserWarning, match="blocks the running event loop"):
            return body.place().get()

    assert asyncio.run(main())[0] != threading.get_ident()


def test_get_where_the_body_waits_for_that_very_loop(body: Body) -> None:
    async def main() -> Any:
        future = body.wait()
        task = asyncio.create_task(awaited(future))
        await asyncio.sleep(0)
        for timeout in (None, PATIENCE):
            with pytest.raises(RuntimeError, match=r"Body\.wait runs on the event loop"), pytest.warns(match="blocks"):
                future.get(timeout)
        await asyncio.sleep(0)
        body.open()
        return await task

    assert asyncio.run(main()) == "opened"


def test_other_loops_and_threads_wait_for_the_same_run(body: Body) -> None:
    future = body.wait()
    first = in_a_thread(lambda: asyncio.run(awaited(future)))
    assert body.event() == "began"
    others = [in_a_thread(lambda: future.get()), in_a_thread(lambda: asyncio.run(awaited(future)))]
    body.open()
    assert [each.result(PATIENCE) for each in (first, *others)] == ["opened"] * 3
    assert body.runs == 1


# -- in which context ------------------------------------------------------------------------


@pytest.mark.parametrize("observe", OBSERVERS.values(), ids=OBSERVERS)
def test_it_runs_in_a_copy_of_the_callers_context(body: Body, observe: Any) -> None:
    @returns_future
    async def write() -> str:
        seen = WORD.get()
        WORD.set("written")
        return seen

    token = WORD.set("caller")
    try:
        future = write()
        WORD.set("observer")
        assert observe(future) == "caller"
        assert WORD.get() == "observer"
    finally:
        WORD.reset(token)


class Member(Actor):
    @endpoint
    def rank(self) -> int:
        return current_rank().rank

    @endpoint
    def hold(self, gate: Any) -> None:
        held(gate).get()

    @endpoint
    def asks(self, members: Any, timeout: float | None) -> int:
        return total(members).get(timeout)


class AsyncMember(Actor):
    @endpoint
    async def rank(self) -> int:
        return current_rank().rank

    @endpoint
    async def asks(self, members: Any) -> int:
        return await total(members)


@returns_future
async def held(gate: Any) -> None:
    gate.tell("began")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        gate.tell("cancelled")
        raise


@returns_future
async def total(members: Any) -> int:
    return sum((await members.rank.call()).values()) + 100 * current_rank().rank


def test_a_body_calls_actors_in_the_context_of_its_caller(session: Any) -> None:
    members = session.spawn(Member, on=session.workers(3))
    assert [total(members).get(), total(members).get(PATIENCE), asyncio.run(awaited(total(members)))] == [3, 3, 3]
    for timeout in (None, PATIENCE):
        askers = session.spawn(Member, on=session.workers(2))
        assert list(askers.asks.call(members, timeout).get(PATIENCE).values()) == [3, 103]
    reply_handler = session.spawn(AsyncMember)
    assert reply_handler.asks.call_one(members).get(PATIENCE) == 3


@pytest.mark.parametrize("cls", [Member, AsyncMember])
def test_actors_that_wait_for_themselves_through_it_get_an_error(session: Any, cls: type[Actor]) -> None:
    mesh: Any = session.spawn(cls)
    arguments = (mesh, None) if cls is Member else (mesh,)
    with pytest.raises(ActorError, match="these actors wait for each other") as raised:
        mesh.asks.call_one(*arguments).get(PATIENCE)
    assert isinstance(raised.value.exception, DeadlockError)
    assert mesh.rank.call_one().get(PATIENCE) == 0


def test_cancelling_an_endpoint_cancels_the_body_that_it_waits_for(session: Any, gate: Any) -> None:
    member = session.spawn(Member)
    call = member.hold.call_one(gate)
    assert gate.wait_entered() == "began"
    assert call.cancel()
    assert gate.wait_entered() == "cancelled"
    assert member.rank.call_one().get(PATIENCE) == 0


# -- what ends it --------------------------------------------------------------------------------


def begun(body: Body, future: Future[Any]) -> Future[Any]:
    future.when_done(lambda: None)
    assert body.event() == "began"
    return future


def test_a_timeout_of_get_cancels_the_body(body: Body) -> None:
    future = begun(body, body.wait())
    with pytest.raises(TimeoutError):
        future.get(timeout=0)
    assert body.event() == "cancelled"
    with pytest.raises(TimeoutError, match=r"Body\.wait was cancelled: get\(timeout=0\) timed out"):
        future.get()
    assert body.runs == 1


def test_a_get_that_began_it_may_give_it_up_too(body: Body) -> None:
    future = body.wait()
    with pytest.raises(TimeoutError):
        future.get(timeout=0)
    with pytest.raises(TimeoutError, match="was cancelled"):
        future.get()
    assert body.runs <= 1  # its thread may not have come that far


def test_a_timeout_of_exception_is_raised_too(body: Body) -> None:
    future = begun(body, body.wait())
    with pytest.raises(TimeoutError):
        future.exception(timeout=0)
    assert body.event() == "cancelled"


def test_a_caller_without_time_left_does_not_wait_for_the_body(body: Body) -> None:
    future = begun(body, body.deaf())
    with pytest.raises(TimeoutError):
        future.get(timeout=0)
    assert body.event() == "cancelled"
    body.open()
    assert body.event() == "ended"
    assert isinstance(future.exception(), TimeoutError)


def test_a_timeout_elsewhere_cancels_it_on_its_loop(body: Body) -> None:
    future = body.wait()
    running = in_a_thread(lambda: asyncio.run(awaited(future)))
    assert body.event() == "began"
    with pytest.raises(TimeoutError):
        future.get(timeout=0)
    assert body.event() == "cancelled"
    with pytest.raises(TimeoutError, match="was cancelled"):
        running.result(PATIENCE)


def test_cancel_ends_it(body: Body) -> None:
    future = begun(body, body.wait())
    assert future.cancel()
    assert body.event() == "cancelled"
    with pytest.raises(concurrent.futures.CancelledError, match=r"Body\.wait was cancelled"):
        future.get()
    assert not future.cancel()


def test_cancel_before_it_began(body: Body) -> None:
    future = body.value(1)
    assert future.cancel()
    for _ in range(2):
        with pytest.raises(concurrent.futures.CancelledError):
            asyncio.run(awaited(future))
    assert body.runs == 0


def test_cancel_after_its_end(body: Body) -> None:
    future = body.value(1)
    future.get()
    assert not future.cancel()
    assert future.get() == 1


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf")])
def test_a_bad_timeout_begins_nothing(body: Body, timeout: float) -> None:
    future = body.value(1)
    with pytest.raises(ValueError, match="timeout"):
        future.get(timeout)
    assert body.runs == 0
    assert future.get() == 1


def test_a_cancelled_task_does_not_cancel_the_body(body: Body) -> None:
    async def main() -> Any:
        future = body.wait()
        task = asyncio.create_task(awaited(future))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        body.open()
        return await future

    assert asyncio.run(main()) == "opened"
    assert [body.event(), body.events.empty()] == ["began", True]


@pytest.mark.parametrize("has_begun", [False, True])
def test_the_end_of_its_loop_ends_it(body: Body, has_begun: bool) -> None:
    async def main() -> Future[str]:
        future = body.wait()
        future.when_done(lambda: None)
        if not has_begun:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
        return future

    future = asyncio.run(main())
    for _ in range(2):
        with pytest.raises(concurrent.futures.CancelledError, match=r"Body\.wait was cancelled"):
            future.get()
    assert body.runs == has_begun


def test_an_interrupt_cancels_it_and_is_raised(body: Body) -> None:
    @returns_future
    async def interrupt() -> None:
        signal.raise_signal(signal.SIGINT)
        await asyncio.Event().wait()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        future = interrupt()
        with pytest.raises(KeyboardInterrupt):
            future.get()
    finally:
        signal.signal(signal.SIGINT, before)
    with pytest.raises(concurrent.futures.CancelledError):
        future.get()


# -- the decorator --------------------------------------------------------------------------------


def test_arguments_are_checked_at_the_callers_line(body: Body) -> None:
    for call in (lambda: body.value(), lambda: body.value(1, 2), lambda: body.value(1, other=2)):  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            call()


def test_it_looks_like_the_function() -> None:
    assert Body.wait.__name__ == "wait"
    assert Body.wait.__doc__ == "Ends when `open` is called."
    assert not inspect.iscoroutinefunction(Body.wait)
    assert isinstance(Body().value(1), Future)


@pytest.mark.parametrize("wrong", [len, lambda: 3, int, None])
def test_it_goes_onto_async_functions(wrong: Any) -> None:
    with pytest.raises(TypeError, match="@returns_future decorates an `async def`"):
        returns_future(wrong)
