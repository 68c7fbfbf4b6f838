"""A whole run in one process: an agent and workers that are threads, over the memory transport. For tests.

Session, agent, stopping, ownership and reports are those of real runs; only the launch differs. Threads lack some
properties of processes: an environment, finalizers and standard output of their own, `os._exit`, and an end at any
moment. A worker that is killed here neither receives nor sends any more; its actors are released when the session
closes.
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

from meshbook.runtime.actor.context import CURRENT
from meshbook.runtime.config import Settings
from meshbook.runtime.errors import ExitReport
from meshbook.runtime.hosts.agent import attend
from meshbook.runtime.hosts.forkserver import Answer, Exited, Started
from meshbook.runtime.hosts.heartbeat import Heartbeat
from meshbook.runtime.hosts.launch import decode_agent_spec
from meshbook.runtime.hosts.lifeline import LineReader
from meshbook.runtime.hosts.remote_agents import RemoteAgents
from meshbook.runtime.hosts.session import STOP_SECONDS, Session
from meshbook.runtime.hosts.worker import bootstrap, client_of, make_node, serve
from meshbook.runtime.hosts.workers import Starter, Worker, Workers
from meshbook.runtime.interrupts import hold_interrupts
from meshbook.runtime.mesh.process_actor import PROCESS
from meshbook.runtime.mesh.worker_specs import WorkerSpec
from meshbook.runtime.node.node import Node
from meshbook.runtime.rdma.data_plane import DataPlane
from meshbook.runtime.telemetry.stderr_tail import leave_traceback
from meshbook.runtime.traces import format_error
from meshbook.runtime.transport import Transport
from meshbook.runtime.transport.home import Home
from meshbook.runtime.transport.memory import SCHEME, FrameQueue, MemoryTransport, Switchboard

FIRST_PID = 1 << 24  # above the largest pid of Linux, so no real process has one of these
SHUT_DOWN = "this process's runtime was shut down"
SECONDS = 1.0  # time for threads to end by themselves


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
        """Kill every worker that does not leave within `seconds`, from now on."""
        self.agent.started.wait(self.settings.launch_timeout)
        assert self.agent.workers is not None
        self.agent.workers.limit(seconds)

    def close(self, seconds: float = STOP_SECONDS) -> None:
        """End the run and release its threads; a thread that user code blocks is left behind."""
        with hold_interrupts():
            try:
                super().close(seconds)
            finally:
                self.agent.release()


class PatientSwitchboard(Switchboard):
    """A switchboard that keeps messages to a node that has not started yet, as sockets do.

    Messages to a node that has ended are dropped without an error: its end is reported elsewhere.
    """

    def __init__(self, high_water_mark: int) -> None:
        super().__init__()
        self._limit = high_water_mark
        self._renewing = threading.Lock()  # so that messages to a restarted node reach the new inbox

    def find(self, node: str) -> FrameQueue:
        return self._inboxes.setdefault(node, FrameQueue(self._limit))

    def remove(self, node: str) -> None:
        """Keep the inbox; it drops what it receives."""

    def renew(self, node: str) -> None:
        with self._renewing:
            if self.find(node).has_ended:
                self._inboxes[node] = FrameQueue(self._limit)

    def transport(self, node: str, high_water_mark: int = 0) -> MemoryTransport:
        return MemoryTransport(node, self, self.find(node))


class ThreadAgent:
    """A host agent that is a thread; its session sees a process."""

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
            spec = decode_agent_spec(first)
            node = self._node = Node(self._board.transport(spec.node), spec.run, spec.settings)

            def make_workers(*ways: Callable[..., None]) -> ThreadWorkers:
                self.workers = ThreadWorkers(Path(spec.folder), spec.settings, *ways)
                self.workers.board = self._board
                return self.workers

            others = RemoteAgents(node, Home.of_first_host(Path(spec.folder)))  # stays empty
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
        """Release its threads, once the agent has ended."""
        node, self._node = self._node, None
        if node is not None and self.workers is not None:
            self.workers.release()
            node.data_plane.close(patience=0)
            close_with_actors(node)
            self.workers.close()


class ThreadWorkers(Workers):
    """Workers that are threads."""

    board: PatientSwitchboard
    _limit: float | None = None

    def _make_server(self, *, is_warm: bool) -> Starter:
        del is_warm  # every mesh of such a run starts warm
        self._starter = ThreadStarter(self.board, self._folder)
        return self._starter

    def _send_signal(self, pid: int, number: int) -> None:
        self._starter.signal(pid, number)

    def _end_orphans(self) -> None:
        """Do nothing: threads leave no orphans."""

    def keep_spares(self, like: WorkerSpec, count: int) -> None:
        """Do nothing: a thread starts at once, so spares are not needed."""

    def limit(self, seconds: float) -> None:
        self._limit = seconds

    def _started(self, node: str, pid: int) -> None:
        super()._started(node, pid)
        self._starter.begin(pid)

    def _seconds_of(self, worker: Worker) -> float:
        return super()._seconds_of(worker) if self._limit is None else self._limit

    def release(self) -> None:
        """After the end of `serve`: release callers that wait for a worker's end, and the workers' threads."""
        with self._lock:
            for worker in self._by_node.values():
                worker.ended.set()
        self._starter.release()

    def close(self) -> None:
        """Close the descriptors, once no more workers are requested."""
        self._selector.close()
        self._memory.close()
        os.close(self._wakeup_reader)
        os.close(self._wakeup_writer)


class ThreadStarter:
    """Starts threads as workers and reports their ends, as a fork server does with processes."""

    events = selectors.EVENT_READ
    pid = 0  # it is not a process

    def __init__(self, board: PatientSwitchboard, folder: Path) -> None:
        self._board = board
        self._folder = folder
        self._pids = itertools.count(FIRST_PID)
        self._workers: dict[int, ThreadWorker] = {}
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self.channel, self._wakeup_writer = socket.socketpair()
        self.channel.setblocking(False)

    def ask(self, specs: Iterable[WorkerSpec]) -> None:
        for spec in specs:
            pid = next(self._pids)
            transport, exited = self._board.transport(spec.address.node), partial(self._exited, pid)
            self._workers[pid] = ThreadWorker(transport, spec, self._folder, exited)
            self._answer(Started(spec.address.node, pid))

    def begin(self, pid: int) -> None:
        """Start a worker once its agent has registered it: otherwise the thread would overtake the agent."""
        self._workers[pid].start()

    def _exited(self, pid: int, code: int) -> None:
        self._answer(Exited(pid, code))

    def send(self) -> None:
        """Do nothing: `ask` leaves nothing unsent."""

    def receive(self) -> list[Answer] | None:
        with contextlib.suppress(BlockingIOError):
            self.channel.recv(4096)
        answers = []
        while not self._answers.empty():
            answers.append(self._answers.get())
        return answers

    def _answer(self, answer: Answer) -> None:
        self._answers.put(answer)
        self._wakeup_writer.send(b"!")

    def signal(self, pid: int, number: int) -> None:
        """End a worker, with any signal."""
        self._workers[pid].end(-number)

    def end(self) -> None:
        for worker in self._workers.values():
            worker.end(-9)

    def why_ended(self) -> str:
        return "the worker threads were released"

    def release(self) -> None:
        for worker in self._workers.values():
            worker.close()
        for worker in self._workers.values():
            worker.hear_of_the_end({other.name for other in self._workers.values()} - {worker.name})
        for worker in self._workers.values():
            worker.release()
        self.channel.close()
        self._wakeup_writer.close()


class ThreadWorker:
    """One worker; its thread acts as the main thread of a process."""

    def __init__(
        self, transport: MemoryTransport, spec: WorkerSpec, folder: Path, exited: Callable[[int], None]
    ) -> None:
        self.name = spec.address.node
        self._exited = exited  # called once, with the exit code
        self._transport = transport
        self._spec = spec
        self._folder = folder
        self._node = make_node(transport, spec)
        self._node.data_plane = DataPlane(self._node, folder, spec.world.agent)
        self._heartbeat = Heartbeat(self._node, folder, spec.incarnation)
        self._has_left = False
        self._ending = threading.Lock()  # acquired once, by the first call of `end`; never released
        self._thread = threading.Thread(target=self._live, name=f"meshbook worker {spec.address.node}", daemon=True)

    def start(self) -> None:
        """Start, unless it has been killed before."""
        if not self._ending.locked():
            self._thread.start()

    def _live(self) -> None:
        CURRENT.set(client_of(self._node, self._spec))
        ready = self._prepare()
        if ready and not self._ending.locked():
            serve(self._node, self._spec)
        self._has_left = True
        self._node.actors.release_all()
        self._node.data_plane.close(patience=0)
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
        """Mark the worker as dead: it receives and sends nothing more. Code that runs continues without effect."""
        if self._ending.acquire(blocking=False):
            self._heartbeat.close()
            self._transport.close()
            self._exited(code)

    def close(self) -> None:
        """In a forked child (multiprocessing): leave agent and folder to the parent, whose end they must detect."""
        self._node.close()

    def hear_of_the_end(self, others: Iterable[str]) -> None:
        """Release callers that wait for the end of other workers, such as those of a mesh that an actor here owns."""
        for other in others:
            self._node.peers.announce_down(ExitReport(other, 0, None, stopped=SHUT_DOWN), ())

    def release(self) -> None:
        """Release its threads."""
        if PROCESS in self._node.actors.names() and not self._has_left:
            self._node.calls.notify(self._node.address, PROCESS, "stop", SHUT_DOWN)
        self._node.data_plane.close(patience=0)
        close_with_actors(self._node)
        if self._thread.ident is not None:
            self._thread.join(SECONDS)


def close_with_actors(node: Node) -> None:
    """Close a node and end its actors, each after its current message."""
    node.close()
    node.stop_actors(SHUT_DOWN)
