"""What is checked before any message is sent: classes, endpoints, and arguments at the caller's line."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest

from meshbook.runtime.actor.base import Actor, check_arguments, check_class, is_async
from meshbook.runtime.actor.endpoint import Endpoint, EndpointMethod, concurrent_endpoint, endpoint, endpoints_of


class Base(Actor):
    def __init__(self, size: int = 1, *, name: str = "") -> None:
        self.size = size

    @endpoint
    def step(self, x: int, y: int = 2) -> int:
        """Do a step."""
        return x + y

    @endpoint
    def any(self, *args: int, **kwargs: int) -> int:
        return self.step(1, y=5)  # type: ignore[return-value]


class Derived(Base):
    @endpoint
    def more(self, *, only: int) -> None: ...


class Async(Actor):
    @endpoint
    async def step(self) -> None: ...


class Mixed(Async):
    @endpoint
    def plain(self) -> None: ...


def double(shape: Any) -> Any:
    return shape * 2


class Optioned(Actor):
    @endpoint(propagate=double, instrument=False)
    def step(self) -> None: ...

    @endpoint(propagate="inspect", explicit_response_port=True)
    def answer(self, port: Any) -> None: ...


class Callee:
    """A mesh that notes what it was asked."""

    mesh_name = "trainers"

    def __init__(self, size: int = 1) -> None:
        self._size = size
        self.asked: list[Any] = []

    def __len__(self) -> int:
        return self._size

    def _call(self, *what: Any) -> Any:
        self.asked.append(("call", *what))

    def _call_one(self, *what: Any) -> Any:
        self.asked.append(("one", *what))
        return "future"

    def _call_each(self, *what: Any) -> Any:
        self.asked.append(("each", *what))
        return ["future"] * self._size

    def _broadcast(self, *what: Any) -> None:
        self.asked.append(("broadcast", *what))


def handle(name: str, callee: Callee | None = None, cls: type = Derived) -> Endpoint[..., Any]:
    return Endpoint(Callee() if callee is None else callee, endpoints_of(cls)[name])


def test_endpoints_are_found_with_inherited_ones() -> None:
    assert set(endpoints_of(Derived)) == {"step", "any", "more"}
    assert [is_async(cls) for cls in (Derived, Async)] == [False, True]


def test_inside_the_actor_an_endpoint_is_a_method() -> None:
    actor: Any = Derived()
    assert (actor.step(1), actor.any()) == (3, 6)
    assert isinstance(Derived.step, EndpointMethod)
    assert Derived.step.__doc__ == "Do a step."


@pytest.mark.parametrize("verb", ["call", "call_one", "call_each", "choose", "stream", "broadcast", "rref"])
@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    [
        ("step", (), {}),
        ("step", (1, 2, 3), {}),
        ("step", (1,), {"z": 1}),
        ("step", (1,), {"x": 1}),
        ("more", (1,), {}),
        ("more", (), {}),
    ],
)
def test_arguments_that_do_not_fit(verb: str, name: str, args: Any, kwargs: Any) -> None:
    callee = Callee()
    with pytest.raises(TypeError, match=rf"^{name}\("):
        getattr(handle(name, callee), verb)(*args, **kwargs)
    assert not callee.asked


@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    [
        ("step", (1,), {}),
        ("step", (1, 2), {}),
        ("step", (), {"x": 1, "y": 2}),
        ("step", (1,), {"y": 3}),
        ("any", (), {}),
        ("any", (1, 2, 3), {"a": 1}),
        ("more", (), {"only": 1}),
    ],
)
def test_arguments_that_fit(name: str, args: Any, kwargs: Any) -> None:
    callee = Callee()
    endpoint_handle = handle(name, callee)
    endpoint_handle.call(*args, **kwargs)
    endpoint_handle.call_one(*args, **kwargs)
    endpoint_handle.broadcast(*args, **kwargs)
    arguments = args, kwargs
    assert callee.asked == [
        ("call", name, arguments, None),
        ("one", name, arguments, None),
        ("broadcast", name, arguments),
    ]


@pytest.mark.parametrize(
    ("name", "sent", "limit"),
    [
        ("step", {}, 5),  # it has no such parameter
        ("any", {"timeout": 5}, None),  # it takes any
    ],
)
def test_a_time_limit_is_ours_unless_the_endpoint_has_one(name: str, sent: dict[str, Any], limit: float | None) -> None:
    callee = Callee()
    handle(name, callee).call(1, timeout=5)
    handle(name, callee).call_one(1, timeout=5)
    assert [(asked[2][1], asked[3]) for asked in callee.asked] == [(sent, limit)] * 2


def test_within_limits_the_calls_of_an_endpoint() -> None:
    callee = Callee()
    handle("any", callee).within(2.5).call(timeout="its own")
    assert callee.asked == [("call", "any", ((), {"timeout": "its own"}), 2.5)]


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
def test_a_time_limit_that_is_none(seconds: float) -> None:
    callee = Callee()
    for call in (lambda: handle("step", callee).call(1, timeout=seconds), lambda: handle("step").within(seconds)):
        with pytest.raises(ValueError, match="a timeout must be a finite number of seconds"):
            call()
    assert not callee.asked


@pytest.mark.parametrize("size", [0, 2, 8])
def test_call_one_wants_one(size: int) -> None:
    with pytest.raises(ValueError, match=rf"^trainers\.step: call_one requires exactly 1 actor, but mesh has {size};"):
        handle("step", Callee(size)).call_one(1)


def test_the_tensor_engine_wants_an_active_mesh() -> None:
    callee = Callee()
    with pytest.raises(RuntimeError, match=r"trainers\.step\.rref\(\).*no mesh is active.*'trainers' was spawned on"):
        handle("step", callee).rref(1)
    assert not callee.asked


def test_a_handle_is_not_called_like_a_function() -> None:
    with pytest.raises(TypeError, match=r"use trainers\.step\.call"):
        handle("step")(1)


def test_repr() -> None:
    assert repr(handle("step")).startswith("<Endpoint trainers.step(x: 'int', y: 'int' = 2)")


@pytest.mark.parametrize("wrong", [5, int, classmethod(lambda cls: None)], ids=["value", "class", "classmethod"])
def test_endpoint_goes_onto_methods(wrong: Any) -> None:
    with pytest.raises(TypeError, match="decorates a method"):
        endpoint(wrong)


def test_an_endpoint_survives_pickling() -> None:
    again = pickle.loads(pickle.dumps(Derived))
    assert endpoints_of(again).keys() == endpoints_of(Derived).keys()


@pytest.mark.parametrize("name", ["step", "answer"])
def test_options_are_kept_and_travel(name: str) -> None:
    method = endpoints_of(Optioned)[name]
    kept = {"step": (double, False, False), "answer": ("inspect", True, True)}[name]
    for each in (method, pickle.loads(cloudpickle.dumps(method))):
        assert (each.options.propagate, each.options.has_port, each.options.instrument) == kept
        assert each.name == name


@pytest.mark.parametrize("decorator", [endpoint, concurrent_endpoint])
@pytest.mark.parametrize(
    ("propagate", "error"),
    [("cached", NotImplementedError), ("mocked", NotImplementedError), ("other", ValueError), (3, ValueError)],
)
def test_how_shapes_may_not_propagate(decorator: Any, propagate: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"propagate.*{propagate}"):
        decorator(propagate=propagate)


@pytest.mark.parametrize(
    ("cls", "taken", "said"),
    [
        (int, (), "not a subclass of Actor"),
        (Base(), (), "not a subclass of Actor"),
        (Mixed, (), r"mixes both async and sync endpoints \(async: step\)"),
        (Derived, ("step",), "endpoint 'step' would hide"),
    ],
)
def test_classes_that_cannot_be_spawned(cls: Any, taken: tuple[str, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_class(cls, frozenset(taken))


@pytest.mark.parametrize("cls", [Base, Derived, Async, Actor])
def test_classes_that_can(cls: type[Actor]) -> None:
    check_class(cls, frozenset({"slice"}))


@pytest.mark.parametrize(
    ("check", "fits"),
    [
        (lambda: check_arguments(Base, (1,), {"name": "x"}), True),
        (lambda: check_arguments(Base, (1, 2), {}), False),
        (lambda: check_arguments(Base, (), {"nme": "x"}), False),
        (lambda: check_arguments(Async, (), {}), True),
        (lambda: check_arguments(Async, (1,), {}), False),
    ],
)
def test_constructor_arguments(check: Callable[[], None], fits: bool) -> None:
    if fits:
        check()
        return
    with pytest.raises(TypeError, match=r"^(Base|Async)\("):
        check()
