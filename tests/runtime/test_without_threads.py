"""At the limit of threads: the caller gets an error, and what could not be started then is started later."""

from __future__ import annotations

import contextvars
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, cast

import pytest

from meshbook.runtime.actor.failure import MeshFailure
from meshbook.runtime.errors import TransferError
from meshbook.runtime.mesh.policies import Respawning, Restarts
from meshbook.runtime.node.ledger import OwnedMesh
from meshbook.runtime.rdma.memory_server import MemoryServer
from meshbook.runtime.rdma.nixl.scheduler import Steps, TransferScheduler
from meshbook.runtime.rdma.thread_pool import Threads
from meshbook.runtime.transport.io_loop import IoLoop
from tests.support import PATIENCE

TOO_MANY = "can't start new thread"


class Limit:
    """While it is reached, no thread can be started."""

    def __init__(self) -> None:
        self.is_reached = True
        self._start = threading.Thread.start

    def start(self, thread: threading.Thread) -> None:
        if self.is_reached:
            raise RuntimeError(TOO_MANY)
        self._start(thread)


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Limit:
    made = Limit()
    monkeypatch.setattr(threading.Thread, "start", lambda thread: made.start(thread))
    return made


@pytest.fixture
def done() -> queue.SimpleQueue[str]:
    return queue.SimpleQueue()


def check_tries_again(limit: Limit, ask: Callable[[], object], done: queue.SimpleQueue[str]) -> None:
    with pytest.raises(RuntimeError, match=TOO_MANY):
        ask()
    limit.is_reached = False
    ask()
    assert done.get(timeout=PATIENCE) == "done"


def test_an_io_loop_that_cannot_start_is_closed(limit: Limit, done: queue.SimpleQueue[str]) -> None:
    loop = IoLoop()
    with pytest.raises(RuntimeError, match=TOO_MANY):
        loop.start()
    loop.call_soon(lambda: done.put("callback"))
    loop.close()
    assert done.get(timeout=PATIENCE) == "callback"


@pytest.mark.parametrize("times", [1, 5])
def test_threads_for_transfers(limit: Limit, done: queue.SimpleQueue[str], times: int) -> None:
    """However often that failed, as many as are allowed can be started then."""
    threads = Threads(1, "transfers")
    for _ in range(times - 1):
        with pytest.raises(RuntimeError, match=TOO_MANY):
            threads.do(print)
    check_tries_again(limit, lambda: threads.do(lambda: done.put("done")), done)
    threads.close()


def test_one_thread_does_what_was_meant_for_two(limit: Limit, done: queue.SimpleQueue[str]) -> None:
    threads, gate = Threads(2, "transfers"), threading.Event()
    limit.is_reached = False
    threads.do(lambda: gate.wait(PATIENCE))
    limit.is_reached = True
    threads.do(lambda: done.put("done"))
    gate.set()
    assert done.get(timeout=PATIENCE) == "done"
    threads.close()


def test_turns(limit: Limit) -> None:
    def steps() -> Steps:
        yield True

    turns = TransferScheduler("turns")
    first: Future[None] = Future()
    turns.start(steps(), first)
    with pytest.raises(TransferError, match=TOO_MANY):
        first.result(PATIENCE)
    limit.is_reached = False
    second: Future[None] = Future()
    turns.start(steps(), second)
    assert second.result(PATIENCE) is None
    turns.close()


@pytest.fixture
def server() -> Iterator[MemoryServer]:
    made = MemoryServer(cast("Any", None), "folder", lambda mark: True)
    yield made
    made.close()


def test_the_memory_server(limit: Limit, server: MemoryServer) -> None:
    """A client that gets an address can connect: else it would wait until its timeout."""
    with pytest.raises(OSError, match=TOO_MANY):
        server.open("127.0.0.1")
    limit.is_reached = False
    door = server.open("127.0.0.1")
    with socket.create_connection((door.ip, door.port), PATIENCE) as connection:
        assert connection.recv(1)


def test_respawning(limit: Limit) -> None:
    """The owner hears of the failure as without a policy, and the next one is respawned."""
    failures: list[MeshFailure] = []
    owned_mesh = OwnedMesh(
        *("mesh-1", "mesh", "", {"mesh-1.0": 0}, cast("Any", None), cast("Any", None)),
        contextvars.copy_context(),
        cast("Any", None),
    )
    policy = Respawning("respawn", Restarts())
    policy.take(owned_mesh, owned_mesh.mark_failed(0, "it died"), failures.append)
    assert "it could not be respawned: can't start new thread" in failures[0].report()
    limit.is_reached = False
    looked = threading.Event()
    owned_mesh.has_failed_on = lambda node: looked.set()
    policy.take(owned_mesh, owned_mesh.last_failure("it died"), failures.append)
    assert looked.wait(PATIENCE)
