"""The workers of one host, from request to exit. Owned by the host agent.

    start -> request -> fork server -> Started ... Exited -> on_exit

There are up to two fork servers: a warm one, which has imported `Settings.preload`, and a plain one, which has not. The
spec of a mesh selects the one that forks its workers (`MeshSpec.is_warm`). All code that deals with the fork servers
runs on the agent's main thread (`serve`), because they die with the thread that makes them.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import selectors
import shlex
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from meshbook.runtime.config import Settings
from meshbook.runtime.errors import ExitReport
from meshbook.runtime.hosts.command_workers import command_line, has_spec_file, remove_spec_file
from meshbook.runtime.hosts.forkserver import Answer, Exited, Started
from meshbook.runtime.hosts.forkserver_client import execute_server
from meshbook.runtime.hosts.linux import end_descendants
from meshbook.runtime.hosts.oom import OomDetector
from meshbook.runtime.hosts.process_sampler import LiveWorker
from meshbook.runtime.hosts.spare_worker import place_file
from meshbook.runtime.hosts.spares import OnSpare, SpareManager
from meshbook.runtime.memory.process_identity import is_descendant
from meshbook.runtime.mesh.worker_specs import MeshSpec, WorkerSpec
from meshbook.runtime.resources import explain_limit
from meshbook.runtime.telemetry.output import UnsentOutput
from meshbook.runtime.telemetry.stderr_tail import find_traceback, last_lines, read_last_lines, remove_files
from meshbook.runtime.telemetry.unsent import read_unsent
from meshbook.runtime.wire.messages import Address

REPORT_SECONDS = 0.05  # the most time for which the end of a worker that was stopped is kept for a common report
Ask = Callable[[Address, str, str], None]  # the worker, the reason, and the fence that it waits for


class Starter(Protocol):
    """A fork server: it starts workers and reports their ends. `channel` is readable when it has answers."""

    channel: socket.socket

    @property
    def pid(self) -> int: ...
    @property
    def events(self) -> int: ...
    def ask(self, specs: Iterable[WorkerSpec]) -> None: ...
    def send(self) -> None: ...
    def receive(self) -> list[Answer] | None: ...
    def end(self) -> None: ...
    def why_ended(self) -> str: ...


class Lifeline(Protocol):
    """The agent's connection to the run's holder. `descriptor` is readable when there is input; -1 without a holder."""

    @property
    def descriptor(self) -> int: ...
    def is_over(self) -> bool: ...
    def forget(self, descriptor: int) -> None: ...


@dataclass
class Worker:
    """One worker, from the request to its end."""

    address: Address
    owner: str
    settings: Settings  # of its mesh
    command: str = ""  # the command that starts it; empty: it is forked
    server: Starter | None = None  # the fork server that received the request
    pid: int = 0
    stopping: str = ""
    killed: bool = False  # by this agent
    killer: str = ""  # on whose behalf, in the user's words
    trouble: str = ""  # why it was killed
    peak: int = 0  # peak memory in bytes, known once it has ended
    incarnation: int = 0
    mesh: str = ""
    rendezvous: dict[str, str] = field(default_factory=dict)
    ended: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class EndedWorker:
    """A worker that has ended, and its output that may not have been sent."""

    worker: Worker
    report: ExitReport
    remains: UnsentOutput | None


OnExit = Callable[[Sequence[EndedWorker], list[Address]], None]


class Workers:
    """All workers of this host.

    `ask_to_leave` sends a worker the message that ends it. `on_exit` is called with workers that have ended and the
    addresses of the remaining ones. Ends that are known together are reported together, and so are those of stopped
    workers within `REPORT_SECONDS`: a mesh of hundreds ends in a few messages. `on_spare` is called with events about
    spares. `servers` are the fork servers that already run, keyed by whether they are warm; without any, `serve` starts
    the warm one.
    """

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        ask_to_leave: Ask,
        on_exit: OnExit,
        on_spare: OnSpare,
        *,
        servers: Mapping[bool, Starter] | None = None,
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._ask_to_leave = ask_to_leave
        self._on_exit = on_exit
        self._lock = threading.Lock()  # guards _by_node, _by_pid, and the state of each worker
        self._by_node: dict[str, Worker] = {}
        self._by_pid: dict[int, Worker] = {}
        self._requests: queue.SimpleQueue[tuple[MeshSpec, Sequence[WorkerSpec]]] = queue.SimpleQueue()
        self._spares = SpareManager(folder, settings, lambda pid, number: self._send_signal(pid, number), on_spare)
        self._memory = OomDetector()
        self._wakeup_reader, self._wakeup_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._servers: dict[bool, Starter] = dict(servers or {})
        self._selector = selectors.DefaultSelector()
        self._finished = False
        self._ended: list[EndedWorker] = []  # not reported yet; for the main thread
        self._report_at = math.inf
        self._leftovers: set[str] = set()  # ended nodes whose files are not removed yet; for the main thread

    # -- calls of the host actor --------------------------------------------------

    def start(self, specs: Sequence[WorkerSpec]) -> None:
        """Request these workers of one mesh; its fork server starts them once it has imported its modules."""
        workers = [_worker_of(spec) for spec in specs]
        with self._lock:
            self._by_node |= {worker.address.node: worker for worker in workers}
        self._requests.put((specs[0].world, specs))
        self._wake()

    def stop(self, nodes: Iterable[str], reason: str, fence: str = "") -> list[Worker]:
        """Stop these workers, and those that they own; kill those that have not left by the time limit.

        The named workers first wait for the fence, if there is one. Returns all workers, including those stopped
        before.
        """
        nodes = set(nodes)
        with self._lock:
            workers = self._with_owned(nodes)
            asked = [worker for worker in workers if not worker.stopping]
            for worker in asked:
                worker.stopping = reason
                worker.killed = worker.killed or not worker.pid  # no process yet, so no user code runs in it
        for worker in asked:
            if worker.pid:
                self._ask_to_leave(worker.address, reason, fence if worker.address.node in nodes else "")
        if asked:
            self._watch(self._kill_late, asked)
        with self._lock:
            in_use = {worker.mesh for worker in self._by_node.values() if not worker.stopping}
        stopped = {worker.mesh for worker in asked} | {node.rpartition(".")[0] for node in nodes}
        self._spares.dismiss(stopped - in_use)
        return workers

    def stop_owned_by(self, node: str) -> None:
        """Stop what a process owned here; the process has ended, on this host or another."""
        with self._lock:
            owned = [name for name, worker in self._by_node.items() if worker.owner == node]
        if owned:
            self.stop(owned, f"its owner has ended ({node})")
        self._spares.dismiss(self._spares.meshes(owner=node))  # also of a mesh whose ranks have all died

    def keep_spares(self, like: WorkerSpec, count: int) -> None:
        """Keep `count` spare processes for the mesh of this spec, until the mesh is stopped."""
        self._spares.keep(like, count)
        self._requests.put((like.world, []))
        self._wake()

    def count_spares(self, mesh: str) -> int:
        """Return how many of the mesh's spares are warm."""
        return self._spares.count(mesh)

    def finish(self) -> None:
        """Make `serve` return."""
        self._finished = True
        self._wake()

    def look_at_line(self) -> None:
        """Make `serve` look at the lifeline's descriptor, which has changed."""
        self._wake()

    def signal(self, nodes: Iterable[str], number: int, sender: str = "") -> None:
        """Send a signal to the process groups of these workers, so that their child processes get it too.

        The exit report of a worker that this kills names `sender` as the killer.
        """
        with self._lock:
            for worker in filter(None, map(self._by_node.get, nodes)):
                if number == signal.SIGKILL:
                    worker.killed, worker.killer = True, worker.killer or sender
                if worker.pid:
                    self._send_signal(worker.pid, number)

    def names(self) -> list[str]:
        """Return the node ids of the workers that run or are being started."""
        with self._lock:
            return list(self._by_node)

    def addresses(self) -> list[Address]:
        """Return the addresses of the workers that run or are being started."""
        with self._lock:
            return [worker.address for worker in self._by_node.values()]

    def pid_of(self, node: str) -> int:
        """Return the process id of this worker; 0 if it has none."""
        with self._lock:
            worker = self._by_node.get(node)
            return worker.pid if worker is not None else 0

    def living(self) -> list[LiveWorker]:
        """Return the workers that have a process."""
        with self._lock:
            workers = [worker for worker in self._by_node.values() if worker.pid]
        return [LiveWorker(worker.address.node, worker.incarnation, worker.pid) for worker in workers]

    def rendezvous_of(self, mesh: str) -> dict[str, str] | None:
        """Return the rendezvous of this mesh's workers; None if it has none here."""
        with self._lock:
            return next((worker.rendezvous for worker in self._by_node.values() if worker.mesh == mesh), None)

    def _with_owned(self, nodes: Iterable[str]) -> list[Worker]:
        """Return these workers, the workers that they own, and so on."""
        found: dict[str, Worker] = {}
        names = set(nodes)
        while names:
            found |= {name: self._by_node[name] for name in names if name in self._by_node}
            owned = {node for node, worker in self._by_node.items() if worker.owner in names}
            names = owned - found.keys()
        return list(found.values())

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the pipe is full of wakeups that the main thread has not read yet
            os.write(self._wakeup_writer, b"!")

    def _watch(self, watch: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=watch, args=arguments, name="meshbook late workers", daemon=True).start()

    def _kill_late(self, workers: Sequence[Worker]) -> None:
        begun = time.monotonic()
        for worker in sorted(workers, key=self._seconds_of):
            left = begun + self._seconds_of(worker) - time.monotonic()
            if not worker.ended.wait(max(0.0, left)):
                self.signal([worker.address.node], signal.SIGKILL)

    def _seconds_of(self, worker: Worker) -> float:
        """Return how many seconds the worker may take to leave."""
        return worker.settings.stop_timeout

    def _kill_unless_started(self, worker: Worker) -> None:
        """Kill a command that runs without becoming the worker in time."""
        node, seconds = worker.address.node, self._settings.launch_timeout
        if not worker.ended.wait(seconds) and has_spec_file(self._folder, node):
            worker.trouble = f"it was not a worker within {seconds:g} s (MESHBOOK_LAUNCH_TIMEOUT): {worker.command}"
            self.signal([node], signal.SIGKILL)

    # -- on the agent's main thread --------------------------------------------

    def serve(self, line: Lifeline) -> None:
        """Run the fork servers and read their answers until the lifeline is over; then end everything at once."""
        watched = self._look_at(line, -1)
        self._selector.register(self._wakeup_reader, selectors.EVENT_READ)
        for server in self._servers.values():
            self._selector.register(server.channel, server.events)
        if not self._servers:
            self._start_server(is_warm=True)
        while not self._finished:
            left = self._report_at - time.monotonic() if self._ended else None
            ready = {key.fd for key, _ in self._selector.select(0 if self._leftovers else left)}
            if self._leftovers and not ready:
                self._remove_files(next(iter(self._leftovers)))
            if watched in ready and line.is_over():
                break
            watched = self._look_at(line, watched)
            for server in list(self._servers.values()):
                self._attend(server)
            if self._wakeup_reader in ready:
                os.read(self._wakeup_reader, 4096)
                self._pass_requests()
            if self._ended and (not self._expects_more_ends() or time.monotonic() >= self._report_at):
                self._report_ends()
        if self._finished:
            self._report_ends()
        for each in self._ended:  # the controller is gone
            each.worker.ended.set()
        self._kill_all()

    def _look_at(self, line: Lifeline, watched: int) -> int:
        """Watch the lifeline's present descriptor instead of `watched`."""
        present = line.descriptor
        if present != watched:
            if watched >= 0:
                self._selector.unregister(watched)
                line.forget(watched)
            if present >= 0:
                self._selector.register(present, selectors.EVENT_READ)
        return present

    def _start_server(self, *, is_warm: bool) -> Starter:
        server = self._servers[is_warm] = self._make_server(is_warm=is_warm)
        self._selector.register(server.channel, server.events)
        return server

    def _attend(self, server: Starter) -> None:
        server.send()
        answers = server.receive()
        if answers is None:
            self._server_ended(server)
            return
        for answer in answers:
            self._take(server, answer)
        self._selector.modify(server.channel, server.events)

    def _remove_files(self, node: str) -> None:
        """Remove the files of an ended worker: when there is nothing else to do, since a disk takes milliseconds."""
        if node in self._leftovers:
            self._leftovers.discard(node)
            remove_files(self._folder, node)

    def _pass_requests(self) -> None:
        while not self._requests.empty():
            world, specs = self._requests.get()
            for spec in specs:
                self._remove_files(spec.address.node)  # the next process of this name makes its own
            with self._lock:
                workers = [self._by_node[spec.address.node] for spec in specs]
            try:
                # Replace an ended server only on a request: one that cannot start would be restarted endlessly.
                server = self._servers.get(world.is_warm) or self._start_server(is_warm=world.is_warm)
            except OSError as error:
                self._end_all(workers, f"the fork server did not start: {error}")
                continue
            for worker in workers:
                worker.server = server
            to_fork = []
            for spec in specs:
                if pid := self._spares.take(spec):
                    self._started(spec.address.node, pid)
                else:
                    to_fork.append(spec)
            server.ask(to_fork)
            self._fill_up(server, world.mesh)

    def _fill_up(self, server: Starter, mesh: str) -> None:
        """Start the spares that this mesh lacks."""
        server.ask(self._spares.missing(mesh))
        self._selector.modify(server.channel, server.events)

    def _take(self, server: Starter, answer: Answer) -> None:
        if not isinstance(answer, Started):
            self._exited(server, answer)
        elif answer.node not in self._by_node:
            self._spares.started(answer)
        elif answer.error:
            self._end(self._by_node[answer.node], None, answer.error)
        else:
            self._started(answer.node, answer.pid)

    def _started(self, node: str, pid: int) -> None:
        with self._lock:
            worker = self._by_node[node]
            worker.pid = pid
            self._by_pid[pid] = worker
            if worker.killed:  # it was to be killed before it had started
                self._send_signal(pid, signal.SIGKILL)
        if worker.command:
            self._watch(self._kill_unless_started, worker)

    def _exited(self, server: Starter, exited: Exited) -> None:
        with self._lock:
            worker = self._by_pid.pop(exited.pid, None)
        if worker is not None:
            worker.peak = exited.peak
            trouble = worker.trouble
            if not trouble and has_spec_file(self._folder, worker.address.node):
                trouble = f"it exited before it became a worker; its command: {worker.command}"
            self._end(worker, exited.returncode, trouble)
        elif mesh := self._spares.exited(exited):
            self._fill_up(server, mesh)

    def _server_ended(self, server: Starter) -> None:
        """Report the workers of a fork server as ended: they die with it. This process adopts their children."""
        trouble = server.why_ended()
        self._selector.unregister(server.channel)
        is_warm = self._servers.get(True) is server
        del self._servers[is_warm]
        server.end()
        self._end_orphans()
        with self._lock:
            workers = [worker for worker in self._by_node.values() if worker.server is server]
            for worker in workers:
                self._by_pid.pop(worker.pid, None)
        self._spares.lose_all(is_warm=is_warm)
        self._end_all(workers, trouble)

    def _end_all(self, workers: Iterable[Worker], trouble: str) -> None:
        for worker in workers:
            self._end(worker, None, trouble)

    def _end(self, worker: Worker, returncode: int | None, trouble: str) -> None:
        node = worker.address.node
        report = ExitReport(
            node=node,
            pid=worker.pid,
            returncode=returncode,
            stderr=read_last_lines(self._folder, node, worker.settings.stderr_lines),
            hint=trouble or self._why_killed(worker, returncode),
            stopped=worker.stopping,
            incarnation=worker.incarnation,
            ended_by=worker.killer if returncode == -signal.SIGKILL else "",
            raised=find_traceback(self._folder, node),
        )
        remove_spec_file(self._folder, node)
        # of a worker that was killed before it had read the file
        place_file(self._folder, node).unlink(missing_ok=True)
        with self._lock:
            self._by_node.pop(node, None)
        remains = read_unsent(self._folder, node)
        if not self._ended:
            self._report_at = time.monotonic() + REPORT_SECONDS
        self._ended.append(EndedWorker(worker, report, remains))

    def _expects_more_ends(self) -> bool:
        """Whether the ends that are not reported yet can wait for those of other workers that are stopping."""
        owners = {each.worker.owner for each in self._ended}
        with self._lock:
            # A worker that is stopping waits for the workers that it owns.
            is_awaited = not owners.isdisjoint(self._by_node)
            return (
                not is_awaited
                and all(each.report.stopped for each in self._ended)
                and any(other.stopping for other in self._by_node.values())
            )

    def _report_ends(self) -> None:
        """Report the ends so far."""
        ended, self._ended = self._ended, []
        if not ended:
            return
        owners = {each.worker.owner for each in ended}
        with self._lock:
            others = [
                other.address for other in self._by_node.values() if not other.stopping or other.address.node in owners
            ]
        self._on_exit(ended, others)
        self._leftovers.update([each.report.node for each in ended])
        for each in ended:
            each.worker.ended.set()
            # Last: from here on nothing is started for a worker that has ended.
            self.stop_owned_by(each.report.node)

    def _why_killed(self, worker: Worker, returncode: int | None) -> str:
        if not returncode or worker.killed:
            return ""
        if returncode == -signal.SIGKILL:
            return self._memory.explain(worker.pid, worker.peak)
        files = (self._folder / f"{worker.address.node}.{suffix}" for suffix in ("last", "err"))
        return explain_limit([line for file in files for line in last_lines(file)], self._folder)

    def _kill_all(self) -> None:
        """Kill everything: the controller is gone."""
        for server in self._servers.values():
            server.end()  # first, so that it forks nothing more
        self._servers.clear()
        with self._lock:
            for pid in self._by_pid:
                self._send_signal(pid, signal.SIGKILL)
        self._end_orphans()

    # -- the operating system; `in_process` overrides these -----------------------

    def _make_server(self, *, is_warm: bool) -> Starter:
        return execute_server(self._folder, self._settings, is_warm=is_warm)

    def _send_signal(self, pid: int, number: int) -> None:
        # The fork server may have reaped it before this process learns of its end; then the pid may belong to others.
        if not is_descendant(pid, os.getpid()):
            return
        # Between fork and setsid a worker has no group of its own; then signal the process itself.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, number)
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)

    def _end_orphans(self) -> None:
        end_descendants(spared={server.pid for server in self._servers.values()})


def _worker_of(spec: WorkerSpec) -> Worker:
    command = shlex.join(command_line(spec)[1]) if spec.start.command else ""
    world = spec.world
    return Worker(
        *(spec.address, world.owner, world.settings, command),
        incarnation=spec.incarnation,
        mesh=world.mesh,
        rendezvous=world.rendezvous,
    )
