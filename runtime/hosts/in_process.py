"""A whole run in one process: an agent and workers that are threads, over the memory transport. For tests.

Session, agent, stopping, ownership and reports are those of real runs; what differs is the launch. What threads cannot
have of processes: an environment, finalisers and a standard output of their own, `os._exit`, and an end at any moment.
A worker that is killed here neither receives nor sends any more, and its actors are let go when the session closes.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import selectors
import socket
import subprocess
import threading
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import msgspec

from meshbook.runtime.actor.context import CURRENT
from meshbook.runtime.config import Settings
from meshbook.runtime.errors import ExitReport
from meshbook.runtime.hosts.agent import attend
from meshbook.runtime.hosts.forkserver import Answer, Exited, Started
from meshbook.runtime.hosts.heartbeat import Heartbeat
from meshbook.runtime.hosts.launch import AgentSpec
from meshbook.runtime.hosts.lifeline import LineReader
from meshbook.runtime.hosts.remote_agents import RemoteAgents
from meshbook.runtime.hosts.session import STOP_SECONDS, Session
from meshbook.runtime.hosts.worker import NOWHERE, bootstrap, client_of, make_node, serve
from meshbook.runtime.hosts.workers import Starter, Worker, Workers
from meshbook.runtime.mesh.process_actor import PROCESS
from meshbook.runtime.mesh.worker_specs import WorkerSpec
from meshbook.runtime.node.call_table import PerRank, Target
from meshbook.runtime.node.node import Node
from meshbook.runtime.rdma.data_plane import DataPlane
from meshbook.runtime.telemetry.last_words import leave_traceback
from meshbook.runtime.traces import format_error
from meshbook.runtime.transport import Transport
from meshbook.runtime.transport.home import Home
from meshbook.runtime.transport.memory import SCHEME, FrameQueue, MemoryTransport, Switchboard

FIRST_PID = 1 << 24  # over the largest that Linux gives: these are of no process
SHUT_DOWN = "this process's runtime was shut down"
SECONDS = 1.0  # what threads get to end by themselves


class InProcessSession(Session):
    """A controller whose agent and workers are threads of this process."""

    is_in_process = True

    def __init__(self, settings: Settings | None = None) -> None:
        chosen = settings or Settings.from_environment()
        self._board = PatientSwitchboard(chosen.high_water_mark)
        super().__init__(chosen)

    def _inbox_prefix(self) -> str:
        return SCHEME

    def _connect(self, node: str) -> Transport:
        return self._board.transport(node)

    def _launch(self) -> ThreadAgent:
        self.agent = ThreadAgent(self._board)
        return self.agent

    def kill_late(self, seconds: float) -> None:
        """From now on a worker that does not leave within so many seconds is killed."""
        self.agent.started.wait(self.settings.launch_timeout)
        assert self.agent.workers is not None
        self.agent.workers.limit(seconds)

    def close(self, seconds: float = STOP_SECONDS) -> None:
        """End the run, and let its threads go; one that is held by the user's code stays behind."""
        super().close(seconds)
        self.agent.release()


class PatientSwitchboard(Switchboard):
    """Keeps what is sent to a node that is not there yet, as sockets do.

    What is sent to one that has ended is lost, and no error: its death is told by others.
    """

    def __init__(self, high_water_mark: int) -> None:
        super().__init__()
        self._limit = high_water_mark
        self._renewing = threading.Lock()  # so that what is sent to one that begins anew is for that one

    def find(self, node: str) -> FrameQueue:
        return self._inboxes.setdefault(node, FrameQueue(self._limit))

    def remove(self, node: str) -> None:
        """The inbox stays, and takes in for nobody."""

    def renew(self, node: str) -> None:
        with self._renewing:
            if self.find(node).has_ended:
                self._inboxes[node] = FrameQueue(self._limit)

    def transport(self, node: str, high_water_mark: int = 0) -> MemoryTransport:
        return MemoryTransport(node, self, self.find(node))


