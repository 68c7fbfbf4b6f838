"""The session: this process as the controller of a run, with the agent of its own host. A process has at most one.

The first use (`this_host()`, `context()`) starts it; a notebook's kernel starts it in the background.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from meshbook.runtime.actor.context import CURRENT, Context, Instance, context, provide_client
from meshbook.runtime.actor.future import Future, check_timeout, wait_until_settled
from meshbook.runtime.config import Settings, current_settings, open_private, runtime_root
from meshbook.runtime.errors import ExitReport, LaunchError, SupervisionError
from meshbook.runtime.formats import mesh_name
from meshbook.runtime.geometry import SCALAR
from meshbook.runtime.hosts.controllers import CONTROLLERS, WORKER_REGISTRY, Controllers, WorkerRegistry
from meshbook.runtime.hosts.faults import UnhandledFaults, end_process
from meshbook.runtime.hosts.joined_runs import RunOver, has_ended, join, leave_runs
from meshbook.runtime.hosts.launch import AGENT, AgentSpec, RunFolder, make_folder
from meshbook.runtime.hosts.launchers import START_AGENT, AgentProcess, agent_environment
from meshbook.runtime.hosts.metrics import export_of
from meshbook.runtime.hosts.process_sampler import VITALS_SENDER
from meshbook.runtime.hosts.remote_hosts import RemoteHosts
from meshbook.runtime.hosts.script_debugger import ScriptDebugger
from meshbook.runtime.interrupts import allow_interrupts, hold_interrupts
from meshbook.runtime.mesh.hosts import HOST, HostMesh
from meshbook.runtime.mesh.local_handles import LocalHandles
from meshbook.runtime.mesh.procs import ProcMesh
from meshbook.runtime.mesh.worker_specs import is_agent_warm
from meshbook.runtime.node.node import Node
from meshbook.runtime.rdma.data_plane import DataPlane
from meshbook.runtime.resources import explain_limit
from meshbook.runtime.telemetry.curves import CurveStore
from meshbook.runtime.telemetry.events import EventLog, RunEvent
from meshbook.runtime.telemetry.forwarding import Forwarder, ScriptScreen
from meshbook.runtime.telemetry.history import History, VitalsActor
from meshbook.runtime.telemetry.logs import Prefix
from meshbook.runtime.telemetry.output import TELEMETRY, OutputStore, TelemetryActor
from meshbook.runtime.telemetry.prompt_questions import QUESTIONS, QuestionRouter
from meshbook.runtime.telemetry.stderr_tail import last_lines
from meshbook.runtime.telemetry.vitals import VITALS
from meshbook.runtime.transport import Transport
from meshbook.runtime.transport.home import Home
from meshbook.runtime.transport.unix import UnixTransport
from meshbook.runtime.wire import pickling
from meshbook.runtime.wire.messages import Address

if TYPE_CHECKING:  # weight: numpy
    from meshbook.runtime.telemetry.curve_exports import MetricHistory

S = TypeVar("S", bound="Session")
T = TypeVar("T")
AGENT_LINES = 20  # lines of the agent's log in its report, if the settings ask for no lines of workers
CURVES = "curves"  # the folder with the history of curves, in that of the run
STOP_SECONDS = 1.0  # time for workers to leave by themselves when the controller exits


class Session:
    """A controller: its node, its run's folder, and the agent it started. `close()` ends the whole run.

    Raises LaunchError if the folder or the agent cannot be made. If an agent starts and fails later, the error appears
    at the first `spawn_procs`: `initialized` of its mesh raises LaunchError.
    """

    is_in_process = False  # whether workers are threads of this process

    def __init__(self, settings: Settings | None = None) -> None:
        pickling.pass_main_by_value()
        self.settings = settings or current_settings()
        self.run = secrets.token_hex(4)
        self.folder = self._open_folder()
        self.output = OutputStore()
        self.questions = QuestionRouter()
        self.debugger = ScriptDebugger(lambda: runtime_root(self.settings))
        self.questions.open("", self.debugger)  # for prompts that belong to no cell
        self.events = EventLog()
        self.history = History()
        self.curves = CurveStore(self.folder.path / CURVES, lambda: self.incarnation)
        self.forwarder = Forwarder(ScriptScreen())
        self.output.set_default(self.forwarder.take)
        self.worker_registry = WorkerRegistry()
        self._faults = UnhandledFaults()
        self._agent_address = Address(AGENT, f"{self._inbox_prefix()}{AGENT}")
        self._closing = threading.Lock()  # acquired once, by the first call that closes or leaves; never released
        self.has_left = False  # the run continues without this session
        self._trouble = "the host agent ended, and its workers with it; call close_session() to start again"
        try:
            # First: the agent removes the folder if this process is killed before it has sent the agent's spec.
            self._agent = self._start_agent()
            self.node = self._make_node()
            self._send_worker_spec()
        except Exception as error:  # OSError and zmq.ZMQError, among others
            self._give_up()
            why = ". ".join(filter(None, (str(error), explain_limit(str(error), self.folder.path))))
            raise LaunchError(f"the host agent cannot be started: {why}") from error
        self.host = HostMesh([self._agent_address], SCALAR.region, owned=True, is_fake_in_process=self.is_in_process)
        self.remote = RemoteHosts(self.node, self.settings, self.folder.path, self.worker_registry, self._agent_address)
        self.node.places = LocalHandles(self.host, self.node.address)
        self.node.casts.add_agent(self._agent_address)
        self.context = Context(Instance("client", "client", SCALAR.point(0), self.node))
        self.metrics = export_of(self)
        self._watcher = threading.Thread(target=self._watch_agent, name="meshbook agent watcher", daemon=True)
        Prefix.install()
        self._begin()

    def _begin(self) -> None:
        self.node.start()
        self._watcher.start()

    def _open_folder(self) -> RunFolder:
        return make_folder(self.settings, self.run)

    def _make_node(self) -> Node:
        node = self._new_node()
        node.data_plane = DataPlane(node, self.folder.path, self._agent_address)
        node.actors.host_inline(TELEMETRY, TelemetryActor(self.output, self.events, self.curves))
        node.actors.host_inline(VITALS, VitalsActor(self.history))
        node.actors.host_inline(QUESTIONS, self.questions)
        node.actors.host_inline(WORKER_REGISTRY, self.worker_registry)
        node.actors.host(CONTROLLERS, Controllers, class_name="Controllers").start(lambda error: None)
        node.points.send = self.curves.add
        node.peers.when_down += [self.worker_registry.ended, self.output.ended, self.history.ended]
        node.peers.when_restarted.append(self.output.restarted)
        node.on_fault = self._faults.report
        return node

    def _start_agent(self) -> AgentProcess:
        return self._launch()

    def _send_worker_spec(self) -> None:
        spec = AgentSpec(
            run=self.run,
            node=AGENT,
            controller=self.node.address,
            folder=str(self.folder.path),
            settings=self.settings,
            is_warm=is_agent_warm(self.settings),
        )
        with contextlib.suppress(BrokenPipeError):  # the agent has already ended; the watcher reports it
            self._send_line(msgspec.json.encode(spec) + b"\n")

    # -- connections between nodes and the agent process; `in_process` and `attaching` override these --

    def _new_node(self) -> Node:
        return Node(self._connect("controller"), self.run, self.settings)

    def _inbox_prefix(self) -> str:
        return f"unix://{self.folder.path}/"

    def _connect(self, node: str) -> Transport:
        return UnixTransport(node, Home.of_first_host(self.folder.path), self.settings)

    def _launch(self) -> AgentProcess:
        with open(self.folder.path / "agent.log", "wb", opener=open_private) as log:
            return subprocess.Popen(
                [sys.executable, "-P", *START_AGENT, str(self.folder.path)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=agent_environment(),
                start_new_session=True,  # Ctrl-C on a terminal is for the controller only
            )

    def _give_up(self) -> None:
        if hasattr(self, "node"):
            self.node.close()
        if hasattr(self, "_agent"):
            self._abandon_agent()
        self.curves.discard()
        self.folder.close()

    def _abandon_agent(self) -> None:
        self._hang_up()
        self._agent.kill()
        self._agent.wait()

    # -- watching ----------------------------------------------------------------

    def _watch_agent(self) -> None:
        """Wait until the agent has ended, then report its end and the end of its workers."""
        answer = self._ask_agent("gpus")

        def end_late_agent() -> None:
            if not answer.done():
                self._trouble = f"it did not start within {self.settings.launch_timeout:g} s (MESHBOOK_LAUNCH_TIMEOUT)"
                self._agent.kill()

        # The wait has no timeout: with one, `Popen.wait` polls 20 times a second.
        self.node.loop.call_later(self.settings.launch_timeout, end_late_agent)
        returncode = self._agent.wait()
        if self.has_left:  # the run continues without this session
            return
        lines = last_lines(self.folder.path / "agent.log", self.settings.stderr_lines or AGENT_LINES)
        stopped = "its host was shut down" if self.host.is_shut_down else ""
        if self._closing.locked():
            stopped = self._reason
        report = ExitReport(
            node=AGENT,
            pid=self._agent.pid,
            returncode=returncode,
            stderr=tuple(lines),
            hint="\n".join(filter(None, (explain_limit(lines, self.folder.path) if returncode else "", self._trouble))),
            stopped=stopped,
        )
        if not report.stopped:
            self.node.send_event("host lost", AGENT, "", [], str(report))
        # The workers first: a caller that waits for the end of the host also waits for theirs.
        guests = self.worker_registry.guests_of(AGENT)
        self.node.peers.announce_all_down(list(map(report.of_guest, guests)), ())
        self.node.peers.announce_down(report, ())
        self.remote.lose_all(f"the controller's host agent ended, and its links to other hosts with it: {report.cause}")

    def watch(self, on: bool) -> None:
        """Count one more open dashboard, or one less. While any is open, the agents measure four times a second."""
        self.history.watch(on)
        if on:
            others = [host.address for host in self.remote if host.address is not None]
            for agent in (self._agent_address, *others):
                # The answer is dropped: an agent that has ended needs no interval, and a later one requests it.
                self.node.calls.ask(agent, VITALS_SENDER, "pace", self.history.interval)

    def metric_history(
        self, metrics: Collection[str] = (), ranks: Collection[int] | None = None, mesh: str | None = None
    ) -> MetricHistory:
        """Return all points of these metrics, ranks and mesh, given by its unique name; by default of all.

        HistoryError for an unknown metric.
        """
        from meshbook.runtime.telemetry.curve_exports import MetricHistory  # weight: numpy

        self.node.points.flush(wait=True)
        saved = self.curves.saved()
        self.curves.check_logged(metrics)
        others = [run for run, name in self.curves.meshes().items() if mesh is not None and name != mesh_name(mesh)]
        return MetricHistory(saved, metrics, ranks, others)

    def workers(self) -> list[Address]:
        """Return the addresses of all processes of this run that have not ended and that this process can reach."""
        known = [self.node.routes.find(name) for name in self.worker_registry.workers()]
        return [address for address in known if address is not None]

    def count_clients(self) -> Future[int]:
        """Return the number of other programs that have joined this run."""
        return self._ask_agent("clients")

    @property
    def incarnation(self) -> int:
        """The number of controllers that this run has had before."""
        return self.node.incarnation

    @property
    def has_lost_agent(self) -> bool:
        """Whether the host agent has ended, so that nothing can be started any more."""
        return self.node.peers.report_of(AGENT) is not None

    def _ask_agent(self, endpoint: str, *arguments: Any) -> Future[Any]:
        return self.node.calls.ask(self._agent_address, HOST, endpoint, *arguments)

    # -- the end -----------------------------------------------------------------

    def close(self, seconds: float = STOP_SECONDS) -> None:
        """End the run: workers have `seconds` to leave, then every process is killed. Idempotent.

        Ctrl-C ends the wait for the workers, which are then killed.
        """
        with hold_interrupts(f"run {self.run} has ended"):
            if not self._closing.acquire(blocking=False):
                return
            self._faults.close()  # from now on, the end of a process is not a fault
            why = (lambda: SupervisionError(_format_fault(self.ended_by))) if self.ended_by else None
            _run_each(
                self.debugger.close,
                self.metrics.close,
                self.stop_actors,
                self.host.note_end,
                lambda: self._stop_workers(seconds),
                self.remote.hang_up,
                lambda: self.remote.close(STOP_SECONDS),
                self._hang_up,
                lambda: self._wait_for_agent(STOP_SECONDS),
                self._agent.kill,
                self._wait_for_agent,
                self.node.data_plane.close,
                lambda: self.node.close(why),
                self.forwarder.close,  # nothing more can arrive
                self.curves.discard,
                self.folder.close,
            )

    def _wait_for_agent(self, seconds: float | None = None) -> None:
        with allow_interrupts():
            self._watcher.join(seconds)

    @property
    def ended_by(self) -> str:
        """The failure that ends this process, or ""."""
        return self._faults.ended_by

    @property
    def has_unreceived_faults(self) -> bool:
        """Whether this closed session had failures that no caller had received."""
        return self._faults.has_unreceived

    @property
    def _reason(self) -> str:
        return f"the session ended: {_format_fault(self.ended_by)}" if self.ended_by else "the session ended"

    def _stop_workers(self, seconds: float) -> None:
        reason = self._reason
        stopping = [self._ask_agent("stop_all", reason), *self.remote.begin_to_stop(reason)]
        with allow_interrupts():
            wait_until_settled(stopping, seconds)

    def leave(self, order: bytes, why: Callable[[], BaseException]) -> None:
        """Leave the run without ending it. `order` is the message for its agent; pending calls fail with `why()`.

        By then the run sends nothing more to this process (`hosts.detaching`).
        """
        with hold_interrupts():
            if not self._closing.acquire(blocking=False):
                return
            self.has_left = True
            self._faults.close()
            _run_each(
                self.metrics.close,
                self.host.note_end,
                self.remote.leave,
                self.node.data_plane.close,
                lambda: self.node.close(why),
                self.curves.close,  # before the agent lets another controller read the files
                lambda: self._send_line(order),
                self._hang_up,
                self.forwarder.close,
                self.folder.close,
            )

    def _send_line(self, line: bytes) -> None:
        assert self._agent.stdin is not None
        self._agent.stdin.write(line)
        self._agent.stdin.flush()

    def stop_actors(self) -> None:
        """End the actors of this process, so that they can clean up."""
        wait_until_settled(self.node.stop_actors(self._reason), STOP_SECONDS)

    def _hang_up(self) -> None:
        assert self._agent.stdin is not None
        with contextlib.suppress(OSError):
            self._agent.stdin.close()

    def disown(self) -> None:
        """In a forked child (multiprocessing): leave agent and folder to the parent, whose end they must detect."""
        self._hang_up()
        self.remote.hang_up()
        self.folder.disown()


class _Current:
    """The only accessor of this process's session."""

    session: Session | None = None
    shutdown: Future[None] | None = None  # set once this process can no longer be a client
    # Guards the start: two threads must not start two sessions. Re-entrant, because a finalizer or signal handler that
    # runs during the start may use a handle; `starting` makes that use raise.
    lock = threading.RLock()
    starting = False
    ended_by = ""  # the failure that ends this process
    parent_run = ""  # in a forked child: the run whose controller was its parent


