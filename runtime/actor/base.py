"""`Actor`: the class that users subclass, and the rules a class must meet before it is spawned."""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Any

from meshbook.runtime.actor.endpoint import endpoints_of
from meshbook.runtime.monarch_texts import MIXES_KINDS

if TYPE_CHECKING:
    # `spawn` gives a mesh that is typed as the actor's class, so type checkers look there for what a mesh offers.
    from meshbook.runtime.actor.handle import Handle
else:
    Handle = object

# Hooks that run between the endpoints, and so have to be of their kind.
HOOKS = ("__cleanup__", "__restore__")


class Actor(Handle):
    """An object that lives in one process of a mesh and is reached by messages, one at a time.

    Mark methods with `@endpoint`; spawn it with `procs.spawn(name, Class, *args)`. The constructor runs in the worker,
    before the first message. A class whose endpoints are `async def` runs on an event loop of its own, else on a
    thread of its own. Endpoints that are marked with `@concurrent_endpoint` overlap.

    `class A(Actor, mixed=True)` may have both kinds: its sync methods run on the actor's own thread, the async ones on
    a loop beside it, which they never block. It is still one message at a time.

    What it may define: `__supervise__(failure)` is told of each failed rank of the meshes that this actor has spawned,
    and answers whether that is handled; else the actor fails with them. `__cleanup__(error)` is called once at the end,
    with the error or None. `_handle_undeliverable_message(envelope)` is told of messages that could not be delivered.
    `__restore__()` is called after the constructor where a mesh was healed: this actor takes the place of one that was
    lost. `__cleanup__` and `__restore__` are `async def` where the endpoints are, unless the class is mixed. The other
    two may be of either kind.
    """

    _is_mixed = False

    def __init_subclass__(cls, *, mixed: bool | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if mixed is not None:
            cls._is_mixed = mixed

    @property
    def logger(self) -> logging.Logger:
        """The logger of the actor's module. Its messages begin with the actor, as all do that an actor logs."""
        return logging.getLogger(type(self).__module__)


def is_async(cls: type) -> bool:
    """Whether the actors of this class run on an event loop."""
    return any(method.is_async for method in endpoints_of(cls).values())


def is_mixed(cls: type) -> bool:
    """Whether its sync endpoints run on a thread beside the loop of the others."""
    return bool(getattr(cls, "_is_mixed", False)) and is_async(cls)


def check_class(cls: Any, taken: frozenset[str]) -> None:
    """ValueError where a class cannot be spawned as an actor; `taken` names what an actor mesh already offers."""
    if not (inspect.isclass(cls) and issubclass(cls, Actor)):
        hint = ": spawn takes the class, and makes the instances itself" if isinstance(cls, Actor) else ""
        raise ValueError(f"{cls!r} is not a subclass of Actor{hint}")
    endpoints = endpoints_of(cls)
    kinds = {method.is_async for method in endpoints.values()}
    if len(kinds) > 1 and not is_mixed(cls):
        slow = ", ".join(sorted(name for name, method in endpoints.items() if method.is_async))
        raise ValueError(
            f"{cls.__qualname__} {MIXES_KINDS} endpoints (async: {slow}); a sync one would block the "
            f"loop of the others: make all of them async, or all of them sync, or say class {cls.__name__}(Actor, "
            f"mixed=True), which runs the sync ones on a thread of their own"
        )
    _check_hooks(cls)
    if hidden := sorted(taken & endpoints.keys()):
        raise ValueError(
            f"{cls.__qualname__}: endpoint {hidden[0]!r} would hide what every actor mesh has by that name; rename it"
        )


def _check_hooks(cls: type[Actor]) -> None:
    """ValueError for a hook of another kind than the endpoints: nobody would await it, or it would block the loop."""
    if is_mixed(cls):
        return
    ours, theirs, wanted = ("sync", "async", "an async def") if is_async(cls) else ("async", "sync", "a plain def")
    for name in HOOKS:
        hook = getattr(cls, name, None)
        if hook is not None and inspect.iscoroutinefunction(hook) != is_async(cls):
            mixed = f", or say class {cls.__name__}(Actor, mixed=True)" if is_async(cls) else ""
            raise ValueError(
                f"{cls.__qualname__}.{name} is {ours}, but its endpoints are {theirs}: make it {wanted}{mixed}"
            )


def check_arguments(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """TypeError where the arguments do not fit the constructor."""
    try:
        inspect.signature(cls).bind(*args, **kwargs)
    except TypeError as error:
        signature = inspect.signature(cls).replace(return_annotation=inspect.Signature.empty)
        raise TypeError(f"{cls.__qualname__}{signature}: {error}") from None
    except ValueError:
        pass  # a constructor written in C has no signature to check against


def constructor_takes(cls: type, name: str) -> bool:
    """Whether the constructor has a parameter of this name, takes any, or has none that could be read."""
    try:
        parameters = inspect.signature(cls).parameters
    except ValueError:
        return True
    return name in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())
