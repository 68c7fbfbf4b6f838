"""`@endpoint` and the handle that `mesh.some_endpoint` gives: the verbs by which an actor is called.

The verbs know nothing of nodes and bytes: they check the arguments here, at the caller's line, and hand the call to
the mesh (`Callee`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    NoReturn,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    overload,
)

from meshbook.runtime.actor.deferred import returns_future
from meshbook.runtime.actor.future import Future, check_timeout
from meshbook.runtime.actor.ports import Port
from meshbook.runtime.actor.values import ValueMesh

if TYPE_CHECKING:
    from typing import Self

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
R_co = TypeVar("R_co", covariant=True)
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
# How the tensor engine learns the shapes of an endpoint's result: by a function of the shapes that go in, or by a run
# of the endpoint itself. Monarch knows the other two as well, and refuses them for endpoints.
Propagate = Callable[..., Any] | Literal["inspect", "cached", "mocked"]


class Callee(Protocol):
    """What an endpoint needs of the mesh it belongs to."""

    @property
    def mesh_name(self) -> str: ...
    def __len__(self) -> int: ...
    def _call(self, endpoint: str, arguments: Arguments, limit: float | None = None) -> Future[ValueMesh[Any]]: ...
    def _call_one(self, endpoint: str, arguments: Arguments, limit: float | None = None) -> Future[Any]: ...
    def _call_each(self, endpoint: str, arguments: Arguments) -> Sequence[Future[Any]]: ...
    def _choose(self, endpoint: str, arguments: Arguments, limit: float | None = None) -> Future[Any]: ...
    def _stream(self, endpoint: str, arguments: Arguments) -> Sequence[Future[Any]]: ...
    def _fold(
        self, endpoint: str, arguments: Arguments, combine: Callable[[list[Callable[[], Any]]], Any]
    ) -> Future[Any]: ...
    def _broadcast(self, endpoint: str, arguments: Arguments) -> None: ...
    def _send(
        self, endpoint: str, arguments: Arguments, *, chosen: bool, port: tuple[Any, int], has_port: bool
    ) -> None: ...
    def _undecorated(self, has_port: bool) -> Callee: ...


class Endpoint(Generic[P, R]):
    """An endpoint of an actor mesh, ready to be called on every rank of it.

    `call`, `call_one` and `choose` also take `timeout=`, in seconds, unless the endpoint has a parameter of that name.
    Type checkers know it as `within(seconds)`.
    """

    __slots__ = ("_limit", "_mesh", "_method")

    def __init__(self, mesh: Callee, method: EndpointMethod[P, R], limit: float | None = None) -> None:
        self._mesh = mesh
        self._method = method
        self._limit = limit

    def within(self, seconds: float) -> Endpoint[P, R]:
        """The same endpoint with a time limit: `mesh.step.within(5).call(x)`.

        The future of `call`, `call_one` and `choose` then raises CallTimeout, a TimeoutError, which says where each
        rank is that has not answered. The endpoint goes on; its answer is dropped. ValueError: no finite seconds >= 0.
        """
        check_timeout(seconds)
        return Endpoint(self._mesh, self._method, seconds)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Future[ValueMesh[R]]:
        """Send to all ranks; the future holds a value per rank once every rank has answered.

        Raises TypeError at once where the arguments do not fit. The future raises the `ActorError` of the lowest
        failing rank, or `SupervisionError` as soon as a rank cannot answer any more.
        """
        limit = self._take_limit(kwargs)
        self._method.check(args, kwargs)
        return self._mesh._call(self._method.name, (args, kwargs), limit)

    def call_one(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Send to the only rank of this mesh; ValueError where it has another number of ranks."""
        if (size := len(self._mesh)) != 1:
            name = f"{self._mesh.mesh_name}.{self._method.name}"
            raise ValueError(f"{name}: call_one requires exactly 1 actor, but mesh has {size}; slice it, or use call")
        limit = self._take_limit(kwargs)
        self._method.check(args, kwargs)
        return self._mesh._call_one(self._method.name, (args, kwargs), limit)

    def call_each(self, *args: P.args, **kwargs: P.kwargs) -> Sequence[Future[R]]:
        """Send to all ranks; one future per rank, in rank order, each of which resolves for itself."""
        self._method.check(args, kwargs)
        return self._mesh._call_each(self._method.name, (args, kwargs))

    def choose(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Send to one rank, drawn at random: all are equally likely.

        A mesh that has lost a rank, as far as that is known here, has failed: then the future raises SupervisionError.
        """
        limit = self._take_limit(kwargs)
        self._method.check(args, kwargs)
        return self._mesh._choose(self._method.name, (args, kwargs), limit)

    def _take_limit(self, kwargs: dict[str, Any]) -> float | None:
        """The time limit of this call; one that is given as `timeout=` is taken out."""
        if kwargs and "timeout" in kwargs and not self._method.takes("timeout"):
            limit: float | None = kwargs.pop("timeout")
            check_timeout(limit)
            return limit
        return self._limit

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> Iterator[Future[R]]:
        """Send to all ranks, now; as many futures, of which the first is of the rank that answers first, and so on."""
        self._method.check(args, kwargs)
        return iter(self._mesh._stream(self._method.name, (args, kwargs)))

    def broadcast(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Send to all ranks and expect no answer; an exception in the endpoint then ends the actor."""
        self._method.check(args, kwargs)
        self._mesh._broadcast(self._method.name, (args, kwargs))

    def rref(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call through the tensor engine, for distributed tensors. RuntimeError where no mesh is active for it."""
        self._method.check(args, kwargs)
        name = self._mesh.mesh_name
        raise RuntimeError(
            f"{name}.{self._method.name}.rref() goes through the tensor engine, and no mesh is active: activate the "
            f"process mesh that {name!r} was spawned on (`with procs.activate(): ...`), or call by the other verbs"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = f"{self._mesh.mesh_name}.{self._method.name}"
        raise TypeError(f"{name} runs on the ranks of a mesh: say {name}.call(...), .call_one(...) or .broadcast(...)")

    def __repr__(self) -> str:
        return f"<Endpoint {self._mesh.mesh_name}.{self._method.name}{self._method.signature}>"


class Streaming(Protocol[P, R_co]):
    """What an `Accumulator` takes: an endpoint, or what answers as one does."""

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> Iterable[Awaitable[R_co]]: ...


class Accumulator(Generic[P, R, A]):
    """The answers of all ranks as one value: `Accumulator(mesh.loss, 0.0, operator.add).accumulate(batch)`."""

    def __init__(self, endpoint: Streaming[P, R], identity: A, combine: Callable[[A, R], A]) -> None:
        if not callable(getattr(endpoint, "stream", None)):
            raise TypeError(f"Accumulator takes an endpoint of an actor mesh, as mesh.step, not {endpoint!r}")
        if not callable(combine):
            raise TypeError(f"Accumulator takes a function of two values, as operator.add, not {combine!r}")
        self._endpoint = endpoint
        self._identity = identity
        self._combine = combine

    def accumulate(self, *args: P.args, **kwargs: P.kwargs) -> Future[A]:
        """Send to all ranks, now; the future is `combine` over the answers, from `identity` on, in order of arrival.

        It is folded when first observed, and what `combine` raises is raised there. It fails with the first error.
        """
        if not isinstance(self._endpoint, Endpoint):
            return self._fold_stream(list(self._endpoint.stream(*args, **kwargs)))
        mesh, method = self._endpoint._mesh, self._endpoint._method
        method.check(args, kwargs)
        return mesh._fold(method.name, (args, kwargs), self._fold)

    @returns_future
    async def _fold_stream(self, answers: Sequence[Awaitable[R]]) -> A:
        total = self._identity
        for answer in answers:
            total = self._combine(total, await answer)
        return total

    def _fold(self, answers: list[Callable[[], R]]) -> A:
        return functools.reduce(self._combine, (answer() for answer in answers), self._identity)


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What a decorator says of its method beyond that it is an endpoint."""

    is_concurrent: bool = False
    has_port: bool = False
    propagate: Propagate | None = None
    instrument: bool = True  # whether its runs are spans

    def __post_init__(self) -> None:
        if self.propagate is None or callable(self.propagate) or self.propagate == "inspect":
            return
        if self.propagate in ("cached", "mocked"):
            raise NotImplementedError(
                f"propagate={self.propagate!r}: an endpoint has a function of shapes, or 'inspect'"
            )
        raise ValueError(f"propagate is a function of shapes, or 'inspect', not {self.propagate!r}")


class EndpointMethod(Generic[P, R]):
    """What `@endpoint` leaves in the class: the function, and what is known of it before any actor exists."""

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        if isinstance(function, EndpointMethod):
            raise ValueError(f"{function.name}: one decorator a method; this one does not wrap @endpoint")
        if not inspect.isfunction(function):
            raise TypeError(f"@endpoint goes onto a method, not onto {function!r}")
        self.function = function
        self.name = function.__name__
        self.is_async = inspect.iscoroutinefunction(function)
        self.options = options
        self.is_concurrent = options.is_concurrent
        self.has_port = options.has_port
        if self.is_concurrent and not self.is_async:
            raise ValueError(f"{self.name}: @concurrent_endpoint can only wrap async endpoints; make it `async def`")
        self.__doc__ = function.__doc__
        self._measure()

    def _measure(self) -> None:
        parameters = list(inspect.signature(self.function).parameters.values())
        own = 1 + self.has_port
        if len(parameters) < own and not any(each.kind is each.VAR_POSITIONAL for each in parameters):
            wanted = "self and a port" if self.has_port else "self"
            text = f"{self.name}{inspect.signature(self.function)}"
            raise TypeError(f"{text}: an endpoint is a method, and takes {wanted} first")
        parameters = parameters[own:]
        self.signature = inspect.Signature(parameters)
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        plain = len(positional) == len(parameters)
        # Binding costs microseconds; a call with positional arguments alone is checked by counting them.
        self._least = sum(p.default is p.empty for p in positional) if plain else 1
        self._most = len(positional) if plain else 0

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """TypeError where the arguments do not fit the method's signature."""
        if kwargs or not self._least <= len(args) <= self._most:
            try:
                self.signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{self.name}{self.signature}: {error}") from None

    def takes(self, name: str) -> bool:
        """Whether the method has a parameter of this name, or takes any."""
        parameters = self.signature.parameters
        return name in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())

    if not TYPE_CHECKING:  # who checks types is told by Python's own words

        def __getattr__(self, name: str) -> NoReturn:
            method = self.__dict__.get("name", "endpoint")
            hint = f": say mesh.{method}.{name}(...) of the mesh that spawn gives" if hasattr(Endpoint, name) else ""
            raise AttributeError(f"the endpoint {method!r} of a class has no {name!r}{hint}")

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Endpoint[P, R]: ...
    def __get__(self, instance: object | None, owner: type) -> Any:
        # A mesh is typed as its actor class, so a type checker sees an Endpoint here. A real instance exists only
        # inside its own actor, where a call to self.method() is an ordinary one.
        return self if instance is None else self.function.__get__(instance, owner)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.function, self.name, self.options)


