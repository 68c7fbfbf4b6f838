"""Replacing the class of live actors: finding the new class, checking it, and changing the object."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from meshbook.runtime.actor.base import check_class, is_async, is_mixed


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
            f"by their endpoints, actors of {old.__qualname__} run on {serving} and actors of {new.__qualname__} on "
            f"{other}: a running actor cannot move; spawn new actors"
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
            f"an object of {old.__qualname__} cannot become one of {cls.__qualname__}, whose instances have another "
            f"layout (__slots__, or a base class written in C); spawn new actors. {error}"
        ) from error
