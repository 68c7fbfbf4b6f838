"""Calls beside the verbs of an endpoint: `send` to a port that the caller names, and `as_endpoint`.

`as_endpoint` calls undecorated methods of a spawned actor. Its message is marked as such: for any other call, an actor
looks up the method among its endpoints only. Methods that begin with an underscore cannot be called remotely.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Concatenate, Literal, NoReturn, ParamSpec, TypeAlias, TypeVar, overload

from meshbook.runtime.actor.base import is_async, is_mixed
from meshbook.runtime.actor.endpoint import Callee, Endpoint, EndpointMethod, Options, Propagate
from meshbook.runtime.actor.ports import Port

P = ParamSpec("P")
R = TypeVar("R")
Selection: TypeAlias = Literal["all", "choose"]  # all ranks, or one drawn at random


def send(
    endpoint: Endpoint[..., R],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    port: Port[R] | None = None,
    selection: Selection = "all",
) -> None:
    """Call an endpoint on all ranks, or on one drawn at random. Each answers to `port`, which may be of any process.

    A receiver from `Channel.open_ranked` gets each answer as (rank in the called mesh, value). An error is raised by
    `recv`. Without a port the answers are dropped, and an exception ends the actor, as with `broadcast`. The death of a
    rank is reported only to a port of this process, and not if the endpoint itself answers through a port.

    Raises TypeError at once for arguments that do not fit, and for anything but an endpoint or a port; ValueError for
    an unknown selection.
    """
    if not isinstance(endpoint, Endpoint):
        raise TypeError(f"send() takes an endpoint of an actor mesh, not {endpoint!r}")
    if selection not in ("all", "choose"):
        raise ValueError(f"selection must be 'all' or 'choose', not {selection!r}")
    if port is not None and not isinstance(port, Port):
        raise TypeError(f"send() takes a Port for the answers, as Channel.open() returns it, not {port!r}")
    if isinstance(args, str) or not isinstance(args, Sequence) or not isinstance(kwargs, Mapping):
        raise TypeError(f"send() takes the arguments as a list and a dict: send(endpoint, [1, 2], {{}}), not {args!r}")
    mesh, method = endpoint._mesh, endpoint._method
    arguments = tuple(args), dict(kwargs)
    method.check(*arguments)
    to = (None, 0) if port is None else (port._address, port._number)
    mesh._send(method.name, arguments, chosen=selection == "choose", port=to, has_port=method.has_port)
    if port is not None:
        port._hand_over()


class PlainMethod:
    """`mesh.method` for a method without `@endpoint`. Any use raises RuntimeError; only `as_endpoint` accepts it."""

    __slots__ = ("_cls", "_mesh", "_name")

    def __init__(self, mesh: Callee, cls: type, name: str) -> None:
        self._mesh = mesh
        self._cls = cls
        self._name = name

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # attributes that pickle and displays look up
            raise AttributeError(name)
        self._refuse()

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise RuntimeError(
            f"{self._cls.__qualname__}.{self._name} is a plain method: mark it with @endpoint to call it on a mesh, or "
            f"use as_endpoint({self._mesh.mesh_name}.{self._name}).call(...)"
        )

    def __repr__(self) -> str:
        return f"<PlainMethod {self._mesh.mesh_name}.{self._name}>"

    def _as_endpoint(self, options: Options) -> Endpoint[..., Any]:
        method: EndpointMethod[..., Any] = EndpointMethod(find_undecorated(self._cls, self._name), options)
        method.name = self._name
        return Endpoint(self._mesh._undecorated(options.has_port), method)


@overload
def as_endpoint(
    method: Callable[P, Coroutine[Any, Any, R]],
    /,
    *,
    propagate: Propagate | None = None,
    explicit_response_port: Literal[False] = False,
) -> Endpoint[P, R]: ...
@overload
def as_endpoint(
    method: Callable[P, R],
    /,
    *,
    propagate: Propagate | None = None,
    explicit_response_port: Literal[False] = False,
) -> Endpoint[P, R]: ...
@overload
def as_endpoint(
    method: Callable[Concatenate[Port[R], P], Any],
    /,
    *,
    propagate: Propagate | None = None,
    explicit_response_port: Literal[True],
) -> Endpoint[P, R]: ...
def as_endpoint(
    method: Callable[..., Any],
    /,
    *,
    propagate: Propagate | None = None,
    explicit_response_port: bool = False,
) -> Endpoint[..., Any]:
    """Return an undecorated method of a spawned actor as an endpoint: `as_endpoint(mesh.method).call(...)`.

    The options are those of `endpoint`. Raises ValueError for anything but such a method, for a method that begins with
    an underscore, for an `async def` of an actor that runs on a thread, and for a sync method of an actor on an event
    loop.
    """
    if isinstance(method, PlainMethod):
        return method._as_endpoint(Options(propagate=propagate, has_port=explicit_response_port))
    hint = ", which is already an endpoint" if isinstance(method, Endpoint) else ""
    raise ValueError(f"as_endpoint: expected a method of a spawned actor, not {method!r}{hint}")


def find_undecorated(cls: type, name: str) -> Callable[..., Any]:
    """Return the function of a method that `as_endpoint` may call; ValueError if there is none or it is refused."""
    full_name = f"{cls.__qualname__}.{name}"
    if name.startswith("_"):
        raise ValueError(f"{full_name} begins with an underscore and cannot be called remotely")
    found = inspect.getattr_static(cls, name, None)
    if not inspect.isfunction(found):
        raise ValueError(f"as_endpoint: {full_name} is not a plain method, but {found!r}")
    if inspect.iscoroutinefunction(found) != is_async(cls) and not is_mixed(cls):
        kind, serving = ("async", "a thread") if inspect.iscoroutinefunction(found) else ("not async", "an event loop")
        raise ValueError(
            f"as_endpoint: {full_name} is {kind}, but the other endpoints make the actor run on {serving}: "
            f"make all of them async, or none"
        )
    return found
