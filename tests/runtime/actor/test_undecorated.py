"""`as_endpoint`: methods that are not endpoints, called as if they were, and only on request."""

from __future__ import annotations

import inspect
import pickle
import sys
from typing import Any

import cloudpickle
import pytest

from meshbook import (
    Accumulator,
    Actor,
    ActorError,
    Channel,
    Port,
    SupervisionError,
    as_endpoint,
    concurrent_endpoint,
    current_rank,
    endpoint,
    send,
)
from meshbook.runtime.actor.endpoint import Endpoint, Options
from meshbook.runtime.actor.explicit_calls import PlainMethod, find_undecorated
from tests.support import PATIENCE


class Base(Actor):
    def inherited(self) -> str:
        return "inherited"


class Counter(Base):
    """Counts on a thread of its own."""

    limit = 3

    def __init__(self) -> None:
        self.count = 0

    @endpoint
    def counted(self) -> int:
        return self.count

    def add(self, amount: int = 1, *, times: int = 1) -> int:
        """Add so much."""
        self.count += amount * times
        return self.count + current_rank().rank

    def fail(self) -> None:
        raise ValueError("no")

    def answer(self, port: Port[int], value: int) -> None:
        port.send(value + self.count)

    def fail_to_answer(self, port: Port[int]) -> None:
        raise ValueError("unanswered")

    async def sleepy(self) -> None: ...

    def _hidden(self) -> None: ...

    def __dunder__(self) -> None: ...

    @staticmethod
    def static() -> int:
        return 1

    @classmethod
    def of_class(cls) -> int:
        return 1

    class Nested:
        pass

    @property
    def twice(self) -> int:
        return self.count * 2


class AsyncCounter(Actor):
    def __init__(self) -> None:
        self.count = 0

    @concurrent_endpoint
    async def counted(self) -> int:
        return self.count

    async def add(self, amount: int = 1) -> int:
        self.count += amount
        return self.count

    async def answer(self, port: Port[int], value: int) -> None:
        port.send(value)

    def plain(self) -> None: ...


class PlainActor(Actor):
    """Without any endpoint."""

    def hello(self) -> str:
        return "hello"


@pytest.fixture
def counters(session: Any) -> Any:
    return session.spawn(Counter, on=session.workers(2))


# -- what a plain method of a mesh is --------------------------------------------------


@pytest.mark.parametrize("name", ["add", "inherited", "static", "of_class", "Nested"])
@pytest.mark.parametrize("use", ["call", "call_one", "choose", "stream", "broadcast", "rref", "anything", "()"])
def test_a_plain_method_is_not_used_as_it_is(counters: Any, name: str, use: str) -> None:
    method = getattr(counters, name)
    with pytest.raises(RuntimeError, match=rf"Counter\.{name} is a plain method.*@endpoint.*as_endpoint\("):
        method() if use == "()" else getattr(method, use)


@pytest.mark.parametrize("name", ["missing", "_hidden", "__dunder__", "limit", "twice"])
def test_what_is_no_method_is_no_attribute(counters: Any, name: str) -> None:
    with pytest.raises(AttributeError):
        getattr(counters, name)


def test_displays_and_pickle_may_look_at_it(counters: Any) -> None:
    assert not hasattr(counters.add, "_repr_html_")
    assert repr(counters.add) == "<PlainMethod Counter.add>"
    assert isinstance(pickle.loads(pickle.dumps(counters.add)), PlainMethod)


# -- called as an endpoint --------------------------------------------------------------


def test_it_is_called_by_every_verb(counters: Any) -> None:
    add = as_endpoint(counters.add)
    assert list(add.call().get(PATIENCE).values()) == [1, 2]
    assert as_endpoint(counters.slice(gpus=1).add).call_one(2, times=2).get(PATIENCE) == 5
    assert add.choose(0).get(PATIENCE) in (1, 6)
    assert sorted(future.get(PATIENCE) for future in add.stream(0)) == [1, 6]
    assert Accumulator(add, 0, lambda total, value: total + value).accumulate(0).get(PATIENCE) == 7
    add.broadcast()
    assert list(counters.counted.call().get(PATIENCE).values()) == [2, 6]
    port, receiver = Channel[int].open_ranked()
    send(add, (0,), {}, port)
    assert sorted(receiver.recv().get(PATIENCE) for _ in range(2)) == [(0, 2), (1, 7)]


def test_inherited_methods_and_classes_without_endpoints(session: Any, counters: Any) -> None:
    assert as_endpoint(counters.slice(gpus=0).inherited).call_one().get(PATIENCE) == "inherited"
    assert as_endpoint(session.spawn(PlainActor).hello).call_one().get(PATIENCE) == "hello"


def test_of_an_actor_with_a_loop(session: Any) -> None:
    counter = session.spawn(AsyncCounter)
    assert as_endpoint(counter.add).call_one(2).get(PATIENCE) == 2
    answer = as_endpoint(counter.answer, explicit_response_port=True)
    assert answer.call_one(3).get(PATIENCE) == 3


