"""Hosts other than the controller's: started by a launcher, linked to each other, watched, and ended with the session.

    launcher -> agent -> AgentAnswer("tcp://...") -> links between all hosts -> `HostMesh`

A host is lost when its agent ends, or when it sends nothing for the grace time. Its processes are then lost too, every
other host is notified, and later connections from it are refused. By then its agent has ended itself.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import queue
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from meshbook.runtime.actor.future import Future
from meshbook.runtime.config import Settings
from meshbook.runtime.errors import ExitReport, LaunchError, MeshbookError
from meshbook.runtime.geometry import Extent
from meshbook.runtime.hosts.controllers import WorkerRegistry
from meshbook.runtime.hosts.launch import AgentAnswer, AgentSpec, RemoteAgentSpec, read_agent_answer
from meshbook.runtime.hosts.launchers import UNKNOWN, AgentProcess, Launcher
from meshbook.runtime.interrupts import allow_interrupts, hold_interrupts
from meshbook.runtime.mesh.hosts import HOST, HostMesh, name_agent
from meshbook.runtime.mesh.worker_specs import is_agent_warm
from meshbook.runtime.node.node import Node
from meshbook.runtime.resources import own_addresses
from meshbook.runtime.telemetry.stderr_tail import last_lines
from meshbook.runtime.threads import get_within
from meshbook.runtime.transport.curve import KeyPair
from meshbook.runtime.transport.home import describe, host_of, ip_of
from meshbook.runtime.wire.messages import Address

AGENT_MODULE = "meshbook.runtime.hosts.agent"
LOOPBACK = "127.0.0.1"
LOOK_SECONDS = 0.1  # polling interval for the end of an agent that is being linked
Progress = Callable[[int, int], None]  # (hosts that are up, all hosts)


@dataclass(eq=False)
class RemoteHost:
    """One remote host, from its start to its end."""

    name: str
    node: str  # of its agent
    process: AgentProcess
    log: Path
    launcher: Launcher
    number: int  # in order of start
    is_local: bool  # whether it is on this machine
    address: Address | None = None  # of its agent, once it has answered
    trouble: str = ""  # why it was ended
    mesh: HostMesh | None = None
    watcher: threading.Thread | None = None
    over: bool = False

    @property
    def where(self) -> str:
        """The host's name and address, such as `gpu2 (10.0.0.2:40123)`."""
        return f"{self.name} ({describe(host_of(self.address))})" if self.address else self.name


