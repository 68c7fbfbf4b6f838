"""The callable methods of an actor: the endpoints of its class, and plain methods for calls with a `manner`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from meshbook.runtime.actor.base import is_mixed
from meshbook.runtime.actor.endpoint import endpoints_of
from meshbook.runtime.actor.explicit_calls import find_undecorated
from meshbook.runtime.wire.messages import Call


class EndpointTable:
    """The endpoints of one actor, looked up once. The table of None is empty."""

    def __init__(self, actor: Any) -> None:
        cls = type(actor)
        endpoints = endpoints_of(cls)
        self._actor = actor
        self._methods: dict[str, Callable[..., Any]] = {name: getattr(actor, name) for name in endpoints}
        self._concurrent = frozenset(name for name, method in endpoints.items() if method.is_concurrent)
        self._sync = frozenset(name for name, method in endpoints.items() if not method.is_async)
        self._ported = frozenset(name for name, method in endpoints.items() if method.has_port)
        # Endpoints that return their result, by name: nearly every call is of one of these.
        self.plain = {name: method for name, method in self._methods.items() if name not in self._ported}
        self.is_mixed: bool = is_mixed(cls)  # whether the class has async and sync endpoints

    def is_concurrent(self, call: Call) -> bool:
        """Whether calls of this endpoint may overlap."""
        return not call.manner and call.endpoint in self._concurrent

    def is_sync(self, call: Call) -> bool:
        """Whether an actor that is served on a loop must run this call on its other thread."""
        if call.manner == "reload":
            return False
        if call.manner:
            return self.is_mixed and not inspect.iscoroutinefunction(getattr(self._actor, call.endpoint, None))
        return call.endpoint in self._sync

    def is_ported(self, call: Call) -> bool:
        """Whether the endpoint replies through a port."""
        return call.manner == "port" if call.manner else call.endpoint in self._ported

    def find(self, call: Call) -> Callable[..., Any]:
        """Return the called method. Raises AttributeError, which lists the endpoints."""
        if call.manner:
            method: Callable[..., Any] = find_undecorated(type(self._actor), call.endpoint).__get__(self._actor)
            return method
        if (found := self._methods.get(call.endpoint)) is not None:
            return found
        cls, known = type(self._actor), ", ".join(sorted(self._methods)) or "none"
        raise AttributeError(f"{cls.__module__}.{cls.__qualname__} has no endpoint {call.endpoint!r}; it has: {known}")
