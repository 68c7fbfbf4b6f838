"""`@concurrent_endpoint`: calls of one actor that overlap, and how they end with it."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import cloudpickle
import pytest

from meshbook import Actor, ActorError, SupervisionError, concurrent_endpoint, current_rank, endpoint
from tests.support import PATIENCE


class Waiting(Actor):
    """Its endpoint `wait` lasts until `release` of the same name."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self._doors: dict[str, asyncio.Event] = {}

    def door(self, name: str) -> asyncio.Event:
        return self._doors.setdefault(name, asyncio.Event())

    @concurrent_endpoint
    async def wait(self, name: str, gate: Any = None) -> tuple[str, int]:
        self.started.append(name)
        try:
            await self.door(name).wait()
            return name, current_rank().rank
        finally:
            if gate is not None:
                await asyncio.sleep(0)
                gate.tell(f"tidied {name}")

    @concurrent_endpoint
    async def fail(self, error: BaseException) -> None:
        await asyncio.sleep(0)
        raise error

    @concurrent_endpoint
    async def exit(self) -> None:
        raise SystemExit(3)

    @endpoint
    async def release(self, name: str) -> None:
        self.door(name).set()

    @endpoint
    async def order(self) -> list[str]:
        await asyncio.sleep(0)  # the tasks of the messages before this one have begun
        return self.started


@pytest.fixture
def waiting(session: Any) -> Any:
    return session.spawn(Waiting)


def test_calls_overlap(waiting: Any) -> None:
    first, second = waiting.wait.call_one("first"), waiting.wait.call_one("second")
    waiting.release.call_one("second").get(PATIENCE)
    assert second.get(PATIENCE) == ("second", 0)
    assert not first.done()
    waiting.release.call_one("first").get(PATIENCE)
    assert first.get(PATIENCE) == ("first", 0)


def test_they_start_in_the_order_of_the_messages(waiting: Any) -> None:
    names = [str(number) for number in range(100)]
    calls = [waiting.wait.call_one(name) for name in names]
    assert waiting.order.call_one().get(PATIENCE) == names
    for name in reversed(names):
        waiting.release.broadcast(name)
    assert [call.get(PATIENCE)[0] for call in calls] == names


def test_each_knows_its_own_message(session: Any) -> None:
    waiting = session.spawn(Waiting, on=session.workers(2))
    calls = [waiting.wait.call("all"), waiting.slice(gpus=1).wait.call("one")]
    waiting.release.call("all").get(PATIENCE)
    waiting.release.call("one").get(PATIENCE)
    assert [rank for _, rank in calls[0].get(PATIENCE).values()] == [0, 1]
    assert [rank for _, rank in calls[1].get(PATIENCE).values()] == [0]


def test_an_exception_is_for_its_caller_alone(waiting: Any) -> None:
    call = waiting.wait.call_one("on")
    with pytest.raises(ActorError, match="ValueError: no"):
        waiting.fail.call_one(ValueError("no")).get(PATIENCE)
    waiting.release.broadcast("on")
    assert call.get(PATIENCE) == ("on", 0)


def test_a_stop_cancels_them_and_waits_for_what_they_tidy(waiting: Any, gate: Any) -> None:
    call = waiting.wait.call_one("never", gate)
    waiting.order.call_one().get(PATIENCE)
    waiting.stop().get(PATIENCE)
    assert gate.entered.get(block=False) == "tidied never"
    with pytest.raises(SupervisionError, match="stopped"):
        call.get(PATIENCE)


def test_one_that_has_not_begun_is_answered_too(waiting: Any) -> None:
    waiting.initialized.get(PATIENCE)
    call = waiting.wait.call_one("never")
    waiting.stop().get(PATIENCE)
    with pytest.raises(SupervisionError, match="stopped"):
        call.get(PATIENCE)


@pytest.mark.parametrize("end", ["exit", "broadcast"])
def test_one_that_ends_the_actor_ends_the_others(waiting: Any, gate: Any, end: str) -> None:
    call = waiting.wait.call_one("never", gate)
    waiting.order.call_one().get(PATIENCE)
    if end == "exit":
        with pytest.raises(SupervisionError, match="SystemExit"):
            waiting.exit.call_one().get(PATIENCE)
    else:
        waiting.fail.broadcast(ValueError("nobody takes it"))
    with pytest.raises(SupervisionError, match="all its descendants have failed"):
        call.get(PATIENCE)
    assert gate.wait_entered() == "tidied never"
    with pytest.raises(SupervisionError):
        waiting.order.call_one().get(PATIENCE)


def test_only_async_methods_overlap() -> None:
    with pytest.raises(ValueError, match="can only wrap async endpoints"):
        concurrent_endpoint(lambda self: None)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("decorators", [(endpoint, concurrent_endpoint), (concurrent_endpoint, endpoint)])
def test_decorators_are_not_stacked(decorators: Any) -> None:
    async def method(self: Any) -> None: ...

    outer, inner = decorators
    with pytest.raises(ValueError, match="apply only one endpoint decorator"):
        outer(inner(method))


def test_a_class_that_travels_by_value_stays_concurrent() -> None:
    methods = pickle.loads(cloudpickle.dumps([vars(Waiting)["wait"], vars(Waiting)["release"]]))
    assert [method.is_concurrent for method in methods] == [True, False]
