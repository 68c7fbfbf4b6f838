"""The other hosts of a run in the agent of one: the gateway to them, and the agents to notify of local events.

The agent of a process reports its events to all other agents, and these report them to their workers. A mesh on several
hosts has a rendezvous for torch.distributed, which the agent of its first live host provides.
"""

from __future__ import annotations

import functools
import logging
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.errors import ExitReport
from meshbook.runtime.hosts.controllers import WORKER_REGISTRY
from meshbook.runtime.hosts.launch import AGENT
from meshbook.runtime.node.node import Node
from meshbook.runtime.resources import NameLookup, address_towards, free_port, interface_of
from meshbook.runtime.transport.gateway import Gateway
from meshbook.runtime.transport.home import Home, LaneRequest, describe, host_of, ip_of
from meshbook.runtime.wire.messages import Address

RENDEZVOUS = "rendezvous"  # the actor of every agent by which the ranks of a mesh find each other
REMEMBERED = 1000  # meshes; older ones are dropped, since their processes have started long ago
logger = logging.getLogger(__name__)


class RemoteAgents:
    """The other agents of a run. `end` ends this host: its controller is gone, or has dropped it."""

    def __init__(self, node: Node, home: Home) -> None:
        self._node = node
        self._home = home
        self.end: Callable[[], None] = lambda: None
        # Whether a worker loop that has started this agent stays: the client has drained this host, or is lost.
        self.loop_stays = False
        self._gateway: Gateway | None = None
        self._lookup = NameLookup()
        self._agents: dict[str, Address] = {}  # by the prefix of their host
        self._is_away = home.prefix != home.first  # from the first host
        self._linked: dict[str, Callable[[], None]] = {}  # by host: the callback for when its link is up
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    @property
    def agents(self) -> list[Address]:
        """The agents of the other hosts."""
        return list(self._agents.values())

    @property
    def has_gateway(self) -> bool:
        return self._gateway is not None

    @property
    def refused(self) -> int:
        """How often a connection from another host was refused."""
        return self._gateway.rejected_peers.count if self._gateway is not None else 0

    def new_rendezvous(self) -> dict[str, str]:
        """Return MASTER_ADDR and MASTER_PORT for a mesh whose first rank is here.

        Only this host can find a free port of its own. The port is not held until rank 0 binds it: if another process
        takes it in between, the bind fails with an error.
        """
        return {"MASTER_ADDR": self.ip, "MASTER_PORT": str(free_port(self.ip))}

    @property
    def ip(self) -> str:
        """The IP address at which other hosts reach this one; on the first host, its loopback address."""
        return ip_of(self._home.prefix) if self._is_away else "127.0.0.1"

    def ip_towards(self, node: Address) -> str:
        """Return the IP address at which this node, on any host, reaches this host. OSError if there is no route."""
        if self._is_away or not self._home.is_elsewhere(node):
            return self.ip
        ip = ip_of(host_of(node))
        try:
            return address_towards([ip])
        except OSError as error:
            raise OSError(f"this host has no route to {ip}") from error

    @property
    def network(self) -> dict[str, str]:
        """The variables that select the network of torch's collectives, if there is a choice, and limit its lookups."""
        name = interface_of(self.ip) if self._is_away else ""
        found = {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name} if name else {}
        if not self._lookup.is_slow():
            return found
        # To connect to its store and to choose an interface, torch looks up the names of this host's addresses, and its
        # address. Without an answer, gloo chooses the loopback interface as well, which serves a run on one host.
        alone = {} if self._is_away or self._gateway is not None else {"GLOO_SOCKET_IFNAME": interface_of(self.ip)}
        return {"RES_OPTIONS": "timeout:1 attempts:1", **alone, **found}

    def open(self, gateway: Gateway) -> None:
        """Allow other hosts from now on."""
        self._gateway = gateway
        if self._is_away:
            self._agents[self._home.first] = Address(AGENT, f"{self._home.first}{AGENT}")
        threading.Thread(target=self._run_tasks, name="meshbook agent tasks", daemon=True).start()
        gateway.start(self._home, self)

    def link(self, agent: Address, *, dial: bool, linked: Callable[[], None]) -> None:
        """Link to the host of this agent; `linked` is called once the link is up."""
        assert self._gateway is not None
        host = host_of(agent)
        self._agents[host] = agent
        self._node.routes.trust(agent)
        self._linked[host] = linked
        self._gateway.link(host, dial=dial)

    def lose(self, host: str, why: str) -> None:
        """Drop a host that has left the run or is lost."""
        self._agents.pop(host, None)
        if self._gateway is not None:
            self._gateway.remove_host(host, why)

    def knows_end_of(self, node: str) -> bool:
        """Whether this agent reports the end of a node to agents that join later; the first host's reports all."""
        address = self._node.routes.find(node)
        return not self._is_away or (address is not None and host_of(address) == self._home.prefix)

    def hand_over(self, incarnation: int) -> None:
        """Forward the frames for the controller to the incarnation after this one."""
        if self._gateway is not None:
            self._gateway.forget(self._node.controller.node, incarnation)

    def forget(self, report: ExitReport) -> None:
        """Handle the end of a process of this host."""
        if self._gateway is not None:
            self._gateway.forget(report.node, report.incarnation)

    def note_end(self, report: ExitReport) -> None:
        """Handle the end of a process of another host."""
        if self._gateway is not None and report.incarnation >= 0:
            self._gateway.close_stream(report.node, report.incarnation)

    def run(self, task: Callable[[], None]) -> None:
        """Run functions that may block, one after the other, on a thread of their own."""
        self._tasks.put(task)

    def _run_tasks(self) -> None:
        while True:
            task = self._tasks.get()
            try:
                task()
            except Exception:  # later tasks report deaths, and hosts that are silent
                logger.exception("a task for other hosts failed")

    def close(self, why: str) -> None:
        """Leave the run: close the gateway."""
        if self._gateway is not None:
            self._gateway.close(why)

    # -- calls of the gateway, on its thread -----------------------------------------------

    def attached(self, host: str) -> None:
        if (linked := self._linked.pop(host, None)) is not None:
            self.run(linked)

    def silent(self, host: str, seconds: float) -> None:
        if host == self._home.first:
            self._end_without_first()
            return
        notify, controller, own = self._node.calls.notify, self._node.controller, self._node.address.node
        self.run(functools.partial(notify, controller, WORKER_REGISTRY, "silent", host, seconds, own))

    def dismissed(self, host: str, why: str) -> None:
        if self._is_away:
            self._end_without_first()

    def left(self, host: str, why: str) -> None:
        if host == self._home.first:
            self._end_without_first()

    def _end_without_first(self) -> None:
        self.loop_stays = True
        self.end()

    def stranded(self, request: LaneRequest) -> None:
        node = request.to.node
        hint = f"its host ({describe(host_of(request.to))}) is not part of this run, or has left it"
        report = self._node.peers.report_of(node)
        if report is None and host_of(request.to) in self._agents:
            return  # the host is back, and the sender is about to be notified
        report = report or ExitReport(node, 0, None, hint=hint)
        self.run(functools.partial(self._node.peers.announce_down, report, [request.sender]))


class RendezvousActor(Actor):
    """Provides the rendezvous of each mesh. Hosted inline: it answers while this agent waits for another host."""

    def __init__(self, make: Callable[[], dict[str, str]]) -> None:
        self._make = make
        self._known: OrderedDict[str, dict[str, str]] = OrderedDict()

    @endpoint
    def find(self, mesh: str) -> dict[str, str]:
        """Return MASTER_ADDR and MASTER_PORT of this mesh, the same for every caller."""
        if mesh not in self._known:
            self._known[mesh] = self._make()
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return self._known[mesh]
