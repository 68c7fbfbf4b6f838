"""The seam between a dashboard and its mesh: what a mesh must offer to be shown and acted on."""

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
    """A mesh, of a notebook or simulated. Its methods raise errors whose text names the remedy."""

    @property
    def source(self) -> Source:
        """The data source; used on the dashboard's own thread."""
        ...

    def select(self, selector: str) -> Collection[int]:
        """Return the ranks of a selector at once; from any thread."""
        ...

    def watch(self, wake: Callable[[], object] | None) -> None:
        """Call `wake` after each event on the mesh from now on; None: the last view was closed."""
        ...

    def answer(self, request: Mapping[str, Any]) -> BackendReply:
        """Answer the request `act`, `logs` or `timeline`; called on a thread of its own, and may block."""
        ...