def _in_forked_child() -> None:
    session, _Current.session = _Current.session, None
    _Current.shutdown = None
    _Current.lock = threading.RLock()
    _Current.starting = False
    if session is not None:
        session.disown()
        _Current.parent_run = "" if session.is_in_process else session.node.home
        CURRENT.set(None)  # its node belongs to the parent


os.register_at_fork(after_in_child=_in_forked_child)


def _run_each(*steps: Callable[[], object]) -> None:
    """Run all steps, also if some raise; raise the first error at the end."""
    errors: list[BaseException] = []
    for step in steps:
        try:
            step()
        except BaseException as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _format_fault(failure: str) -> str:
    return f"an unhandled failure ends this process: {failure}"


def _check_not_shut_down() -> None:
    if _Current.ended_by:
        raise SupervisionError(_format_fault(_Current.ended_by))
    if _Current.shutdown is not None:
        raise RuntimeError(
            "shutdown_context() has shut down meshbook in this process for good; start a new process, "
            "or call close_session() instead if another session is to follow"
        )


def current_session() -> Session:
    """Return the session of this process; the first use starts it. RuntimeError after `shutdown_context()`."""
    if (session := _Current.session) is not None:
        return session  # without the lock: every call looks this up
    with _Current.lock, hold_interrupts():
        _check_not_shut_down()
        if _Current.session is None:
            if _Current.starting:
                raise RuntimeError("a finalizer or signal handler used meshbook while its session was being started")
            _Current.starting = True
            try:
                _Current.session = Session()
            finally:
                _Current.starting = False
            atexit.register(_close_at_exit)
        return _Current.session


