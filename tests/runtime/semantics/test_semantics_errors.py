"""Semantics: errors of endpoints, which the caller gets, and what cannot be sent."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from meshbook import Actor, ActorError, endpoint
from meshbook.runtime.errors import PickleError
from tests.support import PATIENCE


class OwnError(Exception):
    """Of the user's, with an attribute."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Unreadable:
    """Can be sent, and not be read where it arrives."""

    def __reduce__(self) -> Any:
        return refuse, ()


def refuse() -> None:
    raise OSError("the file is not here")


class Counter(Actor):
    def __init__(self) -> None:
        self.count = 0

    @endpoint
    def add(self) -> int:
        self.count += 1
        return self.count

    @endpoint
    def fail(self, error: Exception) -> None:
        self.count += 1
        raise error

    @endpoint
    def fail_with_causes(self) -> None:
        try:
            try:
                {}["missing"]
            except KeyError as error:
                raise ValueError("the config is wrong") from error
        except ValueError:
            raise RuntimeError("no model was made")

    @endpoint
    def take(self, value: Any) -> None: ...

    @endpoint
    def give(self) -> Any:
        return threading.Lock()


class AsyncCounter(Actor):
    def __init__(self) -> None:
        self.count = 0

    @endpoint
    async def add(self) -> int:
        self.count += 1
        return self.count

    @endpoint
    async def fail(self, error: Exception) -> None:
        self.count += 1
        await asyncio.sleep(0)
        raise error


# -- 8 ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Counter, AsyncCounter])
@pytest.mark.parametrize("error", [ValueError("no"), OwnError(7), TimeoutError()])
def test_08_an_exception_goes_to_the_caller_and_the_actor_continues(
    world: Any, kind: type[Actor], error: Exception
) -> None:
    """The caller gets an ActorError with the original and its traceback; the actor keeps its state."""
    actor: Any = world.spawn(kind, gpus=1, name="counter")
    with pytest.raises(ActorError) as caught:
        actor.fail.call_one(error).get(PATIENCE)
    original = caught.value.exception
    assert (type(original), original.args, vars(original)) == (type(error), error.args, vars(error))
    assert "in fail" in str(caught.value)
    assert "counter.fail() on rank {'gpus': 0/1}" in str(caught.value)
    assert actor.add.call_one().get(PATIENCE) == 2


@pytest.mark.parametrize("kind", [Counter, AsyncCounter])
def test_08_what_python_gives_a_meaning_of_its_own_is_an_error_as_well(world: Any, kind: type[Actor]) -> None:
    """StopIteration would end whatever iterates, or hang an event loop; as an ActorError it does neither."""
    actor: Any = world.spawn(kind, gpus=1)

    async def wait() -> None:
        await actor.fail.call_one(StopIteration("end"))

    with pytest.raises(ActorError, match="StopIteration"):
        asyncio.run(wait())
    assert actor.add.call_one().get(PATIENCE) == 2


def test_08_an_exception_is_no_fault(world: Any, faults: Any) -> None:
    """Only the caller gets it: the first fault is the one that follows."""
    actors, slow, last = world.spawn(Counter), world.spawn(AsyncCounter), world.spawn(Counter, gpus=1, name="last")
    for each in (actors, slow):
        assert isinstance(each.fail.call(ValueError("no")).exception(PATIENCE), ActorError)
        assert list(each.add.call().get(PATIENCE).values()) == [2, 2]
    last.fail.broadcast(ValueError("no"))
    assert faults.get(timeout=PATIENCE).mesh_name == "last"


def test_08_an_error_of_one_rank_ends_no_other_call(world: Any) -> None:
    """Calls of the mesh that are under way, and those that follow, are not touched by it."""
    actors = world.spawn(Counter)
    failing = actors.slice(gpus=1).fail.call_one(ValueError("no"))
    both = actors.add.call()
    assert isinstance(failing.exception(PATIENCE), ActorError)
    assert list(both.get(PATIENCE).values()) == [1, 2]


# -- 12 --------------------------------------------------------------------------------


def test_12_chained_causes_survive_in_the_text(world: Any) -> None:
    """The error shows all of the remote traceback: `from`, and what was being handled."""
    error = world.spawn(Counter, gpus=1).fail_with_causes.call_one().exception(PATIENCE)
    said = [
        "KeyError: 'missing'",
        "The above exception was the direct cause of the following exception",
        "ValueError: the config is wrong",
        "During handling of the above exception, another exception occurred",
        "RuntimeError: no model was made",
    ]
    places = [str(error).rfind(each) for each in said]
    assert -1 not in places
    assert places == sorted(places)


def test_12_an_argument_that_cannot_be_pickled_raises_where_it_is_sent(world: Any) -> None:
    """At the line of the call, and nothing is sent: not to the other ranks either."""
    actors = world.spawn(Counter)
    with pytest.raises(PickleError, match=r"argument of counter.take cannot be pickled: argument 0 \(lock\)"):
        actors.take.call(threading.Lock())
    assert list(actors.add.call().get(PATIENCE).values()) == [1, 1]


def test_12_an_argument_that_cannot_be_unpickled_is_an_error_of_the_call(world: Any) -> None:
    """The actor that cannot read it says so, and lives on."""
    actors = world.spawn(Counter)
    with pytest.raises(
        ActorError, match=r"argument of counter.take cannot be unpickled: OSError: the file is not here"
    ):
        actors.take.call(Unreadable()).get(PATIENCE)
    assert list(actors.add.call().get(PATIENCE).values()) == [1, 1]


def test_12_a_result_that_cannot_be_pickled_is_an_error_of_the_call(world: Any) -> None:
    """The caller hears of it, and the actor lives on."""
    actors = world.spawn(Counter)
    with pytest.raises(ActorError, match=r"result of counter.give cannot be pickled"):
        actors.give.call().get(PATIENCE)
    assert list(actors.add.call().get(PATIENCE).values()) == [1, 1]