def _rebuild(function: Callable[..., Any], name: str, options: Options) -> EndpointMethod[..., Any]:
    method: EndpointMethod[..., Any] = EndpointMethod(function, options)
    method.name = name
    return method


class _Plain(Protocol):
    """`@endpoint()`, typed as `@endpoint`."""

    @overload
    def __call__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /) -> EndpointMethod[P, R]: ...
    @overload
    def __call__(self, method: Callable[Concatenate[Any, P], R], /) -> EndpointMethod[P, R]: ...


class _Ported(Protocol):
    """`@endpoint(explicit_response_port=True)`: the caller's view has no port, and gets what is sent to it."""

    def __call__(self, method: Callable[Concatenate[Any, Port[R], P], Any], /) -> EndpointMethod[P, R]: ...


class _Async(Protocol):
    """`@concurrent_endpoint()`."""

    def __call__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /) -> EndpointMethod[P, R]: ...


@overload
def endpoint(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /) -> EndpointMethod[P, R]: ...
@overload
def endpoint(method: Callable[Concatenate[Any, P], R], /) -> EndpointMethod[P, R]: ...
@overload
def endpoint(
    *, propagate: Propagate | None = None, explicit_response_port: Literal[True], instrument: bool = True
) -> _Ported: ...
@overload
def endpoint(
    *, propagate: Propagate | None = None, explicit_response_port: Literal[False] = False, instrument: bool = True
) -> _Plain: ...
def endpoint(
    method: Callable[..., Any] | None = None,
    /,
    *,
    propagate: Propagate | None = None,
    explicit_response_port: bool = False,
    instrument: bool = True,
) -> Any:
    """Make a method of an `Actor` callable by messages: `mesh.method.call(...)` and the other verbs of `Endpoint`.

    With `explicit_response_port` its first argument is a `Port` to the caller, and it answers by `port.send(value)` or
    `port.exception(error)`: now, later, or from another actor that it gives the port to. If it raises, the actor ends.
    `propagate` is for the tensor engine (`rref`): a function from the shapes of the arguments to those of the result,
    or "inspect". `instrument=False` keeps its runs out of traces.
    """
    options = Options(propagate=propagate, has_port=explicit_response_port, instrument=instrument)
    return _decorate(method, options)