def replace_session(make: Callable[[], S]) -> S:
    """Replace the session of this process. RuntimeError if the present session owns processes."""
    with _Current.lock, hold_interrupts():
        _check_not_shut_down()
        before = _Current.session
        if before is not None and len(before.node.ledger):
            raise RuntimeError("this process has running meshes; stop them first, or attach from another process")
        session = make()
        _Current.session = session
        atexit.register(_close_at_exit)
        if before is not None:
            # In a thread: an agent that is still starting does not leave at once.
            threading.Thread(target=before.close, name="meshbook session's end").start()
    return session


def leave_session(leave: Callable[[Session], T]) -> T:
    """Call `leave` with the session, and remove it from this process. RuntimeError if there is no session."""
    with _Current.lock, hold_interrupts():
        if (session := _Current.session) is None:
            raise RuntimeError("no session to detach: this process has not started one")
        try:
            return leave(session)
        finally:
            if session.has_left:
                _Current.session = None
                atexit.unregister(_close_at_exit)


def running_session() -> Session | None:
    """Return the session of this process, or None."""
    return _Current.session


def events() -> list[RunEvent]:
    """Return the events of this session's meshes so far, oldest first: the last thousand.

    Events are recorded for ranks that failed, were respawned or given up, and were healed, for meshes that were
    resized, and for spares and hosts. Meshes that actors own are included. Empty in a worker, and where no session
    runs.
    """
    session = running_session()
    return [] if session is None else list(session.events)


