"""Futures: waited for by threads and by event loops, as often as one likes, with the same outcome each time."""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from meshbook.runtime import threads as runtime_threads
from meshbook.runtime.actor.future import Future
from tests.support import PATIENCE


def answered(value: Any = 1) -> Future[Any]:
    return Future.completed(value)


def failing() -> Future[Any]:
    return Future.failed(ValueError("no"))


def get(future: Future[Any]) -> Any:
    return future.get(PATIENCE)


def await_(future: Future[Any]) -> Any:
    async def main() -> Any:
        return await asyncio.wait_for(wrap(future), PATIENCE)

    return asyncio.run(main())


async def wrap(future: Future[Any]) -> Any:
    return await future


def as_asyncio(future: Future[Any]) -> Any:
    async def main() -> Any:
        return await future.as_asyncio()

    return asyncio.run(main())


WAYS: list[Callable[[Future[Any]], Any]] = [get, await_, as_asyncio, lambda future: future.result(PATIENCE)]


@pytest.mark.parametrize("second", WAYS)
@pytest.mark.parametrize("first", WAYS)
def test_any_two_ways_give_the_same(first: Callable[..., Any], second: Callable[..., Any]) -> None:
    future = answered([1])
    assert first(future) is second(future)


@pytest.mark.parametrize("second", WAYS)
@pytest.mark.parametrize("first", WAYS)
def test_any_two_ways_raise_the_same_object(first: Callable[..., Any], second: Callable[..., Any]) -> None:
    future = failing()
    with pytest.raises(ValueError, match="no") as one:
        first(future)
    with pytest.raises(ValueError, match="no") as two:
        second(future)
    assert one.value is two.value


@pytest.mark.parametrize("way", WAYS)
def test_each_way_waits(way: Callable[..., Any]) -> None:
    future: Future[int] = Future.pending()
    timer = threading.Timer(0.02, lambda: future.resolve(lambda: 5))
    timer.start()
    assert way(future) == 5
    timer.join()


def test_it_cannot_be_constructed() -> None:
    with pytest.raises(TypeError, match="cannot be constructed"):
        Future()


def test_a_timeout_names_the_seconds_and_spoils_nothing() -> None:
    future: Future[int] = Future.pending()
    for _ in range(2):
        with pytest.raises(TimeoutError) as raised:
            future.get(timeout=0)
        assert str(raised.value) == "the future did not answer within 0 s"
    with pytest.raises(TimeoutError):
        future.exception(timeout=0)
    assert not future.done()
    future.resolve(lambda: 1)
    assert future.get(timeout=0) == 1


@pytest.mark.parametrize("timeout", [-1, -0.001, math.inf, math.nan])
def test_timeouts_that_are_no_time(timeout: float) -> None:
    with pytest.raises(ValueError, match="finite number of seconds"):
        Future.pending().get(timeout=timeout)
    assert answered(3).get(timeout=timeout) == 3


def test_exception() -> None:
    assert answered().exception() is None
    future = failing()
    assert future.exception() is future.exception()
    assert isinstance(future.exception(), ValueError)


def test_the_value_is_decoded_once_on_the_asking_thread() -> None:
    decoded = []
    future: Future[int] = Future.pending()
    future.resolve(lambda: decoded.append(threading.get_ident()) or 7)  # type: ignore[func-returns-value]
    assert decoded == []
    assert [future.get(), future.get()] == [7, 7]
    assert decoded == [threading.get_ident()]