class ThreadAgent:
    """A host agent; its session sees a process."""

    def __init__(self, board: PatientSwitchboard) -> None:
        self.pid = os.getpid()
        line, theirs = os.pipe()
        self.stdin = os.fdopen(theirs, "wb")
        self.stdout = None
        self._board = board
        self._node: Node | None = None
        self.workers: ThreadWorkers | None = None
        self.started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(line,), name="meshbook agent", daemon=True)
        self._thread.start()

    def _run(self, descriptor: int) -> None:
        with open(descriptor, "rb", buffering=0) as line:
            if not (first := line.readline()):  # the session could not begin
                return
            spec = msgspec.json.decode(first, type=AgentSpec)
            node = self._node = Node(self._board.transport(spec.node), spec.run, spec.settings)

            def make_workers(*ways: Callable[..., None]) -> ThreadWorkers:
                self.workers = ThreadWorkers(Path(spec.folder), spec.settings, *ways)
                self.workers.board = self._board
                return self.workers

            others = RemoteAgents(node, Home.of_first_host(Path(spec.folder)))  # there will be none
            workers, _ = attend(node, spec, Path(spec.folder), make_workers, others)
            self.started.set()
            workers.serve(LineReader(line.fileno()))

    def poll(self) -> int | None:
        return None if self._thread.is_alive() else 0

    def wait(self, timeout: float | None = None) -> int:
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise subprocess.TimeoutExpired("agent", timeout or 0.0)
        return 0

    def kill(self) -> None:
        if not self.stdin.closed:
            self.stdin.close()

    def release(self) -> None:
        """Once it has ended: let its threads go."""
        node, self._node = self._node, None
        if node is not None and self.workers is not None:
            self.workers.release()
            node.station.close(patience=0)
            let_go(node)
            self.workers.close()


class ThreadWorkers(Workers):
    """Workers that are threads."""

    board: PatientSwitchboard
    _limit: float | None = None

    def _make_server(self, *, is_warm: bool) -> Starter:
        del is_warm  # every mesh of such a run is born warm
        self._starter = ThreadStarter(self.board, self._folder)
        return self._starter

    def _send_signal(self, pid: int, number: int) -> None:
        self._starter.signal(pid, number)

    def _end_orphans(self) -> None:
        """There are none."""

    def keep_spares(self, like: WorkerSpec, count: int) -> None:
        """A thread is there at once, and needs no other that waits."""

    def limit(self, seconds: float) -> None:
        self._limit = seconds

    def _started(self, node: str, pid: int) -> None:
        super()._started(node, pid)
        self._starter.begin(pid)

    def _seconds_of(self, worker: Worker) -> float:
        return super()._seconds_of(worker) if self._limit is None else self._limit

    def release(self) -> None:
        """After the end of `serve`: let go of whoever waits for a worker's end, and of their threads."""
        with self._lock:
            for worker in self._by_node.values():
                worker.ended.set()
        self._starter.release()

    def close(self) -> None:
        """Once nobody asks for workers any more: give the descriptors back."""
        self._selector.close()
        self._memory.close()
        os.close(self._bell)
        os.close(self._ringer)


