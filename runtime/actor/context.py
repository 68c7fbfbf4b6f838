"""Who is running: `context()`, `current_rank()`, `current_size()`. One context per message, held in a ContextVar.

The only module-level state is the door at the bottom: how a process that is no actor gets its client.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from meshbook.runtime.geometry import Extent, Point
from meshbook.runtime.monarch_texts import NO_REASON

if TYPE_CHECKING:
    from meshbook.runtime.actor.future import Future

EMPTY = Extent((), ())


class Control(Protocol):
    """What an instance asks of whatever hosts it."""

    def stop_itself(self, reason: str) -> None: ...
    def abort_itself(self, reason: str) -> None: ...
    def kill_itself(self, reason: str) -> None: ...


class Waiter(Protocol):
    """An actor that handles one message, and no other while that one waits for an answer."""

    def begin_wait(self, future: Future[Any], *, blocking: bool, bounded: bool) -> bool:
        """Whether it is the message itself that waits, and not a thread or task that it started.

        DeadlockError where the answer can never come. `blocking`: its event loop, too; `bounded`: with a time limit.
        """

    def end_wait(self) -> None:
        """After a `begin_wait` that was true; asyncio.CancelledError where the message was cancelled meanwhile."""


class Instance:
    """An actor as it sees itself: its name, its rank in the mesh it was spawned on, and the node that hosts it."""

    __slots__ = ("class_name", "control", "creator", "key", "name", "node", "rank", "spec")

    def __init__(
        self,
        key: str,
        class_name: str,
        rank: Point,
        node: Any,
        spec: Any = None,
        creator: Instance | None = None,
    ) -> None:
        self.key = key  # unique in its process
        self.name = name_of(key)
        self.class_name = class_name
        self.rank = rank
        self.node = node  # None for the creator of an actor, where that lives in another process
        self.spec = spec  # the place of this process: its mesh, rank and host (runtime.mesh.Birth), None for a client
        self.creator = creator  # the actor that spawned this one, None for what the client spawned
        self.control: Control | None = None

    @property
    def actor_id(self) -> str:
        """Unique in the run: the node, and the actor's name in it."""
        return f"{self.proc_id}/{self.key}"

    @property
    def proc_id(self) -> str:
        """The name of the process that it lives in."""
        return self.node.address.node if self.node is not None else ""

    @property
    def proc(self) -> Any:
        """The process that it lives in, as a ProcMesh without dimensions."""
        return self.node.places.proc()

    @property
    def proc_mesh(self) -> Any:
        """The processes among which its own is one: a ProcMesh; in a client that of its own process alone."""
        return self.node.places.proc_mesh()

    def stop(self, reason: str = "stopped by itself") -> None:
        """End this actor after the messages that it has been sent so far."""
        self._controlled().stop_itself(reason)

    def abort(self, reason: str | None = None) -> None:
        """Let this actor fail: what it is doing ends without an answer, and its owner is told the reason."""
        self._controlled().abort_itself(reason or NO_REASON)

    def kill(self, reason: str | None = None) -> None:
        """The same without `__cleanup__`."""
        self._controlled().kill_itself(reason or NO_REASON)

    def _controlled(self) -> Control:
        if self.control is None:
            raise RuntimeError(f"{self} is no actor of this process: only an actor ends itself")
        return self.control

    def __str__(self) -> str:
        above = "<root>" if self.creator is None else str(self.creator)
        return (
            above if self.class_name == "client" else f"{above}.{format_actor(self.class_name, self.name, self.rank)}"
        )


def format_actor(class_name: str, name: str, rank: Point) -> str:
    """`<module.Class name{'gpus': 1/2}>`, without a point where the mesh has no dimensions."""
    return f"<{class_name} {name}{rank if len(rank) else ''}>"


def name_of(key: str) -> str:
    """The name that the user gave an actor: `trainer` of `trainer-3@controller`, which is unique in its process."""
    unique, mark, _ = key.rpartition("@")
    return unique.rpartition("-")[0] if mark else key