def close_session() -> None:
    """End this process's session and leave the runs that it has joined; the next use starts another session."""
    leave_runs()
    _close_current()


def _close_current() -> Session | None:
    with hold_interrupts() as hold:
        with _Current.lock:
            session, _Current.session = _Current.session, None
            if session is not None and session.ended_by:
                _Current.ended_by = session.ended_by
        if session is not None:
            hold.note = f"run {session.run} has ended"
            atexit.unregister(_close_at_exit)
            session.close()
    return session


def _close_at_exit() -> None:
    session = _close_current()
    if session is not None and session.has_unreceived_faults:
        end_process(SystemExit(1))  # at this point an exception cannot change the exit status any more


def shutdown_context(host_timeout: float | None = None) -> Future[None]:
    """End this process's client for good: its processes, its host, its runtime. Resolves once all have ended.

    Workers that have not left after `Settings.stop_timeout`, or after `host_timeout` seconds where that is less, are
    killed. Afterwards every use that needs a client raises RuntimeError; `close_session()` leaves room for another one.
    Without a client, as in a worker, there is nothing to do. A second call is no error. ValueError if the timeout is
    negative or not finite.
    """
    check_timeout(host_timeout, "host_timeout")
    leave_runs()
    with _Current.lock, hold_interrupts("the run is being shut down"):
        session, _Current.session = _Current.session, None
        if session is not None:
            _Current.shutdown = _close_in_background(session, host_timeout)
        return _Current.shutdown or Future.completed(None)