class ThreadStarter:
    """Starts threads for workers and tells how they end, as a fork server does it with processes."""

    events = selectors.EVENT_READ
    pid = 0  # it is no process

    def __init__(self, board: PatientSwitchboard, folder: Path) -> None:
        self._board = board
        self._folder = folder
        self._pids = itertools.count(FIRST_PID)
        self._workers: dict[int, ThreadWorker] = {}
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self.channel, self._bell = socket.socketpair()
        self.channel.setblocking(False)

    def ask(self, specs: Iterable[WorkerSpec]) -> None:
        for spec in specs:
            pid = next(self._pids)
            transport, exited = self._board.transport(spec.address.node), partial(self._exited, pid)
            self._workers[pid] = ThreadWorker(transport, spec, self._folder, exited)
            self._answer(Started(spec.address.node, pid))

    def begin(self, pid: int) -> None:
        """Let a worker live, once its agent knows of it: a process takes longer to begin than its agent to hear."""
        self._workers[pid].start()

    def _exited(self, pid: int, code: int) -> None:
        self._answer(Exited(pid, code))

    def send(self) -> None:
        """Nothing is left over from `ask`."""

    def hear(self) -> list[Answer] | None:
        with contextlib.suppress(BlockingIOError):
            self.channel.recv(4096)
        answers = []
        while not self._answers.empty():
            answers.append(self._answers.get())
        return answers

    def _answer(self, answer: Answer) -> None:
        self._answers.put(answer)
        self._bell.send(b"!")

    def signal(self, pid: int, number: int) -> None:
        """End a worker: any signal does."""
        self._workers[pid].end(-number)

    def end(self) -> None:
        for worker in self._workers.values():
            worker.end(-9)

    def why_ended(self) -> str:
        return "the threads were let go"

    def release(self) -> None:
        for worker in self._workers.values():
            worker.close()
        for worker in self._workers.values():
            worker.hear_of_the_end({other.name for other in self._workers.values()} - {worker.name})
        for worker in self._workers.values():
            worker.release()
        self.channel.close()
        self._bell.close()


class ThreadWorker:
    """One worker; its thread is what a main thread is in a process."""

    def __init__(
        self, transport: MemoryTransport, spec: WorkerSpec, folder: Path, exited: Callable[[int], None]
    ) -> None:
        self.name = spec.address.node
        self._exited = exited  # told the exit code, once
        self._transport = transport
        self._spec = spec
        self._folder = folder
        self._node = make_node(transport, spec)
        self._node.station = DataPlane(self._node, folder, spec.world.agent)
        self._heartbeat = Heartbeat(self._node, folder, spec.incarnation)
        self._has_left = False
        self._ending = threading.Lock()  # taken once, by whoever ends it
        self._thread = threading.Thread(target=self._live, name=f"meshbook worker {spec.address.node}", daemon=True)

    def start(self) -> None:
        """Begin, unless it has been killed before."""
        if not self._ending.locked():
            self._thread.start()

    def _live(self) -> None:
        CURRENT.set(client_of(self._node, self._spec))
        ready = self._prepare()
        if ready and not self._ending.locked():
            serve(self._node, self._spec)
        self._has_left = True
        self._node.actors.release_all()
        self._node.station.close(patience=0)
        self.end(0 if ready else 1)

    def _prepare(self) -> bool:
        try:
            if self._spec.world.bootstrap:
                bootstrap(self._spec.world.bootstrap)
        except BaseException as error:
            node = self._spec.address.node
            (self._folder / f"{node}.err").write_text(traceback.format_exc())  # a process has a stderr for that
            leave_traceback(self._folder, node, format_error(error))
            return False
        return True

    def end(self, code: int) -> None:
        """Be dead from now on: nothing comes in, nothing goes out. What runs runs on, and is not heard of."""
        if self._ending.acquire(blocking=False):
            self._heartbeat.close()
            self._transport.close()
            self._exited(code)

    def close(self) -> None:
        """Once dead: let go of who waits for an answer."""
        self._node.close()

    def hear_of_the_end(self, others: Iterable[str]) -> None:
        """Let go of who waits for the end of other workers: of a mesh that an actor here owns."""
        for other in others:
            self._node.peers.announce_down(ExitReport(other, 0, None, stopped=SHUT_DOWN), ())

    def release(self) -> None:
        """Let its threads go."""
        if PROCESS in self._node.actors.names() and not self._has_left:
            process = [Target(self._node.address, PROCESS)]
            self._node.calls.send(process, "stop", ((SHUT_DOWN,), {}), NOWHERE, None)
        self._node.station.close(patience=0)
        let_go(self._node)
        if self._thread.ident is not None:
            self._thread.join(SECONDS)


def let_go(node: Node) -> None:
    """Close a node and end its actors, each once it is through with what it does."""
    node.close()
    targets = [Target(node.address, name) for name in node.actors.names()]
    node.calls.stop(targets, SHUT_DOWN, PerRank(len(targets)))