@overload
def concurrent_endpoint(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /) -> EndpointMethod[P, R]: ...
@overload
def concurrent_endpoint(
    *, propagate: Propagate | None = None, explicit_response_port: Literal[True], instrument: bool = True
) -> _Ported: ...
@overload
def concurrent_endpoint(
    *, propagate: Propagate | None = None, explicit_response_port: Literal[False] = False, instrument: bool = True
) -> _Async: ...
def concurrent_endpoint(
    method: Callable[..., Any] | None = None,
    /,
    *,
    propagate: Propagate | None = None,
    explicit_response_port: bool = False,
    instrument: bool = True,
) -> Any:
    """An endpoint whose calls overlap: each message starts a task of the actor's loop at once, in the order of arrival.

    The tasks are cancelled, and awaited, when the actor ends. ValueError on a method that is not `async def`.
    The options are those of `endpoint`.
    """
    options = Options(is_concurrent=True, propagate=propagate, has_port=explicit_response_port, instrument=instrument)
    return _decorate(method, options)


def _decorate(method: Callable[..., Any] | None, options: Options) -> Any:
    if method is None:
        return lambda method: EndpointMethod(method, options)
    return EndpointMethod(method, options)


def endpoints_of(cls: type) -> dict[str, EndpointMethod[..., Any]]:
    """The endpoints of an actor class by name, inherited ones included."""
    found = {}
    for name in dir(cls):
        member = inspect.getattr_static(cls, name)
        if isinstance(member, EndpointMethod):
            found[name] = cast("EndpointMethod[..., Any]", member)
    return found
