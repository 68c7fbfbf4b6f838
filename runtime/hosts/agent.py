"""The host agent: one process per host. Starts workers for its controller, watches them, and ends with it.

Its main thread watches two things: standard input, whose end means that the controller is gone, and the fork server.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from meshbook.runtime.actor.context import Context, Instance, provide_client
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.errors import ExitReport
from meshbook.runtime.geometry import Extent
from meshbook.runtime.hosts.launch import AgentBirth, RunFolder
from meshbook.runtime.hosts.linux import adopt_orphans
from meshbook.runtime.hosts.machine import count_gpus, free_port
from meshbook.runtime.hosts.observer import OBSERVER, Observer
from meshbook.runtime.hosts.roster import ROSTER
from meshbook.runtime.hosts.workers import Ask, OnExit, OnSpare, Workers
from meshbook.runtime.mesh.birth import Birth
from meshbook.runtime.mesh.hosts import HOST, HostActor
from meshbook.runtime.mesh.procs import PROCESS
from meshbook.runtime.node.calls import Target
from meshbook.runtime.node.keeper import KEEPER
from meshbook.runtime.node.node import Node
from meshbook.runtime.telemetry.events import Kind
from meshbook.runtime.transport.home import Home
from meshbook.runtime.transport.zeromq import ZmqTransport
from meshbook.runtime.wire.messages import Address

NOWHERE = Extent((), ())


def main() -> None:
    """Serve until the controller is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the controller's
    adopt_orphans()  # what workers started and left behind comes here, and is ended with the run
    birth = msgspec.json.decode(sys.stdin.buffer.readline(), type=AgentBirth)
    folder = RunFolder(Path(birth.folder))
    home = Home.of_first_host(folder.path)
    node = Node(ZmqTransport(birth.address.node, home, birth.settings), birth.run, birth.settings)
    provide_client(lambda: Context(Instance("agent", "agent", NOWHERE.point(0), node)))
    workers = attend(node, birth, lambda *ways: Workers(folder.path, birth.settings, *ways))
    workers.serve(sys.stdin.fileno())
    folder.close()
    os._exit(0)  # every worker is gone and nobody listens: there is nothing left to tidy, and nothing to wait for


def attend(node: Node, birth: AgentBirth, make_workers: Callable[[Ask, OnExit, OnSpare], Workers]) -> Workers:
    """Make this node that of an agent, which takes messages from now on; the caller serves the workers."""
    node.controller = birth.controller
    node.trust(birth.controller)

    def ask_to_leave(worker: Address, reason: str, fence: str) -> None:
        node.call([Target(worker, PROCESS)], "stop", ((reason, fence), {}), NOWHERE, None)

    telling = threading.Lock()  # so that nobody hears of a new life before the end of the one before

    def on_exit(report: ExitReport, others: list[Address]) -> None:
        with telling:
            node.announce_down(report, [birth.controller, *others])

    def on_spare(kind: Kind, mesh: str, ranks: Sequence[int], text: str) -> None:
        node.tell_event(kind, mesh, mesh, ranks, text)

    workers = make_workers(ask_to_leave, on_exit, on_spare)
    node.host(HOST, lambda: Agent(node, workers, telling), class_name="HostActor").start(lambda error: None)
    node.host(OBSERVER, lambda: Observer(workers.pid_of)).start(lambda error: None)
    node.start()
    return workers


class Agent(HostActor):
    """The host actor of this process."""

    def __init__(self, node: Node, workers: Workers, telling: threading.Lock) -> None:
        self._node = node
        self._workers = workers
        self._telling = telling

    @endpoint
    def spawn_procs(self, births: list[Birth]) -> None:
        owner = births[0].world.owner
        if self._node.report_of(owner) is not None:  # it has asked, and died
            for birth in births:
                self._tell_unborn(birth, f"its owner has ended ({owner})")
            return
        # Said before it is done: should this process be killed now, the controller still knows who is lost with it.
        roster = Target(self._node.controller, ROSTER)
        names = [birth.address.node for birth in births]
        self._node.call([roster], "born", ((self._node.address.node, names), {}), NOWHERE, None)
        for birth in births:
            if birth.life:
                self._tell_reborn(birth)
        rendezvous = self._rendezvous(births[0].world.mesh)
        self._workers.start([_with_rendezvous(birth, rendezvous) for birth in births])

    def _tell_unborn(self, birth: Birth, why: str) -> None:
        report = ExitReport(birth.address.node, 0, None, stopped=why, life=birth.life)
        self._node.announce_down(report, [self._node.controller, *self._workers.addresses()])

    def _tell_reborn(self, birth: Birth) -> None:
        """Everybody forgets its end before it can be heard of."""
        with self._telling:
            self._node.note_reborn(birth.address, birth.life)
            everybody = [self._node.controller, *self._workers.addresses()]
            keepers = [Target(address, KEEPER) for address in everybody]
            self._node.call(keepers, "reborn", ((birth.address, birth.life), {}), NOWHERE, None)

    def _rendezvous(self, mesh: str) -> dict[str, str]:
        """That of the ranks of this mesh which live, else a new one.

        Only here is it known which port is free on this machine. Not held until rank 0 binds it: a port taken in
        between fails loudly there.
        """
        known = self._workers.rendezvous_of(mesh)
        return known if known is not None else {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}

    @endpoint
    def keep_spares(self, like: Birth, count: int) -> None:
        self._workers.keep_spares(like, count)

    @endpoint
    def spares(self, mesh: str) -> int:
        return self._workers.count_spares(mesh)

    @endpoint
    def stop_procs(self, nodes: list[str], reason: str, fence: str) -> None:
        self._workers.stop(nodes, reason, fence)

    @endpoint
    def stop_all(self, reason: str) -> None:
        """Stop every worker of this host, and wait until the last has ended."""
        for worker in self._workers.stop(self._workers.names(), reason):
            worker.ended.wait()

    @endpoint
    def shutdown(self, reason: str) -> None:
        self.stop_all(reason)
        self._workers.finish()

    @endpoint
    def kill(self, nodes: list[str], signal: int) -> None:
        self._workers.signal(nodes, signal)

    @endpoint
    def gpus(self) -> int:
        return count_gpus()


def _with_rendezvous(birth: Birth, rendezvous: dict[str, str]) -> Birth:
    return msgspec.structs.replace(birth, world=msgspec.structs.replace(birth.world, rendezvous=rendezvous))


if __name__ == "__main__":
    main()
