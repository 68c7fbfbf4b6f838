"""A `world`: hosts, processes and actors as users have them; once in this very process, and once with real processes.

The tests here go through the numbered points of the specification, each in both worlds where it makes sense in both.
`in_memory` is the first alone (what needs the very objects of the test), `processes` the second (signals, exits).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import select
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import cloudpickle
import msgspec
import pytest

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.config import Settings
from meshbook.runtime.hosts import session as sessions
from meshbook.runtime.hosts.in_process import InProcessSession
from meshbook.runtime.hosts.session import Session, close_session, current_session
from meshbook.runtime.mesh.actors import current_node
from meshbook.runtime.mesh.host_ownership import when_ended
from meshbook.runtime.mesh.procs import ProcMesh
from tests.support import PATIENCE

A = TypeVar("A", bound=Actor)
SIGKILL = 9
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # gates travel to processes that have no such module


class Gate:
    """Holds all callers, in any process, until the test opens it; and receives what actors send to the test.

    Two FIFOs: a message that waits there, or a byte to go on with, is for exactly one reader, and in order.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    # -- for actors ------------------------------------------------------------

    def tell(self, note: Any = None) -> None:
        """Let the test know."""
        body = pickle.dumps(note)
        with opened(self.folder / "told") as fifo:
            os.write(fifo, len(body).to_bytes(2, "big") + body)  # in one piece: up to 4096 bytes are not divided

    def pass_through(self, note: Any = None) -> Any:
        """Let the test know, and wait until it opens."""
        self.tell(note)
        with opened(self.folder / "open") as fifo:
            take(fifo, 1, PATIENCE)
        return note

    async def pass_through_async(self, note: Any = None) -> Any:
        """The same on a loop, which goes on meanwhile; may be cancelled."""
        self.tell(note)
        loop = asyncio.get_running_loop()
        with opened(self.folder / "open") as fifo:
            ready = asyncio.Event()
            loop.add_reader(fifo, ready.set)
            try:
                while not take_nowait(fifo, 1):
                    ready.clear()
                    await ready.wait()
            finally:
                loop.remove_reader(fifo)
        return note

    # -- for the test ------------------------------------------------------------

    def wait_told(self) -> Any:
        """The next item: a caller that has arrived, or a note."""
        with opened(self.folder / "told") as fifo:
            return pickle.loads(take(fifo, int.from_bytes(take(fifo, 2, PATIENCE), "big"), PATIENCE))

    def told(self) -> list[Any]:
        """The items so far that were not waited for."""
        notes = []
        with opened(self.folder / "told") as fifo:
            while size := take_nowait(fifo, 2):
                notes.append(pickle.loads(take(fifo, int.from_bytes(size, "big"), PATIENCE)))
        return notes

    def open(self, times: int = 1) -> None:
        """Let so many pass, now or when they come."""
        with opened(self.folder / "open") as fifo:
            os.write(fifo, b"!" * times)


@contextlib.contextmanager
def opened(fifo: Path) -> Iterator[int]:
    # For both: so that opening does not wait for the other side, and reading does not end when that closes.
    descriptor = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def take(fifo: int, count: int, patience: float) -> bytes:
    end = time.monotonic() + patience
    poll = select.poll()
    poll.register(fifo, select.POLLIN)
    while not (found := take_nowait(fifo, count)):
        if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
            raise TimeoutError(f"nothing came to the gate in {patience:g} s")
    return found


def take_nowait(fifo: int, count: int) -> bytes:
    try:
        return os.read(fifo, count)
    except BlockingIOError:  # nothing there, or another was quicker
        return b""


