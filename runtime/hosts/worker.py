"""A worker: the life of one process of a mesh, from its birth to its exit.

The main thread runs what asks for it (cells: signals, CUDA and matplotlib want the main thread); one thread receives,
one answers for the process while the main thread is busy, one follows the output.
"""

from __future__ import annotations

import faulthandler
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from meshbook.runtime.actor.context import Context, Instance, provide_client
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.geometry import Extent
from meshbook.runtime.mesh.birth import Birth
from meshbook.runtime.mesh.procs import PROCESS, ProcessActor
from meshbook.runtime.node.node import Node, Target
from meshbook.runtime.telemetry.capture import Capture
from meshbook.runtime.telemetry.output import TELEMETRY, OutputChunk
from meshbook.runtime.transport.zeromq import ZmqTransport
from meshbook.runtime.wire import pickling

NOWHERE = Extent((), ())


def run(birth: Birth, folder: Path) -> None:
    """Be this worker until told to stop; returns, so that interpreter finalisers run."""
    faulthandler.enable(file=2)  # a segmentation fault leaves Python's stack on stderr, where the agent reads it
    limit_threads(birth)
    world = birth.world
    node = Node(ZmqTransport(birth.address.node, birth.address.url, world.settings), world.run, world.settings)
    node.controller, node.place = world.controller, birth
    node.trust(world.controller)
    node.trust(world.agent)
    provide_client(lambda: Context(Instance("worker", "worker", NOWHERE.point(0), node, birth)))
    capture = Capture(_sender(node), world.mesh, birth.rank, folder, birth.address.node)
    capture.install()
    node.capture = capture
    main = MainThread()
    node.run_on_main = main.submit
    if world.bootstrap:
        pickling.loads([world.bootstrap], "bootstrap")()
    place = Extent(world.labels, world.sizes).point(birth.rank)
    node.host(PROCESS, lambda: Process(node, main), rank=place, class_name="ProcessActor").start(lambda error: None)
    node.start()
    main.run()
    capture.close()
    node.close()


def limit_threads(birth: Birth) -> None:
    """Share the cores among the workers of this host; the variable is for the processes that a worker starts."""
    threads = max(1, (os.cpu_count() or 1) // birth.local_size)
    if "OMP_NUM_THREADS" in os.environ:
        return
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(threads)


def _sender(node: Node) -> Callable[[OutputChunk], None]:
    target = [Target(node.controller, TELEMETRY)]

    def send(chunk: OutputChunk) -> None:
        node.call(target, "output", ((chunk,), {}), NOWHERE, None)

    return send


class MainThread:
    """The work of the main thread: one thing after the other, until there is no more."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def submit(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def end(self) -> None:
        self._work.put(None)


class Process(ProcessActor):
    """The answers of this process."""

    def __init__(self, node: Node, main: MainThread) -> None:
        self._node = node
        self._main = main

    @endpoint
    def ready(self) -> int:
        return os.getpid()

    @endpoint
    def stop(self, reason: str) -> None:
        # The main thread may be serving an actor: that one ends first, in its turn, and then the thread is free.
        self._node.stop_hosted(reason, keep=PROCESS)
        self._main.end()
