"""`Actor`: the class that users subclass, and the checks of a class before actors are spawned or reloaded."""

from __future__ import annotations

import inspect
import logging
import sys
from typing import TYPE_CHECKING, Any

from meshbook.runtime.actor.endpoint import endpoints_of
from meshbook.runtime.monarch_texts import MIXES_KINDS

if TYPE_CHECKING:
    # `spawn` returns a mesh that is typed as the actor's class, so type checkers look in that class for the mesh's
    # attributes.
    from collections.abc import Generator
    from typing import Self

    from meshbook.runtime.actor.future import Future
    from meshbook.runtime.geometry import MeshTrait, Region

    class Handle(MeshTrait):
        """The attributes of an actor mesh besides its endpoints. At run time it is an `ActorMesh`."""

        @property
        def mesh_name(self) -> str: ...
        @property
        def region(self) -> Region: ...
        def _with_region(self, region: Region) -> Self: ...
        @property
        def initialized(self) -> Future[None]: ...
        def __await__(self) -> Generator[Any, None, Self]: ...
        def stop(self, reason: str = "stopped by client") -> Future[None]: ...
        def reload(self, cls: type[Handle] | None = None) -> Future[None]: ...
else:
    Handle = object


# Hooks that run between endpoints, so they must be of the same kind (sync or async).
HOOKS = ("__cleanup__", "__restore__")


class Actor(Handle):
    """An object in one process of a mesh. It receives messages and handles them one at a time.

    Mark methods with `@endpoint` and create the actors with `procs.spawn(name, Class, *args)`. The constructor runs in
    the worker, before the first message. A class whose endpoints are `async def` runs on its own event loop, any other
    class on its own thread. Endpoints marked with `@concurrent_endpoint` overlap.

    `class A(Actor, mixed=True)` may have both kinds of endpoints. Its sync methods run on the actor's own thread, the
    async ones on an event loop beside it, which the sync methods never block. The actor still handles one message at a
    time.

    Hooks that a subclass may define:

    - `__supervise__(failure)` is called for each failed rank of the meshes that this actor has spawned. A true result
      means that the failure is handled; otherwise this actor fails too.
    - `__cleanup__(error)` is called once when the actor ends, with the error or None.
    - `__restore__()` is called after the constructor when a mesh is healed: this actor replaces one that was lost.
    - `_handle_undeliverable_message(envelope)` is called for each message that could not be delivered.

    `__cleanup__` and `__restore__` must be `async def` if the endpoints are, unless the class is mixed. The other two
    may be sync or async.
    """

    _is_mixed = False

    def __init_subclass__(cls, *, mixed: bool | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if mixed is not None:
            cls._is_mixed = mixed

    @property
    def logger(self) -> logging.Logger:
        """The logger of the actor's module. As in all log records of an actor, messages begin with the actor's name."""
        return logging.getLogger(type(self).__module__)


def is_async(cls: type) -> bool:
    """Return whether actors of this class run on an event loop."""
    return any(method.is_async for method in endpoints_of(cls).values())


def is_mixed(cls: type) -> bool:
    """Return whether the sync endpoints of this class run on a thread beside the event loop of the async ones."""
    return bool(getattr(cls, "_is_mixed", False)) and is_async(cls)


def check_class(cls: Any, taken: frozenset[str]) -> None:
    """Raise ValueError if a class cannot be spawned as an actor; `taken`: the attribute names of every actor mesh."""
    if not (inspect.isclass(cls) and issubclass(cls, Actor)):
        hint = ": pass the class to spawn, not an instance" if isinstance(cls, Actor) else ""
        raise ValueError(f"{cls!r} is not a subclass of Actor{hint}")
    endpoints = endpoints_of(cls)
    kinds = {method.is_async for method in endpoints.values()}
    if len(kinds) > 1 and not is_mixed(cls):
        slow = ", ".join(sorted(name for name, method in endpoints.items() if method.is_async))
        raise ValueError(
            f"{cls.__qualname__} {MIXES_KINDS} endpoints (async: {slow}); a sync one would block the "
            f"event loop of the others: make all of them async or all of them sync, or declare class "
            f"{cls.__name__}(Actor, mixed=True), which runs the sync ones on a separate thread"
        )
    _check_hooks(cls)
    if hidden := sorted(taken & endpoints.keys()):
        raise ValueError(
            f"{cls.__qualname__}: endpoint {hidden[0]!r} would hide an attribute of every actor mesh; rename it"
        )


def _check_hooks(cls: type[Actor]) -> None:
    """Raise ValueError for a hook of another kind than the endpoints.

    An async hook would never be awaited; a sync hook would block the event loop.
    """
    if is_mixed(cls):
        return
    ours, theirs, wanted = ("sync", "async", "an async def") if is_async(cls) else ("async", "sync", "a plain def")
    for name in HOOKS:
        hook = getattr(cls, name, None)
        if hook is not None and inspect.iscoroutinefunction(hook) != is_async(cls):
            mixed = f", or declare class {cls.__name__}(Actor, mixed=True)" if is_async(cls) else ""
            raise ValueError(
                f"{cls.__qualname__}.{name} is {ours}, but its endpoints are {theirs}: make it {wanted}{mixed}"
            )


def check_arguments(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise TypeError if the arguments do not fit the constructor."""
    try:
        inspect.signature(cls).bind(*args, **kwargs)
    except TypeError as error:
        signature = inspect.signature(cls).replace(return_annotation=inspect.Signature.empty)
        raise TypeError(f"{cls.__qualname__}{signature}: {error}") from None
    except ValueError:
        # Constructors written in C may have no signature to check against.
        pass


def constructor_takes(cls: type, name: str) -> bool:
    """Return whether the constructor accepts a keyword argument of this name; True if its signature cannot be read."""
    try:
        parameters = inspect.signature(cls).parameters
    except ValueError:
        return True
    return name in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def find_redefined(cls: type) -> Any:
    """Return the object that now has the class's name in its module. ValueError if there is none."""
    found: Any = sys.modules.get(cls.__module__)
    for part in cls.__qualname__.split("."):
        found = inspect.getattr_static(found, part, None)
    if found is None:
        raise ValueError(
            f"module {cls.__module__} no longer has a class {cls.__qualname__}: pass the new class, as in "
            f"reload(NewClass)"
        )
    return found


def check_replacement(old: type, new: Any, taken: frozenset[str]) -> None:
    """Raise ValueError if actors of one class cannot become actors of another; `taken` as for `check_class`."""
    check_class(new, taken)
    if (serving := _serving_of(old)) != (other := _serving_of(new)):
        raise ValueError(
            f"the endpoints of {old.__qualname__} run on {serving}, but those of {new.__qualname__} on {other}: "
            "a running actor cannot change this; spawn new actors"
        )


def _serving_of(cls: type) -> str:
    if is_mixed(cls):
        return "an event loop with a thread beside it"
    return "an event loop" if is_async(cls) else "a thread"


def change_class(actor: Any, cls: type) -> None:
    """Change the class of an object and keep its state. TypeError if the layouts differ."""
    old = type(actor)
    try:
        object.__setattr__(actor, "__class__", cls)  # bypasses the user's own __setattr__
    except TypeError as error:
        raise TypeError(
            f"an object of {old.__qualname__} cannot become one of {cls.__qualname__}, whose instances have a "
            f"different layout (__slots__, or a base class written in C); spawn new actors. {error}"
        ) from error