class World:
    """What the tests need of a run; the test itself is its client."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.host = session.host
        self._folder = Path(tempfile.mkdtemp(prefix="mb-gates-"))
        self._held: list[int] = []  # the content of a FIFO stays while it is open somewhere
        self._gates: list[Gate] = []
        self._spawned: list[ProcMesh] = []

    @property
    def has_processes(self) -> bool:
        return not isinstance(self.session, InProcessSession)

    def procs(self, gpus: int = 2, per_host: dict[str, int] | None = None, **options: Any) -> ProcMesh:
        """A mesh that is stopped at the test's end; `options` are those of `spawn_procs`."""
        mesh = self.host.spawn_procs(per_host=per_host or {"gpus": gpus}, **options)
        self._spawned.append(mesh)
        return mesh

    def spawn(self, cls: type[A], *args: Any, gpus: int = 2, name: str = "", **kwargs: Any) -> A:
        """An actor on each process of a new mesh, by default under the name of its class in lower case."""
        return self.procs(gpus).spawn(name or cls.__name__.lower(), cls, *args, **kwargs)

    def gate(self) -> Gate:
        gate = Gate(self._folder / str(len(self._gates)))
        gate.folder.mkdir()
        for name in ("told", "open"):
            os.mkfifo(gate.folder / name)
            self._held.append(os.open(gate.folder / name, os.O_RDWR | os.O_NONBLOCK))
        self._gates.append(gate)
        return gate

    def kill(self, mesh: ProcMesh, number: int = SIGKILL) -> None:
        """End processes by a signal; when this returns, the test's own node has heard of it."""
        ended = when_ended(current_node(), [node.node for node in mesh.nodes])
        mesh.kill(number).get(PATIENCE)
        ended.get(PATIENCE)

    def be_impatient(self, seconds: float = 0.05) -> None:
        """In memory: kill processes that have not left by then. A test that holds an actor need not wait long."""
        if isinstance(self.session, InProcessSession):
            self.session.kill_late(seconds)

    def close(self) -> None:
        for gate in self._gates:
            gate.open(4096)  # those that are still held there
        for mesh in self._spawned:
            mesh.stop().get(PATIENCE)
        for descriptor in self._held:
            os.close(descriptor)
        shutil.rmtree(self._folder)


@pytest.fixture(scope="module")
def real_session() -> Iterator[Session]:
    """The session of this process, warm. Its workers import what they need; none needs torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MESHBOOK_PRELOAD", "")
        session = current_session()
    # The agent and the fork server are there from now on, so that no test is blamed for them.
    warm = session.host.spawn_procs()
    warm.initialized.get(PATIENCE)
    warm.stop().get(PATIENCE)
    yield session
    close_session()


# The scope lets all tests of a module run in the one world before the other one begins.
@pytest.fixture(scope="module", params=["memory", pytest.param("processes", marks=pytest.mark.process)])
def running(request: pytest.FixtureRequest) -> Session | None:
    return request.getfixturevalue("real_session") if request.param == "processes" else None


@pytest.fixture
def make_world(running: Session | None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., World]]:
    """Makes the world of a test that needs a session of its own, with these settings."""
    with contextlib.ExitStack() as stack:

        def make(**settings: Any) -> World:
            kind = InProcessSession if running is None else Session
            changed = msgspec.structs.replace(Settings.from_environment(), preload="", **settings)
            return _enter(kind(changed), monkeypatch, stack)

        yield make


@pytest.fixture
def world(running: Session | None, make_world: Callable[..., World]) -> Iterator[World]:
    """Both worlds, one after the other."""
    if running is None:
        yield make_world()
    else:
        with contextlib.closing(World(running)) as world:
            yield world


@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with contextlib.ExitStack() as stack:
        yield _enter(InProcessSession(), monkeypatch, stack)


@pytest.fixture
def processes(real_session: Session) -> Iterator[World]:
    """Real processes alone; the test carries `@pytest.mark.process`."""
    with contextlib.closing(World(real_session)) as world:
        yield world


def _enter(session: Session, monkeypatch: pytest.MonkeyPatch, stack: contextlib.ExitStack) -> World:
    """Put a session in the place of this process's own: `this_host()` and `context()` find it, on every thread."""
    stack.enter_context(contextlib.closing(session))
    monkeypatch.setattr(sessions._Current, "session", session)
    return stack.enter_context(contextlib.closing(World(session)))
