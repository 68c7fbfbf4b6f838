"""The host agent: one process per host. It starts workers for its controller, watches them, and ends with it.

Its main thread watches two things: standard input, whose end means that the controller is gone, and the fork server.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from meshbook.runtime.actor.context import Context, Instance, provide_client
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.actor.ports import Port
from meshbook.runtime.errors import ExitReport, MeshbookError
from meshbook.runtime.geometry import SCALAR
from meshbook.runtime.hosts.clients import Clients
from meshbook.runtime.hosts.controllers import WORKER_REGISTRY
from meshbook.runtime.hosts.forkserver_client import ForkServerClient, execute_server, fork_server
from meshbook.runtime.hosts.launch import (
    AgentAnswer,
    AgentSpec,
    RemoteAgentSpec,
    RunFolder,
    decode_agent_spec,
    encode_agent_answer,
    environment_on_host,
    make_folder,
)
from meshbook.runtime.hosts.lifeline import LineReader
from meshbook.runtime.hosts.linux import adopt_orphans
from meshbook.runtime.hosts.observer import OBSERVER, Observer
from meshbook.runtime.hosts.process_sampler import VITALS_SENDER, VitalsSender, make_meter
from meshbook.runtime.hosts.py_spy import PROFILER, Profiler
from meshbook.runtime.hosts.remote_agents import RENDEZVOUS, RemoteAgents, RendezvousActor
from meshbook.runtime.hosts.run_lease import RunLease
from meshbook.runtime.hosts.spares import OnSpare
from meshbook.runtime.hosts.start_agent import LOG, Started
from meshbook.runtime.hosts.worker_loop import LOOP_STAYS
from meshbook.runtime.hosts.workers import Ask, EndedWorker, OnExit, Workers
from meshbook.runtime.memory.process_identity import RunMembership
from meshbook.runtime.mesh.hosts import HOST, HostActor
from meshbook.runtime.mesh.process_actor import PROCESS
from meshbook.runtime.mesh.worker_specs import MeshSpec, WorkerSpec, is_import_alike
from meshbook.runtime.mesh.workspaces import WORKSPACE, WorkspaceActor
from meshbook.runtime.node.call_table import Target
from meshbook.runtime.node.control import CONTROL
from meshbook.runtime.node.node import Node
from meshbook.runtime.rdma.data_plane import DataPlane
from meshbook.runtime.resources import address_towards, count_gpus, raise_file_limit
from meshbook.runtime.telemetry.events import Kind
from meshbook.runtime.telemetry.output import TELEMETRY, UnsentOutput
from meshbook.runtime.transport.curve import KeyPair
from meshbook.runtime.transport.gateway import Gateway
from meshbook.runtime.transport.home import Home, host_of
from meshbook.runtime.transport.io_loop import IoLoop
from meshbook.runtime.transport.unix import UnixTransport
from meshbook.runtime.wire.messages import Address

logger = logging.getLogger(__name__)
REMAINS_SECONDS = 1.0


def main(received: bytes = b"", server: Started | None = None) -> None:
    """Serve until the controller is gone.

    On the controller's host `start_agent` calls this, with the bytes that it has read and the fork server that it has
    started.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the controller
    raise_file_limit()  # for the agent, and for the workers, which may connect to each other
    adopt_orphans()  # processes that workers leave behind are reparented to the agent, which ends them with the run
    line = LineReader(sys.stdin.fileno(), received)
    spec = decode_agent_spec(line.first())
    if spec.away is None:
        folder = RunFolder(Path(spec.folder))
        serve(spec, folder, None, line, first_servers(spec, folder, server), IoLoop())
        return
    if (ours := sys.version_info[:2]) != spec.away.python:
        theirs = ".".join(map(str, spec.away.python))
        answer(
            AgentAnswer(
                error=f"{sys.executable} is Python {ours[0]}.{ours[1]}, and the controller's is {theirs}: name an "
                f"interpreter of that version on the host by python="
            )
        )
        sys.exit(1)
    os.environ.update(spec.away.environment)
    try:
        folder = make_folder(spec.settings, secrets.token_hex(4))
        servers = first_servers(spec, folder, server)
        away = spec.away
        ip = away.address or address_towards(away.towards)
        loop = IoLoop()
        gateway = Gateway(away.keys, spec.settings, listen_at=ip, loop=loop)
    except (OSError, MeshbookError) as error:
        answer(AgentAnswer(error=str(error)))
        sys.exit(1)
    serve(spec, folder, gateway, line, servers, loop)


