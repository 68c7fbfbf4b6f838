"""What an actor can be asked: the endpoints of its class, and for a call that says so its plain methods."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from meshbook.runtime.actor.base import is_mixed
from meshbook.runtime.actor.endpoint import endpoints_of
from meshbook.runtime.actor.undecorated import find_undecorated
from meshbook.runtime.wire.messages import Call


class Repertoire:
    """The endpoints of one actor, looked up once; of None, which has none."""

    def __init__(self, actor: Any) -> None:
        cls = type(actor)
        endpoints = endpoints_of(cls)
        self._actor = actor
        self._methods: dict[str, Callable[..., Any]] = {name: getattr(actor, name) for name in endpoints}
        self._concurrent = frozenset(name for name, method in endpoints.items() if method.is_concurrent)
        self._sync = frozenset(name for name, method in endpoints.items() if not method.is_async)
        self._ported = frozenset(name for name, method in endpoints.items() if method.has_port)
        self.is_mixed: bool = is_mixed(cls)  # whether some methods run on a loop, and others on a thread beside it

    def is_concurrent(self, call: Call) -> bool:
        """Whether the calls of this endpoint overlap."""
        return not call.manner and call.endpoint in self._concurrent

    def is_sync(self, call: Call) -> bool:
        """Whether an actor that is served on a loop has to run this beside it."""
        if call.manner == "reload":
            return False
        if call.manner:
            return self.is_mixed and not inspect.iscoroutinefunction(getattr(self._actor, call.endpoint, None))
        return call.endpoint in self._sync

    def is_ported(self, call: Call) -> bool:
        """Whether the endpoint answers by a port."""
        return call.manner == "port" if call.manner else call.endpoint in self._ported

    def find(self, call: Call) -> Callable[..., Any]:
        """The method that is called. AttributeError, with the endpoints that there are."""
        if call.manner:
            method: Callable[..., Any] = find_undecorated(type(self._actor), call.endpoint).__get__(self._actor)
            return method
        if (found := self._methods.get(call.endpoint)) is not None:
            return found
        cls, known = type(self._actor), ", ".join(sorted(self._methods)) or "none"
        raise AttributeError(f"{cls.__module__}.{cls.__qualname__} has no endpoint {call.endpoint!r}; it has: {known}")
