"""The host agent: one process per host. Starts workers for its controller, watches them, and ends with it.

Its main thread watches two things: standard input, whose end means that the controller is gone, and the fork server.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
from pathlib import Path

import msgspec

from meshbook.runtime.actor.context import Context, Instance, provide_client
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.errors import ExitReport
from meshbook.runtime.geometry import Extent
from meshbook.runtime.hosts.launch import AgentBirth, RunFolder
from meshbook.runtime.hosts.machine import count_gpus, free_port
from meshbook.runtime.hosts.workers import Workers
from meshbook.runtime.mesh.birth import Birth
from meshbook.runtime.mesh.hosts import HOST, HostActor
from meshbook.runtime.mesh.procs import PROCESS
from meshbook.runtime.node.node import Node, Target
from meshbook.runtime.transport.zeromq import ZmqTransport
from meshbook.runtime.wire.messages import Address

NOWHERE = Extent((), ())


def main() -> None:
    """Serve until the controller is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the controller's
    os.umask(0o077)
    birth = msgspec.json.decode(sys.stdin.buffer.readline(), type=AgentBirth)
    folder = RunFolder(Path(birth.folder))
    node = Node(ZmqTransport(birth.address.node, birth.address.url, birth.settings), birth.run, birth.settings)
    node.controller = birth.controller
    node.trust(birth.controller)
    provide_client(lambda: Context(Instance("agent", "agent", NOWHERE.point(0), node)))

    def on_exit(report: ExitReport, others: list[Address]) -> None:
        node.announce_down(report, [birth.controller, *others])

    workers = Workers(folder.path, birth.settings, on_exit)
    node.host(HOST, lambda: Agent(node, workers), class_name="HostActor").start(lambda error: None)
    node.start()
    watch(workers)
    workers.kill_all()
    folder.close()
    os._exit(0)  # every worker is gone and nobody listens: there is nothing left to tidy, and nothing to wait for


def watch(workers: Workers) -> None:
    """Serve the fork server's word until standard input ends."""
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin.buffer, selectors.EVENT_READ)
        selector.register(workers.channel, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin.buffer:
                    if not os.read(sys.stdin.fileno(), 4096):
                        return
                elif not workers.hear():
                    selector.unregister(workers.channel)


class Agent(HostActor):
    """The host actor of this process."""

    def __init__(self, node: Node, workers: Workers) -> None:
        self._node = node
        self._workers = workers

    @endpoint
    def spawn_procs(self, births: list[Birth]) -> None:
        # Only here is it known which port is free on this machine. Not held until rank 0 binds it: a port taken in
        # between fails loudly there, and MASTER_PORT given by the user wins.
        rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        self._workers.start([_with_environment(birth, rendezvous) for birth in births])

    @endpoint
    def stop_procs(self, nodes: list[str], reason: str) -> None:
        def ask(address: Address) -> None:
            self._node.call([Target(address, PROCESS)], "stop", ((reason,), {}), NOWHERE, None)

        self._workers.stop(nodes, reason, ask)

    @endpoint
    def stop_all(self, reason: str) -> None:
        """Stop every worker of this host."""
        self.stop_procs(self._workers.names(), reason)

    @endpoint
    def kill(self, nodes: list[str], signal: int) -> None:
        self._workers.signal(nodes, signal)

    @endpoint
    def gpus(self) -> int:
        return count_gpus()


def _with_environment(birth: Birth, defaults: dict[str, str]) -> Birth:
    world = birth.world
    world = msgspec.structs.replace(world, environment=defaults | world.environment)
    return msgspec.structs.replace(birth, world=world)


if __name__ == "__main__":
    main()