def first_servers(spec: AgentSpec, folder: RunFolder, started: Started | None) -> dict[bool, ForkServerClient]:
    """Return the fork server that this agent begins with, by whether it is warm. One without imports is forked here.

    Call this before the process has a thread or a ZeroMQ context, which no fork server may have.
    """
    if started is not None:
        return {spec.is_warm: ForkServerClient(*started, folder.path / LOG, spec.settings.stderr_lines)}
    if spec.is_warm and spec.settings.preload:
        return {spec.is_warm: execute_server(folder.path, spec.settings, is_warm=True)}
    return {spec.is_warm: fork_server(folder, spec.settings)}


def serve(
    spec: AgentSpec,
    folder: RunFolder,
    gateway: Gateway | None,
    line: LineReader,
    servers: Mapping[bool, ForkServerClient],
    loop: IoLoop,
) -> None:
    """Run as this agent until its controller is gone, then end the process. With a gateway: on another host."""
    home = Home.of_first_host(folder.path)
    if gateway is not None:
        home = Home(folder.path, gateway.prefix, host_of(spec.controller))
    # The agent waits for no peer: a worker that is stopped must not delay the reports of other deaths.
    without_limit = msgspec.structs.replace(spec.settings, high_water_mark=sys.maxsize)
    node = Node(UnixTransport(spec.node, home, without_limit, loop), spec.run, spec.settings)
    provide_client(lambda: Context(Instance("agent", "agent", SCALAR.point(0), node)))
    others = RemoteAgents(node, home)

    def make_workers(*callbacks: Any) -> Workers:
        return Workers(folder.path, spec.settings, *callbacks, servers=servers)

    workers, clients = attend(node, spec, folder.path, make_workers, others)
    if gateway is None:
        clients.open()

        def here() -> list[Address]:
            return [*workers.addresses(), *clients.addresses()]

        workers.serve(RunLease(spec, line, node, here, workers, others.hand_over))
    else:
        others.open(gateway)
        gateway.link(home.first, dial=False)
        answer(AgentAnswer(address=node.address))
        workers.serve(line)
    others.close("its agent has ended")
    folder.close()
    # Every worker is gone and no peer listens: there is nothing to clean up or wait for.
    os._exit(LOOP_STAYS if others.loop_stays else 0)


def answer(line: AgentAnswer) -> None:
    """Send the answer to the controller; later output of this process goes to the log."""
    os.write(1, encode_agent_answer(line))
    os.dup2(2, 1)


def attend(
    node: Node,
    spec: AgentSpec,
    folder: Path,
    make_workers: Callable[[Ask, OnExit, OnSpare], Workers],
    others: RemoteAgents,
) -> tuple[Workers, Clients]:
    """Make this node the node of an agent, and start receiving messages; the caller serves the workers.

    On the first host of a run the caller also lets clients connect.
    """
    node.controller = spec.controller
    node.routes.trust(spec.controller)

    def ask_to_leave(worker: Address, reason: str, fence: str) -> None:
        node.calls.notify(worker, PROCESS, "stop", reason, fence)

    notice_lock = threading.Lock()  # so that a peer receives the end of an incarnation before the start of the next

    started: set[str] = set()
    host = spec.away.host if spec.away is not None else ""
    remains_seconds = REMAINS_SECONDS

    def on_exit(ended: Sequence[EndedWorker], living: list[Address]) -> None:
        nonlocal remains_seconds
        for each in ended:
            others.forget(each.report)
            if each.remains is not None:  # before the report of its end, which fails the cell that shows the output
                is_sent = send_remains(node, each.remains, within=remains_seconds)
                remains_seconds = REMAINS_SECONDS if is_sent else 0.0  # no wait while the controller receives nothing
        reports = [dataclasses.replace(each.report, host=host) for each in ended]
        with notice_lock:
            node.peers.announce_all_down(reports, [spec.controller, *others.agents, *living, *clients.addresses()])
            started.difference_update([report.node for report in reports])

    def on_client_end(report: ExitReport) -> None:
        with notice_lock:
            started.add(report.node)  # it was on this host
            everyone = *others.agents, *workers.addresses(), *clients.addresses()
            node.peers.announce_down(report, [spec.controller, *everyone])
            started.discard(report.node)
        workers.stop_owned_by(report.node)

    def pass_on(report: ExitReport) -> None:
        """Pass on the end of a process of another host to the workers here, and stop what it owned here."""

        def tell() -> None:
            node.peers.announce_down(report, [*workers.addresses(), *clients.addresses()])
            workers.stop_owned_by(report.node)

        if report.node not in started:
            others.note_end(report)
            others.run(tell)

    def on_spare(kind: Kind, mesh: str, ranks: Sequence[int], text: str) -> None:
        # On the I/O thread, which does not wait for a controller that receives nothing.
        node.loop.call_soon(functools.partial(node.send_event, kind, mesh, mesh, ranks, text))

    workers = make_workers(ask_to_leave, on_exit, on_spare)
    clients = Clients(node, folder, on_client_end)
    others.end = workers.finish
    node.peers.when_down.append(pass_on)
    node.data_plane = DataPlane(node, folder, node.address)
    node.data_plane.serve_host(others.ip_towards, RunMembership(folder).includes)
    node.actors.host_inline(RENDEZVOUS, RendezvousActor(others.new_rendezvous))

    make_agent = functools.partial(Agent, node, workers, clients, notice_lock, started, others, spec.away)
    node.actors.host(HOST, make_agent, class_name="HostActor").start(lambda error: None)
    node.actors.host(OBSERVER, lambda: Observer(workers.pid_of)).start(lambda error: None)
    node.actors.host(WORKSPACE, WorkspaceActor).start(lambda error: None)
    meter = make_meter(host, folder)
    node.actors.host(VITALS_SENDER, lambda: VitalsSender(node, workers.living, meter)).start(lambda error: None)
    node.actors.host(PROFILER, lambda: Profiler(workers.pid_of)).start(lambda error: None)
    node.start()
    return workers, clients


