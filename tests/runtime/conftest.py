"""A `session`: a controller and workers as nodes of this very process, over each transport in turn."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import queue
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import pytest

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.context import CURRENT, Context, Instance
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.config import Settings
from meshbook.runtime.errors import ExitReport
from meshbook.runtime.geometry import SCALAR, Extent
from meshbook.runtime.hosts.in_process import close_with_actors
from meshbook.runtime.mesh.actors import ActorMesh
from meshbook.runtime.node.call_table import AllReplies, Target
from meshbook.runtime.node.node import Node
from meshbook.runtime.node.outbound import plan
from meshbook.runtime.transport import Transport
from meshbook.runtime.transport.home import Home
from meshbook.runtime.transport.memory import Switchboard
from meshbook.runtime.transport.unix import UnixTransport
from meshbook.runtime.wire.frames import Buffer
from tests.support import PATIENCE, Probe

A = TypeVar("A", bound=Actor)
Connect = Callable[[str, Settings], Transport]


class Gate:
    """Holds all callers until the test opens it. Pickled it stays the same: all nodes live in this process."""

    _known: ClassVar[weakref.WeakValueDictionary[int, Gate]] = weakref.WeakValueDictionary()

    def __init__(self) -> None:
        self.entered: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._leave: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._known[id(self)] = self

    def tell(self, note: Any = None) -> None:
        """Say that one has come."""
        self.entered.put(note)

    def pass_through(self, note: Any = None) -> Any:
        """Say that one has come, and wait for `open`."""
        self.tell(note)
        self._leave.get(timeout=PATIENCE)
        return note

    def wait_entered(self) -> Any:
        return self.entered.get(timeout=PATIENCE)

    def open(self, times: int = 1) -> None:
        """Let so many pass, now or when they come."""
        for _ in range(times):
            self._leave.put(None)

    def __reduce__(self) -> tuple[Any, ...]:
        return Gate._find, (id(self),)

    @classmethod
    def _find(cls, known_as: int) -> Gate:
        return cls._known[known_as]


@pytest.fixture
def gate() -> Gate:
    return Gate()


class AsyncProbe(Actor):
    """The same on a loop of its own."""

    def __init__(self) -> None:
        self.notes: list[Any] = []

    @endpoint
    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        value = function(*arguments)
        return await value if inspect.isawaitable(value) else value

    @endpoint
    async def note(self, what: Any) -> None:
        self.notes.append(what)

    @endpoint
    async def noted(self) -> list[Any]:
        return self.notes


class Session:
    """A controller, and workers on demand. The test itself is the client of the controller."""

    def __init__(self, connect: Connect, **settings: Any) -> None:
        self._connect = connect
        self._settings = settings
        self._serial = itertools.count()
        self._nodes: list[Node] = []
        self.controller = self.node("controller")

    def node(self, name: str, **settings: Any) -> Node:
        """A started node that knows no other, and is closed with the session."""
        chosen = Settings(**(self._settings | settings))
        node = Node(self._connect(name, chosen), "run", chosen)
        node.start()
        self._nodes.append(node)
        return node

    def workers(self, count: int, **settings: Any) -> list[Node]:
        return [self.node(f"worker-{next(self._serial)}", **settings) for _ in range(count)]

    def spawn(self, cls: type[A], *args: Any, on: list[Node] | None = None) -> A:
        """One actor on each of these nodes (on one new worker if none are given), in a dimension called `gpus`."""
        nodes = on if on is not None else self.workers(1)
        actor = f"{cls.__name__}-{next(self._serial)}"
        targets = [Target(node.address, actor, rank=rank) for rank, node in enumerate(nodes)]
        extent = Extent.of(gpus=len(nodes))
        return cast("A", spawn_actors(self.controller, targets, cls, *args, extent=extent))

    def spawn_probe(self, *on: Node) -> Probe:
        made = self.spawn(Probe, on=list(on) or None)
        if self.controller in on:  # a message of another node may overtake the controller's Spawn to itself
            cast("ActorMesh[Probe]", made).initialized.get(PATIENCE)
        return made

    def spawn_counted(self, node: Node | None = None) -> Probe:
        """A probe with a key as actors of the user have it: flow control counts the messages to it."""
        return self.spawn_counted_as("probe", Probe, node)

    def spawn_counted_as(self, name: str, cls: type[A], node: Node | None = None) -> A:
        """An actor with such a key."""
        chosen = node or self.workers(1)[0]
        targets = [Target(chosen.address, self.controller.supervision.name_actor(name))]
        return cast("A", spawn_actors(self.controller, targets, cls, name=name))

    def refer(self, cls: type[A], actor: str, node: Node) -> A:
        """The handle of an actor that need not exist."""
        return cast("A", ActorMesh(cls.__name__, cls, [Target(node.address, actor)], SCALAR.region))

    def declare_down(self, node: Node) -> ExitReport:
        """Tell the controller that this worker was killed, as its agent would."""
        report = ExitReport(node.address.node, 4711, -9)
        self.controller.peers.announce_down(report, ())
        return report

    def close(self) -> None:
        for node in reversed(self._nodes):  # the controller last: a node waits a moment for one that does not listen
            close_with_actors(node)


def spawn_actors(
    spawner: Node, targets: list[Target], cls: type[Actor], *args: Any, name: str = "", extent: Extent = SCALAR
) -> ActorMesh:
    """Spawn an actor at each target, as `ProcMesh.spawn` does."""
    reply_handler = AllReplies(extent.region)
    creation = plan(targets, (cls, args, {}), extent, on_main=False)
    spawner.calls.create(creation, range(len(targets)), reply_handler)
    initialized = reply_handler.future.then(lambda _: None)
    return ActorMesh(name or cls.__name__, cls, targets, extent.region, initialized)


class Received:
    """The frames that a transport receives, in their order. Starts the transport."""

    def __init__(self, transport: Transport) -> None:
        self._frames: queue.SimpleQueue[Buffer] = queue.SimpleQueue()
        transport.accept = self._frames.put
        transport.start()

    def take(self, count: int) -> list[bytes]:
        """Wait for this many frames and return them."""
        return [bytes(self._frames.get(timeout=PATIENCE)) for _ in range(count)]

    def is_empty(self) -> bool:
        """Whether `take` would wait now."""
        return self._frames.empty()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for sockets."""
    made = Path(tempfile.mkdtemp(prefix="mb", dir="/tmp"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(params=["memory", "unix"])
def connect(request: pytest.FixtureRequest, folder: Path) -> Connect:
    """Makes a transport for a node of this name."""
    if request.param == "memory":
        board = Switchboard()
        return lambda name, settings: board.transport(name, settings.high_water_mark)
    return lambda name, settings: UnixTransport(name, Home.of_first_host(folder), settings)


@pytest.fixture
def make_session(connect: Connect) -> Iterator[Callable[..., Session]]:
    """Makes the session of the test, with these settings; the test is its client."""
    with contextlib.ExitStack() as stack:

        def make(**settings: Any) -> Session:
            made = Session(connect, **settings)
            stack.callback(made.close)
            token = CURRENT.set(Context(Instance("client", "client", SCALAR.point(0), made.controller)))
            stack.callback(CURRENT.reset, token)
            return made

        yield make


@pytest.fixture
def session(make_session: Callable[..., Session]) -> Session:
    return make_session()


@pytest.fixture(params=[Probe, AsyncProbe])
def any_probe(request: pytest.FixtureRequest) -> type[Actor]:
    """The class of a probe, of either kind."""
    return cast("type[Actor]", request.param)