class RemoteHosts:
    """The remote hosts of a session. `first` is the agent of its own host."""

    def __init__(
        self, node: Node, settings: Settings, folder: Path, worker_registry: WorkerRegistry, first: Address
    ) -> None:
        self._node = node
        self._settings = settings
        self._folder = folder
        self._worker_registry = worker_registry
        self._first = first
        self._keys: KeyPair | None = None
        self._hosts: list[RemoteHost] = []
        self._numbers = itertools.count(1)
        self._starting = threading.Lock()  # held while hosts are started
        self._closing = ""
        self._has_left = False
        worker_registry.when_silent = self._handle_silence

    @property
    def keys(self) -> KeyPair | None:
        """The keys of the run; None before its first remote host."""
        return self._keys

    def __iter__(self) -> Iterator[RemoteHost]:
        """Iterate over the hosts that have not ended."""
        return iter([host for host in self._hosts if not host.over])

    # -- starting ----------------------------------------------------------------------

    def start(
        self,
        launcher: Launcher,
        names: Sequence[str],
        *,
        addresses: Mapping[str, str] | None = None,
        python: Mapping[str, str] | None = None,
        environment: Mapping[str, dict[str, str]] | None = None,
        progress: Progress | None = None,
    ) -> HostMesh:
        """Start these hosts, wait until all are linked with each other, and return their mesh.

        The interpreter and the variables of a host are looked up by its name. Raises LaunchError with the name of the
        host if one does not come up in time; then all of them are ended. So they are after Ctrl-C.
        """
        with self._starting, hold_interrupts("the hosts were ended again"):
            begun: list[RemoteHost] = []
            try:
                own = {**self._addresses_of(launcher, names), **(addresses or {})}
                keys = self._open_gateway()
                for name in names:
                    away = RemoteAgentSpec(
                        host=name,
                        keys=keys,
                        address=own.get(name, ""),
                        towards=tuple(own_addresses()),
                        python=sys.version_info[:2],
                        is_local=launcher.is_local(name),
                        environment=(environment or {}).get(name, {}),
                    )
                    begun.append(self._launch(launcher, away, (python or {}).get(name, "")))
                with allow_interrupts():
                    self._wait_for_answers(begun, progress or _nothing)
                    self._link(begun)
            except BaseException:
                self._give_up(begun)
                launcher.close()
                raise
            return self._add(begun)

    def _addresses_of(self, launcher: Launcher, names: Sequence[str]) -> dict[str, str]:
        """Return the addresses of hosts that must listen on the loopback interface only.

        These are all of them if all hosts of the run are on this machine. LaunchError if a host that already listens
        there could not be reached by a new one.
        """
        remote = [name for name in names if not launcher.is_local(name)]
        if not remote and all(host.is_local for host in self):
            return dict.fromkeys(names, LOOPBACK)
        hidden = next((host for host in self if host.address and ip_of(host_of(host.address)) == LOOPBACK), None)
        if remote and hidden is not None and LOOPBACK not in own_addresses():
            raise LaunchError(
                f"host {remote[0]} cannot be linked with host {hidden.name}, which listens only on the loopback "
                "interface; start both in one call, or pass an address of this machine for it: addresses={...}"
            )
        return {}

    def _give_up(self, hosts: Sequence[RemoteHost]) -> None:
        for host in hosts:
            host.process.kill()
            host.process.wait()
            if host.address is not None:
                self._notify_lost(host, "it did not start")

    def _open_gateway(self) -> KeyPair:
        # Kept before the answer, and asked each time: an interrupt may end the wait, and the agent opens one gateway.
        keys = self._keys = self._keys or KeyPair.generate()
        with allow_interrupts():
            self._ask(self._first, "open_gateway", keys).get(self._settings.launch_timeout)
        return keys

    def _launch(self, launcher: Launcher, away: RemoteAgentSpec, python: str) -> RemoteHost:
        name = away.host
        node = name_agent(name, secrets.token_hex(4))
        log = self._folder / f"{node}.log"
        spec = AgentSpec(
            run=self._node.run,
            node=node,
            controller=self._node.address,
            settings=self._settings,
            is_warm=is_agent_warm(self._settings),
            away=away,
        )
        try:
            process = launcher.start(name, [python or sys.executable, "-P", "-m", AGENT_MODULE], log)
        except OSError as error:
            raise LaunchError(f"host {name}: cannot run its command: {error}") from error
        with contextlib.suppress(BrokenPipeError):  # it has already ended; the missing answer reports that
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(spec) + b"\n")
            process.stdin.flush()
        return RemoteHost(name, node, process, log, launcher, next(self._numbers), is_local=away.is_local)

    def _wait_for_answers(self, hosts: Sequence[RemoteHost], progress: Progress) -> None:
        answers: queue.SimpleQueue[tuple[RemoteHost, AgentAnswer | str]] = queue.SimpleQueue()

        def read(host: RemoteHost) -> None:
            assert host.process.stdout is not None
            answers.put((host, read_agent_answer(host.process.stdout)))

        for host in hosts:
            threading.Thread(target=read, args=(host,), name="meshbook agent answer", daemon=True).start()
        end = time.monotonic() + self._settings.launch_timeout
        waiting = list(hosts)
        progress(0, len(hosts))
        while waiting:
            try:
                host, answer = get_within(answers, end - time.monotonic())
            except queue.Empty:
                limit = f"{self._settings.launch_timeout:g} s (MESHBOOK_LAUNCH_TIMEOUT)"
                raise LaunchError(self._why_not(waiting[0], f"its agent did not answer within {limit}")) from None
            self._take_answer(host, answer)
            waiting.remove(host)
            progress(len(hosts) - len(waiting), len(hosts))

    def _take_answer(self, host: RemoteHost, answer: AgentAnswer | str) -> None:
        if isinstance(answer, str):
            printed = f"; instead of its answer it printed: {answer[:500]}" if answer else ""
            raise LaunchError(self._why_not(host, f"its agent did not start{printed}"))
        if answer.address is None:
            raise LaunchError(self._why_not(host, answer.error))
        host.address = answer.address

    def _why_not(self, host: RemoteHost, what: str) -> str:
        lines = last_lines(host.log, self._settings.stderr_lines)
        tail = "\n".join(["; its last lines on stderr:", *(f"    {line}" for line in lines)]) if lines else ""
        return f"host {host.name}: {what}{tail}"

    def _link(self, hosts: Sequence[RemoteHost]) -> None:
        """Link each of these hosts with every other host. Call the dialling side last: the other then expects it."""
        linked: list[tuple[RemoteHost, Future[Any]]] = []
        known = [host for host in self if host.address is not None]
        for host in hosts:
            assert host.address is not None
            self._node.routes.trust(host.address)
            linked.append((host, self._ask(self._first, "link", host.address, True)))
        self._wait_linked(linked, "the controller's host")
        for index, host in enumerate(hosts):
            assert host.address is not None
            dialled = []
            for other in (*known, *hosts[:index]):
                assert other.address is not None
                self._ask(other.address, "link", host.address, False).get(self._settings.launch_timeout)
                dialled.append((other, self._ask(host.address, "link", other.address, True)))
            self._wait_linked(dialled, host.where)

    def _wait_linked(self, linked: Sequence[tuple[RemoteHost, Future[Any]]], by: str) -> None:
        end = time.monotonic() + self._settings.launch_timeout
        for host, future in linked:
            while True:
                with contextlib.suppress(TimeoutError):
                    future.get(LOOK_SECONDS)  # raises the error of a host that refuses the link
                if future.done():
                    break
                if host.process.poll() is not None:
                    raise LaunchError(self._why_not(host, "its agent ended while it was being linked"))
                if time.monotonic() > end:
                    remedy = "check for a firewall, or pass another address: addresses={...}"
                    raise LaunchError(f"host {host.where} cannot be reached from {by}; {remedy}")

    def _add(self, hosts: Sequence[RemoteHost]) -> HostMesh:
        agents = [host.address for host in hosts if host.address is not None]
        mesh = HostMesh(agents, Extent.of(hosts=len(agents)).region, owned=True)
        for host in hosts:
            host.mesh = mesh
            self._hosts.append(host)
            self._begin_to_watch(host)
        return mesh

    def _begin_to_watch(self, host: RemoteHost) -> None:
        if host.address is not None:
            self._node.casts.add_agent(host.address)
        host.watcher = threading.Thread(target=self._watch, args=(host,), name="meshbook host watcher", daemon=True)
        host.watcher.start()

    # -- a run that was detached (`host_handover`) ---------------------------------------------

    def leave(self) -> None:
        """Stop watching: the hosts continue without this process, whose lifelines `hang_up` closes."""
        self._has_left = True
        for host in self:
            if host.mesh is not None:
                host.mesh.note_end()

    def adopt(self, hosts: Sequence[RemoteHost], keys: KeyPair | None) -> None:
        """Add the hosts of the previous controller. `watch_adopted` watches them once messages arrive."""
        self._keys = keys
        self._hosts += hosts
        self._numbers = itertools.count(max((host.number for host in hosts), default=0) + 1)

    def watch_adopted(self) -> None:
        """Watch the hosts of the previous controller; those that have ended since are reported."""
        for host in self._hosts:
            if host.watcher is None:
                self._begin_to_watch(host)

    # -- ends ------------------------------------------------------------------------------

    def _handle_silence(self, prefix: str, seconds: float, by: str) -> None:
        """Handle an agent's report of a silent host. Runs on the receiving thread."""
        silent = next((host for host in self if host.address is not None and host_of(host.address) == prefix), None)
        if by == self._first.node:
            if silent is not None:
                self._lose(silent, self._why_silent(silent, seconds, "the controller's host"))
            return
        # The two hosts do not reach each other, but both reach this one. One of them may be found lost a moment later.
        reporter = next((host for host in self if host.node == by), None)
        if silent is not None and reporter is not None:
            self._node.loop.call_later(
                self._settings.host_timeout, functools.partial(self._part, silent, reporter, seconds)
            )

    def _part(self, one: RemoteHost, other: RemoteHost, seconds: float) -> None:
        """Lose the later of two hosts that cannot reach each other: they cannot both stay in the run."""
        if not (one.over or one.trouble or other.over or other.trouble):
            stays, goes = sorted((one, other), key=lambda host: host.number)
            self._lose(goes, self._why_silent(goes, seconds, f"host {stays.where}"))

    def _why_silent(self, host: RemoteHost, seconds: float, receiver: str) -> str:
        return (
            f"host {host.where} is lost: {receiver} received nothing from it for {seconds:.1f} s\n"
            f"Check the machine and its network. The limit is {self._settings.host_timeout:g} s "
            "(MESHBOOK_HOST_TIMEOUT). Its agent and all processes there exit on their own.\n"
            f"{_drain_hint(host)}"
        )

    def _lose(self, host: RemoteHost, why: str) -> None:
        host.trouble = host.trouble or why
        # At least its local end of the launcher; the watcher sees the end and reports it. Not on this thread, which may
        # receive messages: Ray may wait for a head that is gone too.
        threading.Thread(target=host.process.kill, name="meshbook host's end", daemon=True).start()

    def lose_all(self, why: str) -> None:
        """Lose all hosts: the agent of the first host has ended, and with it the gateway to them."""
        for host in self:
            self._lose(host, why)

    def _watch(self, host: RemoteHost) -> None:
        returncode = host.process.wait()
        if self._has_left:
            return
        host.over = True
        stopped = ""
        if host.mesh is not None and host.mesh.was_drained(host.node):
            stopped = "its host was drained"
        elif host.mesh is not None and host.mesh.is_shut_down:
            stopped = "its host was shut down"
        report = ExitReport(
            node=host.node,
            pid=host.process.pid,
            returncode=None if host.trouble or returncode == UNKNOWN else returncode,
            stderr=tuple(last_lines(host.log, self._settings.stderr_lines)) if not host.trouble else (),
            hint=host.trouble
            or f"the agent of host {host.where} has ended, and all processes there with it; {_drain_hint(host)}",
            stopped=self._closing or stopped,
            host=host.name,
        )
        if not report.stopped:
            self._node.send_event("host lost", host.name, "", [], str(report))
        others = [other.address for other in self if other.address is not None]
        agents = [self._first, *others]
        # The workers first: a caller that waits for the end of the host also waits for theirs.
        guests = self._worker_registry.guests_of(host.node)
        self._node.peers.announce_all_down(list(map(report.of_guest, guests)), agents)
        self._node.peers.announce_down(report, agents)
        self._notify_lost(host, report.cause)
        if any(other.launcher is host.launcher for other in self):
            host.launcher.give_back(host.name)
        else:
            host.launcher.close()

    def _notify_lost(self, host: RemoteHost, why: str) -> None:
        """Make every other host drop its link to this one."""
        assert host.address is not None
        self._node.casts.remove_agent(host.address)
        for agent in (self._first, *(other.address for other in self if other.address is not None)):
            with contextlib.suppress(MeshbookError):
                self._node.calls.notify(agent, HOST, "lose", host_of(host.address), why)

    # -- the end of the session ------------------------------------------------------------

    def begin_to_stop(self, reason: str) -> list[Future[Any]]:
        """Stop all workers on these hosts; return the futures of the answers."""
        self._closing = reason
        for host in self:
            if host.mesh is not None:
                host.mesh.note_end()
        return [self._ask(host.address, "stop_all", reason) for host in self if host.address is not None]

    def hang_up(self) -> None:
        """Close the input of every agent on these hosts, which makes them end."""
        for host in self._hosts:
            assert host.process.stdin is not None
            with contextlib.suppress(OSError):
                host.process.stdin.close()

    def close(self, seconds: float) -> None:
        """Wait until the agents have ended after `hang_up`; kill those that do not end in time."""
        end = time.monotonic() + seconds
        for host in self._hosts:
            assert host.watcher is not None
            host.watcher.join(max(0.0, end - time.monotonic()))
            host.process.kill()
            host.watcher.join()
            if host.process.stdout is not None:
                host.process.stdout.close()

    # -- calls ---------------------------------------------------------------------------------

    def _ask(self, agent: Address, endpoint: str, *arguments: Any) -> Future[Any]:
        return self._node.calls.ask(agent, HOST, endpoint, *arguments)


def _drain_hint(host: RemoteHost) -> str:
    return f"%mesh drain {host.name}, or drain() of its meshes, removes their ranks there"


def _nothing(up: int, total: int) -> None:
    """Do nothing: no caller follows the progress."""
