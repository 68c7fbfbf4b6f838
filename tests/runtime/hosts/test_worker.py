"""How a worker leaves, without an agent or a process."""

from __future__ import annotations

import queue
import threading
from typing import Any

import pytest

from meshbook.runtime.hosts.worker import MainThread, Process
from meshbook.runtime.mesh.process_actor import PROCESS
from meshbook.runtime.node.node import Node
from tests.support import PATIENCE


class Worker:
    """A node that serves until it is asked to leave; `left` gets an item when it has."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.left: queue.SimpleQueue[str] = queue.SimpleQueue()
        main = MainThread()
        node.actors.host(PROCESS, lambda: Process(node, main, None), class_name="ProcessActor").start(
            lambda error: None
        )
        self._thread = threading.Thread(target=self._run, args=(main,))
        self._thread.start()

    def _run(self, main: MainThread) -> None:
        main.run()
        self.left.put("left")

    def tell(self, sender: Node, endpoint: str, *arguments: str) -> None:
        sender.calls.notify(self.node.address, PROCESS, endpoint, *arguments)

    def join(self) -> None:
        self._thread.join(PATIENCE)


@pytest.fixture
def worker(session: Any) -> Any:
    [node] = session.workers(1)
    worker = Worker(node)
    yield worker
    worker.tell(session.controller, "stop", "the test is over")
    worker.join()


def wait_until_heard(session: Any, worker: Worker) -> None:
    """Return when it has handled what the controller has sent so far."""
    process = session.refer(Process, PROCESS, worker.node)
    process.ready.call_one().get(PATIENCE)


def test_it_leaves_on_request(session: Any, worker: Worker) -> None:
    worker.tell(session.controller, "stop", "enough")
    assert worker.left.get(timeout=PATIENCE) == "left"


@pytest.mark.parametrize("told", [("stop", "fence"), ("fence", "stop")])
def test_it_leaves_when_the_fence_is_there_too(session: Any, worker: Worker, told: tuple[str, str]) -> None:
    """Its sender had sent other messages before, by another path than the request to leave."""
    arguments = {"stop": ("enough", "f1"), "fence": ("f1",)}
    worker.tell(session.controller, "fence", "another")
    worker.tell(session.controller, told[0], *arguments[told[0]])
    wait_until_heard(session, worker)
    assert worker.left.empty()
    worker.tell(session.controller, told[1], *arguments[told[1]])
    assert worker.left.get(timeout=PATIENCE) == "left"


def test_what_came_before_the_fence_is_handled(session: Any, worker: Worker, gate: Any) -> None:
    """Later calls raise an error that the actor was stopped, and why."""
    probe = session.spawn_probe(worker.node)
    worker.tell(session.controller, "stop", "enough", "f1")
    wait_until_heard(session, worker)
    probe.run.broadcast(gate.tell, "handled")
    worker.tell(session.controller, "fence", "f1")
    assert gate.wait_entered() == "handled"
    assert worker.left.get(timeout=PATIENCE) == "left"
    assert "stopped: enough" in str(probe.run.call_one(abs, 1).exception(PATIENCE))
