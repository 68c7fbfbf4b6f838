"""`@endpoint` and `mesh.some_endpoint`: the verbs that call an actor.

The verbs do not depend on nodes or bytes. They check the arguments at the caller's line and pass the call to the mesh
(`Callee`).
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
# How the tensor engine gets the shapes of an endpoint's result: from a function of the input shapes, or from a run of
# the endpoint itself ("inspect"). Monarch defines the other two as well, and refuses them for endpoints.
Propagate = Callable[..., Any] | Literal["inspect", "cached", "mocked"]


class Callee(Protocol):
    """The operations that an endpoint needs from its mesh."""

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
    """An endpoint of an actor mesh, ready to be called on all ranks of the mesh.

    `call`, `call_one` and `choose` also take `timeout=`, in seconds, unless the endpoint has a parameter of that name.
    Type checkers only accept `within(seconds)` for this.
    """

    __slots__ = ("_limit", "_mesh", "_method")

    def __init__(self, mesh: Callee, method: EndpointMethod[P, R], limit: float | None = None) -> None:
        self._mesh = mesh
        self._method = method
        self._limit = limit

    def within(self, seconds: float) -> Endpoint[P, R]:
        """Return the same endpoint with a time limit: `mesh.step.within(5).call(x)`.

        After that time the future of `call`, `call_one` or `choose` raises CallTimeout, a TimeoutError, which says
        where each rank is that has not answered. The endpoint continues, and its answer is dropped. ValueError if
        `seconds` is not finite and >= 0.
        """
        check_timeout(seconds)
        return Endpoint(self._mesh, self._method, seconds)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Future[ValueMesh[R]]:
        """Call the endpoint on all ranks. The future holds one value per rank once all ranks have answered.

        Raises TypeError at once if the arguments do not fit. The future raises the `ActorError` of the lowest failing
        rank, or `SupervisionError` as soon as a rank can no longer answer.
        """
        limit = self._take_limit(kwargs)
        self._method.check(args, kwargs)
        return self._mesh._call(self._method.name, (args, kwargs), limit)

    def call_one(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Call the endpoint on the only rank of this mesh. ValueError if the mesh does not have exactly one rank."""
        if (size := len(self._mesh)) != 1:
            name = f"{self._mesh.mesh_name}.{self._method.name}"
            raise ValueError(f"{name}: call_one requires exactly 1 actor, but mesh has {size}; slice it, or use call")
        limit = self._take_limit(kwargs)
        self._method.check(args, kwargs)
        return self._mesh._call_one(self._method.name, (args, kwargs), limit)

    def call_each(self, *args: P.args, **kwargs: P.kwargs) -> Sequence[Future[R]]:
        """Call the endpoint on all ranks. Return one future per rank, in rank order; each resolves on its own."""
        self._method.check(args, kwargs)
        return self._mesh._call_each(self._method.name, (args, kwargs))

    def choose(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Call the endpoint on one rank, drawn at random with equal probability.

        If this process has noticed that the mesh has lost a rank, the future raises SupervisionError: the mesh has
        failed.
        """
        limit = self._take_limit(kwargs)
        self._method.check(args, kwargs)
        return self._mesh._choose(self._method.name, (args, kwargs), limit)

    def _take_limit(self, kwargs: dict[str, Any]) -> float | None:
        """Return the time limit of this call, and remove `timeout=` from `kwargs`."""
        if kwargs and "timeout" in kwargs and not self._method.takes("timeout"):
            limit: float | None = kwargs.pop("timeout")
            check_timeout(limit)
            return limit
        return self._limit

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> Iterator[Future[R]]:
        """Call the endpoint on all ranks, now. The n-th future resolves with the n-th answer to arrive."""
        self._method.check(args, kwargs)
        return iter(self._mesh._stream(self._method.name, (args, kwargs)))

    def broadcast(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Send to all ranks without waiting for answers. An exception in the endpoint then ends the actor."""
        self._method.check(args, kwargs)
        self._mesh._broadcast(self._method.name, (args, kwargs))

    def rref(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call through the tensor engine, for distributed tensors. RuntimeError if no mesh is active for it."""
        self._method.check(args, kwargs)
        name = self._mesh.mesh_name
        raise RuntimeError(
            f"{name}.{self._method.name}.rref() goes through the tensor engine, and no mesh is active: activate the "
            f"process mesh that {name!r} was spawned on (`with procs.activate(): ...`), or use call()"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = f"{self._mesh.mesh_name}.{self._method.name}"
        raise TypeError(f"{name} runs on the ranks of a mesh: use {name}.call(...), .call_one(...) or .broadcast(...)")

    def __repr__(self) -> str:
        return f"<Endpoint {self._mesh.mesh_name}.{self._method.name}{self._method.signature}>"


class Streaming(Protocol[P, R_co]):
    """The argument of an `Accumulator`: an endpoint, or an object with the same `stream`."""

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> Iterable[Awaitable[R_co]]: ...


class Accumulator(Generic[P, R, A]):
    """Folds the answers of all ranks into one value: `Accumulator(mesh.loss, 0.0, operator.add).accumulate(batch)`."""

    def __init__(self, endpoint: Streaming[P, R], identity: A, combine: Callable[[A, R], A]) -> None:
        if not callable(getattr(endpoint, "stream", None)):
            raise TypeError(f"Accumulator takes an endpoint of an actor mesh, such as mesh.step, not {endpoint!r}")
        if not callable(combine):
            raise TypeError(f"Accumulator takes a function of two values, such as operator.add, not {combine!r}")
        self._endpoint = endpoint
        self._identity = identity
        self._combine = combine

    def accumulate(self, *args: P.args, **kwargs: P.kwargs) -> Future[A]:
        """Call all ranks now; the future folds the answers with `combine`, from `identity` on, in order of arrival.

        The fold runs when the future is first observed, and errors of `combine` are raised there. The future fails with
        the first error.
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
    """The options of an endpoint's decorator."""

    is_concurrent: bool = False
    has_port: bool = False
    propagate: Propagate | None = None
    instrument: bool = True  # whether its runs are recorded as spans

    def __post_init__(self) -> None:
        if self.propagate is None or callable(self.propagate) or self.propagate == "inspect":
            return
        if self.propagate in ("cached", "mocked"):
            raise NotImplementedError(
                f"propagate={self.propagate!r}: an endpoint supports a function of shapes, or 'inspect'"
            )
        raise ValueError(f"propagate must be a function of shapes or 'inspect', not {self.propagate!r}")


class EndpointMethod(Generic[P, R]):
    """The object that `@endpoint` leaves in the class: the function and its options."""

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        if isinstance(function, EndpointMethod):
            raise ValueError(f"{function.name} is already an endpoint: apply only one endpoint decorator to it")
        if not inspect.isfunction(function):
            raise TypeError(f"@endpoint decorates a method, not {function!r}")
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
            raise TypeError(f"{text}: an endpoint is a method and takes {wanted} first")
        parameters = parameters[own:]
        self.signature = inspect.Signature(parameters)
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        plain = len(positional) == len(parameters)
        # Binding takes microseconds, so a call with only positional arguments is checked by counting them.
        self._least = sum(p.default is p.empty for p in positional) if plain else 1
        self._most = len(positional) if plain else 0

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise TypeError if the arguments do not fit the method's signature."""
        if kwargs or not self._least <= len(args) <= self._most:
            try:
                self.signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{self.name}{self.signature}: {error}") from None

    def takes(self, name: str) -> bool:
        """Return whether the method accepts a keyword argument of this name."""
        parameters = self.signature.parameters
        return name in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())

    if not TYPE_CHECKING:  # type checkers report this themselves

        def __getattr__(self, name: str) -> NoReturn:
            method = self.__dict__.get("name", "endpoint")
            hint = f": use mesh.{method}.{name}(...) of the mesh that spawn returns" if hasattr(Endpoint, name) else ""
            raise AttributeError(f"the endpoint {method!r} of a class has no attribute {name!r}{hint}")

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
    """`@endpoint(explicit_response_port=True)`: callers pass no port, and receive what is sent to it."""

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

    `explicit_response_port`: the first argument of the method is a `Port` to the caller. The method answers with
    `port.send(value)` or `port.exception(error)`: now, later, or from another actor that receives the port. If the
    method raises, the actor ends. `propagate` is for the tensor engine (`rref`): a function from the shapes of the
    arguments to those of the result, or "inspect". `instrument=False` keeps the runs of the endpoint out of traces.
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
    """Make an async method an endpoint whose calls overlap.

    Each message starts a task on the actor's event loop at once, in the order of arrival. When the actor ends, the
    tasks are cancelled and awaited. Raises ValueError for a method that is not `async def`. The options are those of
    `endpoint`.
    """
    options = Options(is_concurrent=True, propagate=propagate, has_port=explicit_response_port, instrument=instrument)
    return _decorate(method, options)


def _decorate(method: Callable[..., Any] | None, options: Options) -> Any:
    if method is None:
        return lambda method: EndpointMethod(method, options)
    return EndpointMethod(method, options)


def endpoints_of(cls: type) -> dict[str, EndpointMethod[..., Any]]:
    """Return the endpoints of an actor class by name, including inherited ones."""
    # From the classes' own dictionaries: each handle and each slice needs this, and `inspect.getattr_static` takes
    # ten times as long.
    members: dict[str, Any] = {}
    for base in reversed(cls.__mro__[:-1]):  # `object` has none
        members.update(vars(base))
    return {name: member for name, member in members.items() if isinstance(member, EndpointMethod)}
