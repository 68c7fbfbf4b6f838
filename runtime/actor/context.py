"""Who is running: `context()`, `current_rank()`, `current_size()`. One context per message, held in a ContextVar.

The only module-level state is the door at the bottom: how a process that is no actor gets its client.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from meshbook.runtime.geometry import Extent, Point

EMPTY = Extent((), ())


class Instance:
    """An actor as it sees itself: its name, its rank in the mesh it was spawned on, and the node that hosts it."""

    __slots__ = ("actor_id", "class_name", "name", "node", "proc", "rank")

    def __init__(self, name: str, class_name: str, rank: Point, node: Any, proc: Any = None) -> None:
        self.name = name_of(name)
        self.class_name = class_name
        self.rank = rank
        self.node = node
        self.proc = proc  # the place of this process: its mesh, rank and host (runtime.mesh.Place), None for a client
        self.actor_id = f"{node.address.node}/{name}"

    def __str__(self) -> str:
        return f"<{self.actor_id}.<{self.class_name} {self.rank}>>"


def name_of(actor: str) -> str:
    """The name that the user gave an actor: `trainer` of `trainer-3@controller`, which is unique in its process."""
    unique, mark, _ = actor.rpartition("@")
    return unique.rpartition("-")[0] if mark else actor


class Context:
    """The context of one message. `message_rank` is the point in the mesh *that was called*, which may be a slice."""

    __slots__ = ("_place", "_point", "actor_instance", "origin")

    def __init__(
        self,
        instance: Instance,
        place: tuple[int, tuple[str, ...], tuple[int, ...]] = (0, (), ()),
        origin: str = "",
    ) -> None:
        self.actor_instance = instance
        self.origin = origin  # the execution (a notebook cell) on whose behalf this runs: output is routed by it
        self._place = place
        self._point: Point | None = None

    @property
    def message_rank(self) -> Point:
        if self._point is None:  # made on demand: most endpoints never ask
            rank, labels, sizes = self._place
            self._point = Extent(labels, sizes).point(rank)
        return self._point


CURRENT: ContextVar[Context | None] = ContextVar("meshbook_context", default=None)


def context() -> Context:
    """The context of the message that is being handled; in a client (a script, a notebook) that of the client itself.

    The first use in a client starts its runtime.
    """
    found = CURRENT.get()
    return found if found is not None else _client_context()


def current_rank() -> Point:
    """This actor's point within the mesh that the current message was sent to; the empty point in a client."""
    found = CURRENT.get()
    return found.message_rank if found is not None else EMPTY.point(0)


def current_size() -> dict[str, int]:
    """The sizes, by dimension, of the mesh that the current message was sent to; empty in a client."""
    return dict(current_rank().extent)


def current_origin() -> str:
    """The execution on whose behalf this code runs, or the empty string."""
    found = CURRENT.get()
    return found.origin if found is not None else ""


class _Door:
    client: Callable[[], Context] | None = None


def provide_client(boot: Callable[[], Context]) -> None:
    """Say how a process that is no actor gets its context (called by `runtime.hosts` and by workers)."""
    _Door.client = boot


def _client_context() -> Context:
    if _Door.client is None:
        raise RuntimeError("no meshbook client in this process: import meshbook, not its parts, to get one on demand")
    return _Door.client()
