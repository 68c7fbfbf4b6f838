"""The message that an actor is at: what it waits for, where it is, how it is broken off. Without an actor or a node.

How a thread is broken off in the midst of the user's code is tested where there are actors (semantics, beyond 6).
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import DeadlockError
from meshbook.runtime.node.execution import Execution
from tests.support import PATIENCE

KEY, OTHER = ("asker", 1), ("asker", 2)


class Question:
    """What a future is the answer of; `targets` still owe theirs."""

    def __init__(self, *targets: str) -> None:
        self.targets = targets
        self.is_cancelled = False

    helper: Any = None

    def describe(self, index: int | None) -> str:
        return ""

    def cancel(self, index: int | None) -> bool:
        self.is_cancelled = True
        return True

    def owing(self, index: int | None) -> list[Any]:
        return [(target, "run", 7) for target in self.targets]


def asked(*targets: str) -> tuple[Future[Any], Question]:
    future: Future[Any] = Future.pending()
    question = Question(*targets)
    future.set_pending_call(question, None)
    return future, question


class Actor:
    """An actor named `me`, at nothing; notes what its Execution asks of others."""

    def __init__(self) -> None:
        self.due: list[Callable[[], object]] = []
        self.watched = 0
        self.running = Execution(
            lambda target: target == "me",
            describe=lambda: "<me>",
            call_later=lambda seconds, callback: self.due.append(callback),
            watch=self._watch,
        )

    def _watch(self) -> None:
        self.watched += 1


@pytest.fixture
def actor() -> Actor:
    return Actor()


@pytest.fixture
def running(actor: Actor) -> Execution:
    return actor.running


# -- what it is at -------------------------------------------------------------------------


def test_one_that_is_idle_is_at_nothing(running: Execution) -> None:
    assert running.waiting() is None
    assert running.where() == ""
    assert not running.is_at(KEY)
    assert not running.cancel(KEY)
    assert not running.is_broken


def test_it_is_at_a_message_from_its_beginning_to_its_end(running: Execution) -> None:
    running.enter(KEY, "step")
    assert running.is_at(KEY)
    assert not running.is_at(OTHER)
    assert running.endpoint == "step"
    for _ in range(2):
        running.leave()
        assert not running.is_at(KEY)
    running.enter(OTHER, "other")
    assert running.is_at(OTHER)


def of_the_user(running: Execution) -> str:
    return running.where()


def test_where_it_is_names_the_endpoint_and_the_innermost_line_of_the_users(running: Execution) -> None:
    running.enter(KEY, "step")
    line = of_the_user.__code__.co_firstlineno + 1
    assert of_the_user(running) == f"step(), in of_the_user() at {__file__}:{line}"
    running.enter(KEY, "of_the_user")
    assert of_the_user(running) == f"of_the_user(), at {__file__}:{line}"


def test_where_a_task_is(running: Execution) -> None:
    async def inner(event: asyncio.Event) -> None:
        await event.wait()

    async def step(event: asyncio.Event) -> None:
        running.enter(KEY, "step", task=asyncio.current_task())
        await inner(event)

    async def look() -> str:
        event = asyncio.Event()
        task = asyncio.create_task(step(event))
        await asyncio.sleep(0)
        where = running.where()
        event.set()
        await task
        return where

    line = inner.__code__.co_firstlineno + 1  # and not within asyncio, or where `inner` is called
    assert asyncio.run(look()) == f"step(), in inner() at {__file__}:{line}"


def test_where_a_task_is_that_does_not_await(running: Execution) -> None:
    async def inner() -> str:
        return running.where()

    async def step() -> str:
        running.enter(KEY, "step", task=asyncio.current_task())
        return await inner()

    line = inner.__code__.co_firstlineno + 1
    assert asyncio.run(step()) == f"step(), in inner() at {__file__}:{line}"


# -- what it waits for ---------------------------------------------------------------------


def test_a_wait_lasts_from_its_beginning_to_its_end(actor: Actor, running: Execution) -> None:
    running.enter(KEY, "step")
    first, _ = asked("other")
    assert running.begin_wait(first, blocking=True, bounded=False)
    found = running.waiting()
    assert found is not None
    assert found[1] is first
    running.end_wait()
    assert running.waiting() is None
    second, _ = asked("other")
    running.begin_wait(second, blocking=True, bounded=False)
    again = running.waiting()
    assert again is not None
    assert again[0] > found[0], "each wait has a number of its own"
    assert actor.watched == 2


def test_a_wait_for_what_is_here_is_none(running: Execution) -> None:
    running.enter(KEY, "step")
    future, _ = asked("other")
    running.begin_wait(future, blocking=True, bounded=False)
    future.resolve(lambda: 1)
    assert running.waiting() is None


def test_a_wait_with_a_limit_is_nobodys_business(actor: Actor, running: Execution) -> None:
    running.enter(KEY, "step")
    future, _ = asked("other")
    assert running.begin_wait(future, blocking=True, bounded=True)
    assert running.waiting() is None
    assert actor.watched == 0


@pytest.mark.parametrize("blocking", [True, False])
def test_an_idle_actor_keeps_no_caller_waiting(running: Execution, blocking: bool) -> None:
    future, _ = asked("other")
    assert not running.begin_wait(future, blocking=blocking, bounded=False)
    assert running.waiting() is None


def test_a_thread_that_the_endpoint_started_waits_on_its_own(running: Execution) -> None:
    running.enter(KEY, "step")
    found: list[bool] = []
    thread = threading.Thread(
        target=lambda: found.append(running.begin_wait(asked("other")[0], blocking=True, bounded=False))
    )
    thread.start()
    thread.join(PATIENCE)
    assert found == [False]
    assert running.waiting() is None


def test_a_task_that_the_endpoint_started_waits_on_its_own(running: Execution) -> None:
    """By `await`; if it blocks, it blocks the loop, and the endpoint with it."""
    future, _ = asked("other")

    async def aside() -> list[bool]:
        ways = []
        for blocking in (False, True):
            ways.append(running.begin_wait(future, blocking=blocking, bounded=False))
            if ways[-1]:
                running.end_wait()
        return ways

    async def step() -> list[bool]:
        running.enter(KEY, "step", task=asyncio.current_task())
        assert running.begin_wait(future, blocking=False, bounded=False)
        running.end_wait()
        return await asyncio.create_task(aside())

    assert asyncio.run(step()) == [False, True]


# -- a wait for itself ---------------------------------------------------------------------


@pytest.mark.parametrize("targets", [["me"], ["other", "me"]])
def test_a_wait_for_itself_is_an_error_at_once(actor: Actor, running: Execution, targets: list[str]) -> None:
    running.enter(KEY, "step")
    future, _ = asked(*targets)
    with pytest.raises(DeadlockError, match="<me> waits for its own answer"):
        running.begin_wait(future, blocking=True, bounded=False)
    assert running.waiting() is None
    assert actor.watched == 0
    assert running.begin_wait(future, blocking=True, bounded=True), "with a limit that is its own business"


# -- breaking off --------------------------------------------------------------------------


def test_only_the_present_message_is_broken_off(running: Execution) -> None:
    running.enter(KEY, "step")
    assert not running.cancel(OTHER)
    assert not running.is_broken


def test_what_it_waits_for_is_cancelled_and_the_wait_ends_by_that(running: Execution) -> None:
    running.enter(KEY, "step")
    future, question = asked("other")
    running.begin_wait(future, blocking=True, bounded=False)
    assert running.cancel(KEY)
    assert question.is_cancelled
    with pytest.raises(asyncio.CancelledError):
        running.end_wait()
    running.leave()
    assert running.is_broken
    running.enter(OTHER, "step")
    assert not running.is_broken, "the next message is not touched"


def test_a_cancelled_endpoint_begins_no_wait(running: Execution) -> None:
    running.enter(KEY, "step")
    running.cancel(KEY)
    future, question = asked("other")
    with pytest.raises(asyncio.CancelledError):
        running.begin_wait(future, blocking=True, bounded=False)
    assert question.is_cancelled  # no other message needs its answer either


def test_a_thread_inside_the_runtime_is_tried_again_as_long_as_it_is_at_the_message(
    actor: Actor, running: Execution
) -> None:
    """The test's own thread is inside, as long as it calls these."""
    running.enter(KEY, "step")
    running.cancel(KEY)
    [again] = actor.due
    again()
    assert len(actor.due) == 2
    running.leave()
    running.enter(OTHER, "step")
    actor.due[-1]()
    assert len(actor.due) == 2
    assert not running.is_broken