def _close_in_background(session: Session, seconds: float | None) -> Future[None]:
    if seconds is None:
        # by then the agent has killed the workers that were late
        seconds = session.settings.stop_timeout + STOP_SECONDS
    closed: Future[None] = Future.pending()

    def close() -> None:
        try:
            session.close(seconds)
        except BaseException as error:
            closed.fail(error)
        else:
            closed.resolve(lambda: None)

    atexit.unregister(_close_at_exit)
    if threading.main_thread().is_alive():
        # Not a daemon thread: a script that does not wait for the future exits only after it.
        threading.Thread(target=close, name="meshbook shutdown").start()
    else:  # in an atexit hook, threads are not joined any more
        close()
    return closed


def this_host() -> HostMesh:
    """The machine that the current actor or client runs on: a mesh without dimensions.

    `this_host().spawn_procs(per_host={"gpus": 4})` starts four processes on it. Raises LaunchError where this process's
    session cannot be started.
    """
    return context().actor_instance.node.places.host  # type: ignore[no-any-return]


def this_proc() -> ProcMesh:
    """The process that the current actor or client runs in: a mesh without dimensions.

    An actor spawned on it runs in this same process, on a thread of its own.
    """
    return context().actor_instance.node.places.proc()  # type: ignore[no-any-return]


def install_client() -> None:
    """Let `context()` start a session on first use. `import meshbook` calls this."""
    provide_client(_client, _own_run, join)


def _client() -> Context:
    """Return the context of this process's session, or in a forked child that of a client of its parent's run."""
    if _Current.session is None and (run := _own_run()):
        try:
            return join(run)
        except RunOver:
            _Current.parent_run = ""
    return current_session().context


def _own_run() -> str:
    if (session := _Current.session) is not None:
        return session.node.home
    if _Current.parent_run and has_ended(_Current.parent_run):
        _Current.parent_run = ""
    return _Current.parent_run