def test_what_decoding_raises_is_the_outcome() -> None:
    future: Future[int] = Future.pending()
    future.resolve(lambda: 1 // 0)
    first = future.exception()
    assert isinstance(first, ZeroDivisionError)
    assert future.exception() is first


def test_only_the_first_answer_counts() -> None:
    future: Future[int] = Future.pending()
    future.resolve(lambda: 1)
    future.fail(ValueError())
    future.resolve(lambda: 2)
    assert future.get() == 1


def test_callbacks_run_once_each() -> None:
    future: Future[int] = Future.pending()
    calls: list[str] = []
    future.when_done(lambda: calls.append("before"))
    future.when_done(lambda: calls.append("before too"))
    assert calls == []
    future.resolve(lambda: 1)
    future.when_done(lambda: calls.append("after"))
    assert calls == ["before", "before too", "after"]


def test_a_callback_gets_the_future() -> None:
    called: list[Future[int]] = []
    pending: Future[int] = Future.pending()
    pending.add_callback(called.append)
    assert not called
    pending.resolve(lambda: 3)
    pending.add_callback(called.append)
    assert [each.get() for each in called] == [3, 3]


def test_then() -> None:
    assert answered(2).then(lambda value: value + 1).get() == 3
    assert isinstance(failing().then(lambda value: value + 1).exception(), ValueError)
    assert isinstance(answered(0).then(lambda value: 1 // value).exception(), ZeroDivisionError)
    pending: Future[int] = Future.pending()
    twin = pending.then(str)
    assert not twin.done()
    pending.resolve(lambda: 4)
    assert twin.get() == "4"


def test_a_cancelled_awaiter_cancels_no_other() -> None:
    future: Future[int] = Future.pending()

    async def main() -> int:
        leaving, staying = (asyncio.ensure_future(wrap(future)) for _ in range(2))
        await asyncio.sleep(0)
        leaving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await leaving
        assert leaving.cancelled()
        future.resolve(lambda: 9)
        return await staying

    assert asyncio.run(main()) == 9
    assert future.get() == 9


def test_several_loops_and_threads_wait_for_one_future() -> None:
    future: Future[int] = Future.pending()
    waiting = threading.Barrier(5)
    values: list[int] = []

    async def wait_on_loop() -> None:
        twin = future.as_asyncio()
        waiting.wait(PATIENCE)
        values.append(await twin)

    def wait_on_thread() -> None:
        waiting.wait(PATIENCE)
        values.append(future.get(PATIENCE))

    targets = [lambda: asyncio.run(wait_on_loop())] * 2 + [wait_on_thread] * 2
    threads = [threading.Thread(target=target) for target in targets]
    for thread in threads:
        thread.start()
    waiting.wait(PATIENCE)
    future.resolve(lambda: 6)
    for thread in threads:
        thread.join(PATIENCE)
    assert values == [6] * 4


def test_a_loop_that_has_ended_is_no_trouble() -> None:
    future: Future[int] = Future.pending()

    async def give_up() -> None:
        future.as_asyncio()

    asyncio.run(give_up())
    future.resolve(lambda: 1)
    assert future.get() == 1


def test_as_asyncio_needs_a_loop() -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        answered().as_asyncio()


def test_stop_iteration_can_be_awaited() -> None:
    future: Future[int] = Future.pending()
    future.fail(StopIteration("end"))
    with pytest.raises((RuntimeError, StopIteration), match="end"):
        as_asyncio(future)


@pytest.mark.parametrize(("future", "warned"), [(Future.pending(), 1), (answered(), 0)], ids=["pending", "done"])
def test_get_inside_a_loop_warns_where_it_would_block(future: Future[Any], warned: int) -> None:
    async def main() -> None:
        with contextlib.suppress(TimeoutError):
            future.get(timeout=0)

    assert len(warnings_of(main())) == warned


def warnings_of(work: Coroutine[Any, Any, None]) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(work)
    return [each for each in caught if issubclass(each.category, UserWarning)]


def test_repr() -> None:
    assert [repr(each) for each in (Future.pending(), answered(), failing())] == [
        "<Future pending: get() or await waits for its value>",
        "<Future done: get() returns its value>",
        "<Future failed>",
    ]


def test_a_ctrl_c_that_came_just_before_the_wait_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does that another thread took: nothing wakes the wait of the main thread."""
    monkeypatch.setattr(runtime_threads, "SIGNAL_CHECK_SECONDS", 0.01)
    main = threading.get_ident()

    def take() -> None:
        while sys._current_frames()[main].f_code.co_qualname != "Latch.wait":
            pass
        signal.raise_signal(signal.SIGINT)

    taker = threading.Thread(target=take)
    taker.start()
    with pytest.raises(KeyboardInterrupt):
        Future.pending().get()
    taker.join()


@pytest.mark.parametrize("as_twin", [False, True])
def test_a_task_that_gives_up_leaves_nothing_in_the_future(as_twin: bool) -> None:
    """A program that looks at a pending future again and again."""
    future: Future[int] = Future.pending()

    async def look() -> None:
        for _ in range(20):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(future.as_asyncio() if as_twin else future, 0.0)
        await asyncio.sleep(0)
        assert not future._callbacks
        twin = future.as_asyncio()
        future.resolve(lambda: 1)
        assert await twin == 1

    asyncio.run(look())
