"""What a dashboard is put up for: a mesh that it can show, and do things to. The words of it, for whoever has one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from meshbook.widgets.protocol import EmptyReply, Reply
from meshbook.widgets.source import Source


@dataclass(frozen=True)
class BackendReply:
    """The answer to a request of a view: a reply of the protocol and its buffers."""

    content: Reply = field(default_factory=EmptyReply)
    buffers: Sequence[bytes] = ()


class DashboardBackend(Protocol):
    """A mesh, of a notebook or simulated. What cannot be done raises an error whose text says what to do instead."""

    @property
    def source(self) -> Source:
        """What is shown; asked on the dashboard's own thread."""
        ...

    def select(self, selector: str) -> Collection[int]:
        """The ranks that a selector means; from any thread, at once."""
        ...

    def watch(self, wake: Callable[[], object] | None) -> None:
        """Somebody begins to look, and is to be woken when something has happened; None: nobody looks any more."""
        ...

    def answer(self, request: Mapping[str, Any]) -> BackendReply:
        """What the request `act`, `logs` or `timeline` asks for; it may take its time, on a thread of its own."""
        ...