def spawner_of(key: str) -> str:
    """The node that spawned an actor: `controller` of `trainer-3@controller`; empty for an actor of the runtime."""
    return key.rpartition("@")[2] if "@" in key else ""


class Context:
    """The context of one message. `message_rank` is the point in the mesh *that was called*, which may be a slice."""

    __slots__ = ("_place", "_point", "actor_instance", "origin", "waiter")

    def __init__(
        self,
        instance: Instance,
        place: tuple[int, tuple[str, ...], tuple[int, ...]] = (0, (), ()),
        origin: str = "",
        waiter: Waiter | None = None,
    ) -> None:
        self.actor_instance = instance
        self.origin = origin  # the execution (a notebook cell) on whose behalf this runs: output is routed by it
        self.waiter = waiter  # who is kept from other messages while this one waits
        self._place = place
        self._point: Point | None = None

    def waited_by(self, waiter: Waiter) -> Context:
        """The same, with somebody else who is told of the waits."""
        return Context(self.actor_instance, self._place, self.origin, waiter)

    @property
    def message_rank(self) -> Point:
        if self._point is None:  # made on demand: most endpoints never ask
            rank, labels, sizes = self._place
            self._point = Extent(labels, sizes).point(rank)
        return self._point

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function as if from this message."""
        token = CURRENT.set(self)
        try:
            return function(*arguments)
        finally:
            CURRENT.reset(token)


CURRENT: ContextVar[Context | None] = ContextVar("meshbook_context", default=None)


def context() -> Context:
    """The context of the message that is being handled; in a client (a script, a notebook) that of the client itself.

    The first use in a client starts its runtime.
    """
    found = CURRENT.get()
    return found if found is not None else client_context()


def current_rank() -> Point:
    """This actor's point within the mesh that the current message was sent to; the empty point in a client."""
    found = CURRENT.get()
    return found.message_rank if found is not None else EMPTY.point(0)


def current_size() -> dict[str, int]:
    """The sizes, by dimension, of the mesh that the current message was sent to; empty in a client."""
    return dict(current_rank().extent)


def current_actor_name() -> str:
    """Who runs here, in full: the actors above it, its class, name and rank, as in the messages of its `logger`."""
    return str(context().actor_instance)


def current_origin() -> str:
    """The execution on whose behalf this code runs, or the empty string."""
    found = CURRENT.get()
    return found.origin if found is not None else ""


# The run of the message that is being unpickled, where that is not the run of the code that reads it.
sender_run: ContextVar[str] = ContextVar("meshbook_sender_run", default="")


class _Door:
    client: Callable[[], Context] | None = None
    run: Callable[[], str] = staticmethod(lambda: "")
    join: Callable[[str], Context] | None = None


def provide_client(
    boot: Callable[[], Context], run: Callable[[], str] = lambda: "", join: Callable[[str], Context] | None = None
) -> None:
    """Say how a process that is no actor gets its context (called by `runtime.hosts` and by workers).

    `run` returns the run of that context, or "" while there is none yet; `join` returns a context in another run.
    """
    _Door.client, _Door.run, _Door.join = boot, staticmethod(run), join


def process_run() -> str:
    """The run of this process, by the URL of its first host; "" in a process that has started none yet."""
    return _Door.run()


def present_run() -> str:
    """The run that code here belongs to: that of the present actor, or of this process."""
    found = CURRENT.get()
    return str(found.actor_instance.node.home) if found is not None else process_run()


def context_in(run: str) -> Context:
    """The context in which this process uses meshes of that run; it joins another run than its own as a client.

    Raises SupervisionError where that is impossible.
    """
    if run == present_run():
        return context()
    if run == process_run():
        return client_context()
    if _Door.join is None:
        raise RuntimeError(f"{run} is another run, and this process cannot join it: import meshbook, not its parts")
    return _Door.join(run)


def client_context() -> Context:
    if _Door.client is None:
        raise RuntimeError("no meshbook client in this process: import meshbook, not its parts, to get one on demand")
    return _Door.client()