def test_a_task_is_cancelled_before_what_it_waits_for(running: Execution) -> None:
    future, question = asked("other")
    order: list[str] = []
    cancel = question.cancel

    def note(index: int | None) -> bool:
        order.append("its question")
        return cancel(index)

    question.cancel = note  # type: ignore[method-assign]

    async def step() -> None:
        running.enter(KEY, "step", task=asyncio.current_task())
        running.begin_wait(future, blocking=False, bounded=False)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            order.append("the task")
            raise
        finally:
            running.end_wait()
            running.leave()

    async def cancel_it() -> None:
        task = asyncio.create_task(step())
        await asyncio.sleep(0)
        assert running.cancel(KEY)
        assert task.cancelling() == 1
        assert running.cancel(KEY)
        assert task.cancelling() == 1, "once is enough"
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(cancel_it())
    assert order == ["its question", "its question", "the task"]
    assert running.is_broken


CANCELLED_THEN_TRACED = """
import sys
from meshbook.runtime.node.execution import Execution

running = Execution(lambda target: False, describe=str, call_later=lambda *_: None, watch=lambda: None)
running.enter(("asker", 1), "run")
running.cancel(("asker", 1))
running.leave()
sys.settrace(lambda *event: None)
(lambda: None)()
"""


@pytest.mark.process
def test_code_can_be_traced_after_a_cancelled_endpoint() -> None:
    """A flag that stayed set in the interpreter made traced code loop forever on Python 3.11."""
    subprocess.run([sys.executable, "-c", CANCELLED_THEN_TRACED], timeout=PATIENCE, check=True)
