"""Ways that go by the owner's host agent, and by messages: real processes, whose ways are chosen for them."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from meshbook import Actor, RDMABuffer, endpoint
from meshbook.runtime.actor.context import CURRENT
from meshbook.runtime.config import OVERRIDES, Settings
from meshbook.runtime.errors import ActorError, SupervisionError
from meshbook.runtime.hosts.session import Session
from meshbook.runtime.rdma.pieces import PIECE
from tests.support import PATIENCE

SIZE = PIECE + 17
WAYS = ["host agent", "message"]
pytestmark = pytest.mark.process


class Owner(Actor):
    """Lends memory."""

    @endpoint
    def lend(self, size: int) -> RDMABuffer:
        self.data = pattern(size)
        self.buffer = RDMABuffer(self.data)
        return self.buffer

    @endpoint
    def drop(self) -> None:
        self.buffer.drop().get(PATIENCE)

    @endpoint
    def has(self, seed: int) -> bool:
        return bool((self.data == pattern(len(self.data), seed)).all())

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def hold(self, gate: str) -> None:
        """Keep Python from running in this process, until the test writes there. Opening it waits for that as well."""
        path = gate.encode()
        libc = ctypes.PyDLL(None)  # keeps the GIL
        libc.close(libc.open(path, os.O_WRONLY))  # its reader knows that Python is held by now
        libc.close(libc.open(path, os.O_RDONLY))


class Peer(Actor):
    """Reads and writes it."""

    @endpoint
    def read(self, buffer: RDMABuffer, offset: int = 0, length: int | None = None, timeout: float = PATIENCE) -> bool:
        size = buffer.size() - offset if length is None else length
        target = np.zeros(size, np.uint8)
        buffer.read_into(target, offset, length, timeout=timeout).get(PATIENCE)
        return bool((target == pattern(buffer.size())[offset : offset + size]).all())

    @endpoint
    def write(self, buffer: RDMABuffer, seed: int, timeout: float = PATIENCE) -> None:
        buffer.write_from(pattern(buffer.size(), seed), timeout=timeout).get(PATIENCE)

    @endpoint
    def way(self, buffer: RDMABuffer) -> str:
        return next(
            connection[3:].strip() for connection in buffer.explain().splitlines() if connection.startswith("->")
        )


def pattern(size: int, seed: int = 0) -> Any:
    return np.frombuffer(np.random.default_rng(seed).bytes(size), np.uint8).copy()


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Session, dict[str, Any]]]:
    """A session, and a process for each way, which knows no other one. All are there when the first test begins."""
    session = Session(Settings(runtime_dir=os.environ["MESHBOOK_RUNTIME_DIR"], preload="numpy"))
    token = CURRENT.set(session.context)
    peers: dict[str, Any] = {}
    for way in WAYS:
        with OVERRIDES.during({"rdma_backends": way}):
            procs = session.host.spawn_procs()
        procs.initialized.get(PATIENCE)
        peers[way] = procs.spawn("peer", Peer)
    CURRENT.reset(token)
    yield session, peers
    session.close()


@pytest.fixture
def session(shared: tuple[Session, dict[str, Any]]) -> Iterator[Session]:
    token = CURRENT.set(shared[0].context)
    yield shared[0]
    CURRENT.reset(token)


@pytest.fixture
def peers(shared: tuple[Session, dict[str, Any]]) -> dict[str, Any]:
    return shared[1]


@pytest.fixture
def owner(session: Session) -> Iterator[Any]:
    procs = session.host.spawn_procs()
    yield procs.spawn("owner", Owner)
    with contextlib.suppress(SupervisionError):  # the test may have ended it
        procs.stop().get(PATIENCE)


@pytest.fixture
def process(owner: Any) -> psutil.Process:
    return psutil.Process(owner.pid.call_one().get(PATIENCE))


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A pipe that a reader waits at."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    return path


@pytest.mark.parametrize("way", WAYS)
def test_bytes_arrive_as_they_are(owner: Any, peers: dict[str, Any], way: str) -> None:
    peer = peers[way]
    buffer = owner.lend.call_one(SIZE).get(PATIENCE)
    assert peer.way.call_one(buffer).get(PATIENCE).startswith(way)
    for offset, length in [(0, None), (SIZE - 1, 1), (5, 4096), (7, PIECE), (3, PIECE + 1)]:
        assert peer.read.call_one(buffer, offset, length).get(PATIENCE), (offset, length)
    peer.write.call_one(buffer, 1).get(PATIENCE)
    assert owner.has.call_one(1).get(PATIENCE)
    owner.drop.call_one().get(PATIENCE)
    for move in (peer.read.call_one(buffer), peer.write.call_one(buffer, 2)):
        with pytest.raises(Exception, match="was dropped"):
            move.get(PATIENCE)
    assert owner.has.call_one(1).get(PATIENCE)


def test_the_owner_takes_no_part(owner: Any, peers: dict[str, Any], process: psutil.Process, gate: Path) -> None:
    """By the agent: while C code holds the GIL of the owner, and while that is stopped. By messages it has to."""
    buffer = owner.lend.call_one(SIZE).get(PATIENCE)
    held = owner.hold.call_one(str(gate))
    with gate.open("rb"):
        assert peers["host agent"].read.call_one(buffer).get(PATIENCE)
        with pytest.raises(Exception, match=r"was not done after 0\.1 s"):
            peers["message"].read.call_one(buffer, timeout=0.1).get(PATIENCE)
        process.suspend()
        peers["host agent"].write.call_one(buffer, 3).get(PATIENCE)
        process.resume()
    with gate.open("wb"):
        held.get(PATIENCE)
    assert owner.has.call_one(3).get(PATIENCE)


@pytest.mark.parametrize("way", WAYS)
def test_an_owner_that_was_killed(owner: Any, peers: dict[str, Any], process: psutil.Process, way: str) -> None:
    buffer = owner.lend.call_one(SIZE).get(PATIENCE)
    assert peers[way].read.call_one(buffer).get(PATIENCE)
    process.kill()
    process.wait(PATIENCE)
    for move in (peers[way].read.call_one(buffer), peers[way].write.call_one(buffer, 1)):
        with pytest.raises(ActorError, match="raised OwnerGone"):
            move.get(PATIENCE)


def test_an_agent_that_is_stopped(session: Session, owner: Any, peers: dict[str, Any]) -> None:
    buffer = owner.lend.call_one(SIZE).get(PATIENCE)
    agent = psutil.Process(session._agent.pid)
    agent.suspend()
    moves = [peers["host agent"].read.call_one(buffer, timeout=0.2), peers["host agent"].write.call_one(buffer, 1, 0.2)]
    try:
        for move in moves:
            with pytest.raises(ActorError, match="raised TransferTimeout"):
                move.get(PATIENCE)
    finally:
        agent.resume()
    assert peers["host agent"].read.call_one(buffer).get(PATIENCE)


def test_the_controller_lends_to_workers(session: Session, peers: dict[str, Any]) -> None:
    for way in WAYS:
        data = pattern(SIZE)
        buffer = RDMABuffer(data)
        assert peers[way].read.call_one(buffer).get(PATIENCE)
        peers[way].write.call_one(buffer, 1).get(PATIENCE)
        assert (data == pattern(SIZE, 1)).all()
        buffer.drop().get(PATIENCE)
