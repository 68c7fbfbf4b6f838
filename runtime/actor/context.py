"""`context()`, `current_rank()`, `current_size()`: the actor and message that run here.

Each message has one context, held in a ContextVar. The only module-level state is `_ClientHooks` at the end: it
defines how a process that is not an actor gets its client context.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from meshbook.runtime.geometry import SCALAR, Extent, Point
from meshbook.runtime.monarch_texts import NO_REASON

if TYPE_CHECKING:
    from meshbook.runtime.actor.future import Future


class Control(Protocol):
    """The operations that an `Instance` needs from the object that hosts it."""

    def stop_itself(self, reason: str) -> None: ...
    def abort_itself(self, reason: str) -> None: ...
    def kill_itself(self, reason: str) -> None: ...


class Waiter(Protocol):
    """An actor that handles a message, and no other message while that one waits for an answer."""

    def begin_wait(self, future: Future[Any], *, blocking: bool, bounded: bool) -> bool:
        """Return whether the message itself waits, rather than a thread or task that it started.

        Raises DeadlockError if the answer can never arrive. `blocking`: the wait blocks the event loop as well;
        `bounded`: the wait has a time limit.
        """

    def end_wait(self) -> None:
        """End a wait for which `begin_wait` returned True. CancelledError if the message was cancelled."""


class Instance:
    """An actor's view of itself: its name, its rank in the mesh that was spawned, and the node that hosts it."""

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
        self.node = node  # None for a creator that lives in another process
        # The place of this process: its mesh, rank and host (a `runtime.mesh` WorkerSpec). None in a client.
        self.spec = spec
        self.creator = creator  # the actor that spawned this one; None if the client spawned it
        self.control: Control | None = None

    @property
    def actor_id(self) -> str:
        """The id of this actor, unique in the run: the node, and the actor's name on that node."""
        return f"{self.proc_id}/{self.key}"

    @property
    def proc_id(self) -> str:
        """The name of the process that hosts this actor."""
        return self.node.address.node if self.node is not None else ""

    @property
    def proc(self) -> Any:
        """The process that hosts this actor, as a ProcMesh without dimensions."""
        return self.node.places.proc()

    @property
    def proc_mesh(self) -> Any:
        """The ProcMesh that this actor's process belongs to; in a client, a ProcMesh of its own process only."""
        return self.node.places.proc_mesh()

    def stop(self, reason: str = "stopped by itself") -> None:
        """End this actor after the messages that were already sent to it."""
        self._controlled().stop_itself(reason)

    def abort(self, reason: str | None = None) -> None:
        """Fail this actor: its current message ends without an answer, and its owner receives the reason."""
        self._controlled().abort_itself(reason or NO_REASON)

    def kill(self, reason: str | None = None) -> None:
        """Fail this actor like `abort`, but skip `__cleanup__`."""
        self._controlled().kill_itself(reason or NO_REASON)

    def _controlled(self) -> Control:
        if self.control is None:
            raise RuntimeError(
                f"cannot end {self}: stop(), abort() and kill() work only inside the actor that they end"
            )
        return self.control

    def __str__(self) -> str:
        above = "<root>" if self.creator is None else str(self.creator)
        return (
            above if self.class_name == "client" else f"{above}.{format_actor(self.class_name, self.name, self.rank)}"
        )


def format_actor(class_name: str, name: str, rank: Point) -> str:
    """Return `<module.Class name{'gpus': 1/2}>`, without the point if the mesh has no dimensions."""
    return f"<{class_name} {name}{rank if len(rank) else ''}>"


def name_of(key: str) -> str:
    """Return the name that the user gave an actor: `trainer` for the key `trainer-3@controller`."""
    unique, mark, _ = key.rpartition("@")
    return unique.rpartition("-")[0] if mark else key


def spawner_of(key: str) -> str:
    """Return the node that spawned an actor: `controller` for `trainer-3@controller`; "" for actors of the runtime."""
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
        # The execution (of a notebook cell) that this code belongs to; output is routed by it.
        self.origin = origin
        self.waiter = waiter  # the actor that handles no other message while this one waits
        self._place = place
        self._point: Point | None = None

    def waited_by(self, waiter: Waiter) -> Context:
        """Return the same context with another waiter, which is notified of waits."""
        return Context(self.actor_instance, self._place, self.origin, waiter)

    @property
    def message_rank(self) -> Point:
        if self._point is None:  # created on demand: most endpoints never read it
            rank, labels, sizes = self._place
            self._point = Extent(labels, sizes).point(rank)
        return self._point

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the context of this message."""
        token = CURRENT.set(self)
        try:
            return function(*arguments)
        finally:
            CURRENT.reset(token)


CURRENT: ContextVar[Context | None] = ContextVar("meshbook_context", default=None)


def context() -> Context:
    """Return the context of the current message; in a client (a script, a notebook), the context of that client.

    The first call in a client starts its runtime.
    """
    found = CURRENT.get()
    return found if found is not None else client_context()


def current_rank() -> Point:
    """Return this actor's point in the mesh that the current message was sent to; the empty point in a client."""
    found = CURRENT.get()
    return found.message_rank if found is not None else SCALAR.point(0)


def current_size() -> dict[str, int]:
    """Return the sizes, by dimension, of the mesh that the current message was sent to; empty in a client."""
    return dict(current_rank().extent)


def current_actor_name() -> str:
    """Return the full name of the current actor: the actors above it, its class, name and rank, as in its logs."""
    return str(context().actor_instance)


def current_origin() -> str:
    """Return the execution that this code belongs to, or the empty string."""
    found = CURRENT.get()
    return found.origin if found is not None else ""


# The run of the message that is being unpickled, if it differs from the run of the code that reads it.
sender_run: ContextVar[str] = ContextVar("meshbook_sender_run", default="")


class _ClientHooks:
    client: Callable[[], Context] | None = None
    run: Callable[[], str] = staticmethod(lambda: "")
    join: Callable[[str], Context] | None = None


def provide_client(
    boot: Callable[[], Context], run: Callable[[], str] = lambda: "", join: Callable[[str], Context] | None = None
) -> None:
    """Define how a process that is not an actor gets its context. `runtime.hosts` and workers call this.

    `run` returns the run of that context, or "" while there is none; `join` returns a context in another run.
    """
    _ClientHooks.client, _ClientHooks.run, _ClientHooks.join = boot, staticmethod(run), join


def process_run() -> str:
    """Return the run of this process, by the URL of its first host; "" if this process has not started one yet."""
    return _ClientHooks.run()


def present_run() -> str:
    """Return the run that the calling code belongs to: the run of the current actor, or of this process."""
    found = CURRENT.get()
    return str(found.actor_instance.node.home) if found is not None else process_run()


def context_in(run: str) -> Context:
    """Return the context in which this process uses meshes of `run`. It joins a foreign run as a client.

    Raises SupervisionError if it cannot join.
    """
    if run == present_run():
        return context()
    if run == process_run():
        return client_context()
    if _ClientHooks.join is None:
        raise RuntimeError(f"this process cannot join run {run}: import meshbook, not only its submodules")
    return _ClientHooks.join(run)


def client_context() -> Context:
    if _ClientHooks.client is None:
        raise RuntimeError("this process has no meshbook client: import meshbook, not only its submodules")
    return _ClientHooks.client()