def send_remains(node: Node, remains: UnsentOutput, *, within: float = REMAINS_SECONDS) -> bool:
    """Send the controller the output that a process had not sent when it ended; return whether that was possible."""
    telemetry = Target(node.controller, TELEMETRY)
    try:
        # A controller that receives nothing must not block this thread, which watches all workers.
        node.calls.send([telemetry], "output", ((remains,), {}), SCALAR, None, within=within)
    except (MeshbookError, TimeoutError) as error:
        logger.warning("the last output of %s could not be sent: %s", remains.node, error)
        return False
    return True


class Agent(HostActor):
    """The host actor of this process."""

    def __init__(
        self,
        node: Node,
        workers: Workers,
        clients: Clients,
        notice_lock: threading.Lock,
        started: set[str],
        others: RemoteAgents,
        away: RemoteAgentSpec | None,
    ) -> None:
        self._node = node
        self._workers = workers
        self._clients = clients
        self._notice_lock = notice_lock
        self._started = started  # the workers started here that are not known to have ended
        self._others = others
        self._away = away

    @endpoint
    def spawn_procs(self, specs: list[WorkerSpec]) -> None:
        owner = specs[0].world.owner
        # Before any start is announced: this call fails if the host that holds the rendezvous is lost meanwhile.
        rendezvous = self._others.network | self._rendezvous_of(specs[0].world)
        if self._node.peers.report_of(owner) is not None:  # the owner sent the request, and died
            why = f"its owner has ended ({owner})"
            reports = [
                ExitReport(spec.address.node, 0, None, stopped=why, incarnation=spec.incarnation) for spec in specs
            ]
            self._node.peers.announce_all_down(reports, [self._node.controller, *self._here()])
            return
        # Announced before it is done: if this process is killed now, the controller still knows which workers are lost.
        names = [spec.address.node for spec in specs]
        self._node.calls.notify(self._node.controller, WORKER_REGISTRY, "starting", self._node.address.node, names)
        self._started.update(names)
        for spec in specs:
            if spec.incarnation:
                self._notify_restarted(spec)
        # A new process has received no restart notices, and must not mistake a peer for its previous incarnation.
        incarnations = self._node.routes.incarnations()
        self._workers.start([self._inform(spec, rendezvous, incarnations) for spec in specs])
        if self._node.peers.report_of(owner) is not None:  # the owner died meanwhile, before there was anything to end
            self._workers.stop_owned_by(owner)

    def _inform(self, spec: WorkerSpec, rendezvous: dict[str, str], incarnations: dict[str, int]) -> WorkerSpec:
        """Return the worker spec completed with the values that only its agent has."""
        world = msgspec.structs.replace(_world_here(spec.world, self._away), rendezvous=rendezvous)
        return msgspec.structs.replace(spec, world=world, incarnations=incarnations)

    def _notify_restarted(self, spec: WorkerSpec) -> None:
        """Notify all nodes of a restart: they forget the end of the previous incarnation before the new one sends."""
        with self._notice_lock:
            self._notify_incarnation(spec.address, spec.incarnation, [self._node.controller])
            hosts = [Target(agent, HOST) for agent in self._others.agents]
            if hosts:
                self._node.calls.send(hosts, "restarted", ((spec.address, spec.incarnation), {}), SCALAR, None)

    def _notify_incarnation(self, address: Address, incarnation: int, others: Sequence[Address]) -> None:
        self._node.peers.note_restarted(address, incarnation)
        targets = [Target(each, CONTROL) for each in (*others, *self._here())]
        if targets:
            self._node.calls.send(targets, "restarted", ((address, incarnation), {}), SCALAR, None)

    def _here(self) -> list[Address]:
        """The workers of this host, and the clients of the run that are here."""
        return [*self._workers.addresses(), *self._clients.addresses()]

    def _rendezvous_of(self, world: MeshSpec) -> dict[str, str]:
        """Return the rendezvous of this mesh's running ranks, or a new one; on several hosts, the first live host's."""
        if len(world.agents) == 1:
            known = self._workers.rendezvous_of(world.mesh)
            return known if known is not None else self._others.new_rendezvous()
        # This agent is one of the living.
        living = (agent for agent in world.agents if self._node.peers.report_of(agent.node) is None)
        found: dict[str, str] = self._node.calls.ask(next(living), RENDEZVOUS, "find", world.mesh).get()
        return found

    # -- of runs with more than one host ---------------------------------------------------

    @endpoint
    def open_gateway(self, keys: KeyPair) -> None:
        """Open the gateway to other hosts. Agents of other hosts have one from the beginning."""
        if not self._others.has_gateway:
            self._others.open(Gateway(keys, self._node.settings, loop=self._node.loop))

    @endpoint(explicit_response_port=True)
    def link(self, port: Port[None], agent: Address, dial: bool) -> None:
        """Link to the host of this agent. Answers once the link is up, or at once if the other side dials."""
        with self._notice_lock:  # so that the other agent gets each end once: now, or when it happens
            self._others.link(agent, dial=dial, linked=(lambda: port.send(None)) if dial else _nothing)
            ended = self._node.peers.ended.values()
            if reports := [report for report in ended if self._others.knows_end_of(report.node)]:
                self._node.peers.announce_all_down(reports, [agent])
        if not dial:
            port.send(None)

    @endpoint
    def lose(self, host: str, why: str) -> None:
        """Drop the link to another host, which has left the run or is lost."""
        self._others.lose(host, why)

    @endpoint
    def restarted(self, address: Address, incarnation: int) -> None:
        """Note that a process of another host is about to be restarted."""
        with self._notice_lock:
            self._notify_incarnation(address, incarnation, [])

    @endpoint
    def refused(self) -> int:
        """Return how often a connection from another host was refused."""
        return self._others.refused

    @endpoint
    def keep_spares(self, like: WorkerSpec, count: int) -> None:
        like = msgspec.structs.replace(like, world=_world_here(like.world, self._away))
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
    def shutdown(self, reason: str, loop_stays: bool = False) -> None:
        self._others.loop_stays = loop_stays
        self.stop_all(reason)
        self._workers.finish()

    @endpoint
    def kill(self, nodes: list[str], signal: int, sender: str = "") -> None:
        self._workers.signal(nodes, signal, sender)

    @endpoint
    def clients(self) -> int:
        return len(self._clients.addresses())

    @endpoint
    def neighbours(self) -> tuple[list[Address], list[Address]]:
        return list(self._workers.addresses()), self._others.agents

    @endpoint
    def gpus(self) -> int:
        return count_gpus()


def _nothing() -> None:
    """Do nothing: no caller waits for the link."""


def _world_here(world: MeshSpec, away: RemoteAgentSpec | None) -> MeshSpec:
    """Return the data of a mesh with the environment of its workers on this host, and the fork server that suits it."""
    environment = _environment_here(world, away)
    is_warm = world.is_warm and is_import_alike(environment, os.environ)
    return msgspec.structs.replace(world, environment=environment, is_warm=is_warm)


def _environment_here(world: MeshSpec, away: RemoteAgentSpec | None) -> dict[str, str]:
    """Return the environment of this mesh's workers on this host."""
    if away is None:
        return world.environment
    if away.is_local:
        return {**world.environment, **away.environment, **world.chosen_variables}
    return environment_on_host(
        world.environment, os.environ, configured=away.environment, chosen=world.chosen_variables
    )


if __name__ == "__main__":
    main()