def test_it_may_answer_by_a_port(counters: Any) -> None:
    answer = as_endpoint(counters.answer, explicit_response_port=True)
    assert list(answer.call(3).get(PATIENCE).values()) == [3, 3]
    failing = as_endpoint(counters.slice(gpus=0).fail_to_answer, explicit_response_port=True)
    with pytest.raises(SupervisionError, match="ValueError: unanswered"):
        failing.call_one().get(PATIENCE)


def test_its_exception_is_the_callers(counters: Any) -> None:
    with pytest.raises(ActorError, match=r"Counter-\d+\.fail\(\) on rank.*ValueError: no"):
        as_endpoint(counters.fail).call().get(PATIENCE)
    assert list(counters.counted.call().get(PATIENCE).values()) == [0, 0]


def test_arguments_are_checked_at_the_callers_line(counters: Any) -> None:
    with pytest.raises(TypeError, match=r"^add\(amount"):
        as_endpoint(counters.add).call(1, 2)
    with pytest.raises(TypeError, match=r"^answer\(value"):
        as_endpoint(counters.answer, explicit_response_port=True).call()


def test_it_travels(counters: Any) -> None:
    add = pickle.loads(pickle.dumps(as_endpoint(counters.add)))
    assert list(add.call().get(PATIENCE).values()) == [1, 2]
    assert repr(add).startswith("<Endpoint Counter.add(amount")


def test_a_class_that_travels_by_value(session: Any) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        counter = session.spawn(Counter)
        counter.initialized.get(PATIENCE)
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    assert as_endpoint(counter.add).call_one(4).get(PATIENCE) == 4


# -- what is not ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong", [None, len, Counter.add, Counter().add, "add"], ids=["None", "builtin", "function", "method", "text"]
)
def test_other_things_are_no_methods_of_a_spawned_actor(wrong: Any) -> None:
    with pytest.raises(ValueError, match="expected a method of a spawned actor, not"):
        as_endpoint(wrong)


def test_an_endpoint_is_one_already(counters: Any) -> None:
    with pytest.raises(ValueError, match=r"expected a method of a spawned actor.*already an endpoint"):
        as_endpoint(counters.counted)


@pytest.mark.parametrize(
    ("cls", "name", "said"),
    [
        (Counter, "_hidden", "begins with an underscore"),
        (Counter, "__init__", "begins with an underscore"),
        (Counter, "__dunder__", "begins with an underscore"),
        (Counter, "static", "not a plain method, but <staticmethod"),
        (Counter, "of_class", "not a plain method, but <classmethod"),
        (Counter, "Nested", "not a plain method, but <class"),
        (Counter, "counted", "not a plain method, but <.*EndpointMethod"),
        (Counter, "missing", "not a plain method, but None"),
        (Counter, "twice", "not a plain method, but <property"),
        (Counter, "sleepy", "is async, but .* run on a thread"),
        (AsyncCounter, "plain", "is not async, but .* run on an event loop"),
    ],
)
def test_what_may_not_be_called(cls: type, name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        find_undecorated(cls, name)


def test_the_colour_is_checked_where_it_is_asked_for(session: Any, counters: Any) -> None:
    with pytest.raises(ValueError, match=r"Counter\.sleepy is async"):
        as_endpoint(counters.sleepy)
    with pytest.raises(ValueError, match=r"AsyncCounter\.plain is not async"):
        as_endpoint(session.spawn(AsyncCounter).plain)


def forged(mesh: Any, name: str) -> Endpoint[..., Any]:
    """A handle that was not checked here, as an older or a malicious caller may have one."""
    return Endpoint(mesh, as_method(lambda self: None, name))


def as_method(function: Any, name: str) -> Any:
    method = endpoint(function)
    method.name = name
    return method


@pytest.mark.parametrize("name", ["add", "_hidden", "__init__"])
def test_plain_methods_are_not_reachable_without_as_endpoint(counters: Any, name: str) -> None:
    with pytest.raises(ActorError, match=f"has no endpoint '{name}'; it has: counted"):
        forged(counters, name).call().get(PATIENCE)


@pytest.mark.parametrize("has_port", [False, True])
@pytest.mark.parametrize("name", ["_hidden", "__init__", "sleepy", "static", "counted"])
def test_the_actor_itself_refuses_too(counters: Any, name: str, has_port: bool) -> None:
    with pytest.raises(ActorError, match="ValueError"):
        forged(counters._undecorated(has_port=has_port), name).call().get(PATIENCE)
    assert list(counters.counted.call().get(PATIENCE).values()) == [0, 0]


def test_calling_it_does_not_make_it_an_endpoint(counters: Any) -> None:
    as_endpoint(counters.add).call().get(PATIENCE)
    with pytest.raises(ActorError, match="has no endpoint 'add'"):
        forged(counters, "add").call().get(PATIENCE)


def test_options(counters: Any) -> None:
    with pytest.raises(NotImplementedError, match="mocked"):
        as_endpoint(counters.add, propagate="mocked")
    assert as_endpoint(counters.add, propagate="inspect")._method.options == Options(propagate="inspect")
    assert list(inspect.signature(as_endpoint).parameters) == ["method", "propagate", "explicit_response_port"]
