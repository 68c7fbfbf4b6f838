"""Joined runs: this process as a client of runs of other controllers, in addition to its own run, if any.

The first use of a handle of another run joins that run (`runtime.mesh.handed`). A client is a node of the run. It calls
the run's actors, spawns meshes, and supervises the meshes that it has spawned, which end with it. It owns nothing else
there.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import functools
import os
import secrets
import socket
import threading
import time
from pathlib import Path

import msgspec

from meshbook.runtime.actor.context import Context, Instance, client_context, process_run
from meshbook.runtime.actor.future import wait_until_settled
from meshbook.runtime.config import check_private, current_settings
from meshbook.runtime.errors import ExitReport, PickleError, SupervisionError
from meshbook.runtime.geometry import SCALAR
from meshbook.runtime.hosts.clients import CLIENTS, LEAVES, ClientHello, ClientWelcome, decode_welcome
from meshbook.runtime.hosts.faults import UnhandledFaults, end_process
from meshbook.runtime.hosts.lifeline import present_version
from meshbook.runtime.interrupts import hold_interrupts
from meshbook.runtime.mesh import foreign_handles as foreign_handles  # registers the handles of other runs
from meshbook.runtime.mesh.handle_pickling import load_from
from meshbook.runtime.mesh.hosts import HostMesh
from meshbook.runtime.mesh.local_handles import LocalHandles
from meshbook.runtime.node.call_table import CallTable, Decode
from meshbook.runtime.node.node import Node
from meshbook.runtime.transport.home import UNIX, Home
from meshbook.runtime.transport.io_loop import IN
from meshbook.runtime.transport.unix import UnixTransport
from meshbook.runtime.wire import pickling
from meshbook.runtime.wire.messages import Address

LOOK_SECONDS = 0.01  # polling interval for the socket of an agent that is still starting
STOP_SECONDS = 1.0  # time for the actors of a client to end when it leaves


class RunOver(SupervisionError):
    """The run has ended."""

    page = "runover"


class JoinedRun:
    """This process as a client of one other run. Raises SupervisionError if it cannot join."""

    def __init__(self, run: str) -> None:
        folder = Path(run.removeprefix(UNIX))
        pickling.pass_main_by_value()
        self._run = run
        self._name = f"client-{secrets.token_hex(4)}"
        self._connection, welcome = _enter(folder, ClientHello(self._name, os.getpid(), present_version()))
        assert welcome.controller is not None
        assert welcome.agent is not None
        try:
            transport = UnixTransport(self._name, Home.of_first_host(folder), welcome.settings)
        except OSError as error:
            self._connection.close()
            raise SupervisionError(f"cannot join run {folder.name}: {error}") from error
        node = self.node = Node(transport, welcome.run, welcome.settings)
        node.controller, node.guide = welcome.controller, welcome.agent
        # In this run only a child process of the controller logs, whose points are not the notebook's.
        node.points.drop_all()
        node.routes.trust(welcome.controller)
        node.routes.trust(welcome.agent)
        node.routes.expect(welcome.incarnations)
        node.places = LocalHandles(HostMesh([welcome.agent], SCALAR.region), node.address)
        node.relay = PortRelays(node).place
        node.dispatch.load = functools.partial(load_from, run)
        self._faults = UnhandledFaults()
        node.on_fault = self._faults.report
        self.context = Context(Instance("client", "client", SCALAR.point(0), node))
        self.has_ended = False
        self._leaving = threading.Lock()  # acquired once, by the first call of `leave`; never released
        self._connection.setblocking(False)
        node.loop.register(self._connection.fileno(), IN, self._on_line)
        node.loop.close_in_child.append(self._connection.close)
        node.start()

    def _on_line(self, flags: int) -> None:
        """Detect the end of the run: the agent sends nothing more on this connection. On the I/O thread."""
        try:
            is_over = not self._connection.recv(1)
        except BlockingIOError:
            return
        except OSError:
            is_over = True
        if is_over:
            self._lose()

    def _lose(self) -> None:
        node, why = self.node, _why_over(self._run)
        self.has_ended = True
        node.loop.unregister(self._connection.fileno())
        self._connection.close()
        owned = [name for owned_mesh in node.ledger.of("") for name in owned_mesh.ranks]
        for name in {*owned, *(peer.node for peer in node.peers.known())}:
            node.peers.announce_down(ExitReport(name, 0, None, stopped=why), ())
        for name, report in node.peers.ended.items():
            if report.stopped:  # possibly as a part of that end
                node.routes.end(ExitReport(name, 0, None, stopped=why))
        node.routes.close(why)
        node.close(lambda: SupervisionError(why))

    def leave(self) -> None:
        """Stop the meshes and actors that this process has spawned in the run; change nothing else. Idempotent."""
        if not self._leaving.acquire(blocking=False):
            return
        self._faults.close()
        if not self.has_ended:
            self.context.run(self._stop_owned)
            self.node.routes.close(f"this process has left run {_name_of(self._run)}")
            self.node.close()  # first: pending messages are sent before the others receive the end
            with contextlib.suppress(OSError):  # the run has ended meanwhile
                self._connection.sendall(LEAVES)
            self._connection.close()

    def _stop_owned(self) -> None:
        reason = "its client has left the run"
        stopping = [owned_mesh.stop(reason) for owned_mesh in self.node.ledger.of("")]
        wait_until_settled([*stopping, *self.node.stop_actors(reason)], STOP_SECONDS)

    @property
    def has_unreceived_faults(self) -> bool:
        """Whether the client had failures at its end that no caller had received."""
        return self._faults.has_unreceived


class PortRelays:
    """Ports of this process's own run, made available as ports of its node in another run."""

    def __init__(self, node: Node) -> None:
        self._node = node
        # by address and number of the port in its own run; kept while the run lasts
        self._numbers: dict[tuple[str, int], int] = {}

    def place(self, address: Address, number: int, *, once: bool) -> tuple[Address, int]:
        """Return the address and number that the run uses for this port. PickleError for a port of another process."""
        own = client_context().actor_instance.node if process_run() else self._node
        if address not in (own.address, self._node.address):
            raise PickleError(f"a port of {address.node} cannot be sent to another run; open one in this process")
        if address == self._node.address:
            return address, number
        key = address.url, number
        if key not in self._numbers:
            self._numbers[key] = self._node.table.open_port(_PortRelay(own.table, number), once=once)
        return self._node.address, self._numbers[key]


class _PortRelay:
    """Forwards the messages of one port to another port of this process, and the errors at the end of the run, too."""

    def __init__(self, table: CallTable, number: int) -> None:
        self._table = table
        self._number = number

    def answer(self, index: int, decode: Decode) -> None:
        if (found := self._table.take(self._number, index)) is not None:
            found[0].answer(found[1], decode)

    def refuse(self, index: int, error: BaseException) -> None:
        if (found := self._table.take(self._number, index)) is not None:
            found[0].refuse(found[1], error)


class _Joined:
    """The joined runs of this process, by their URLs."""

    runs: dict[str, JoinedRun] = {}
    lock = threading.RLock()  # guards joining: two threads must not join the same run twice
    registered = False  # whether the exit handler is registered


def join(run: str) -> Context:
    """Return the context of this process as a client of a run; join the run first if needed. For any thread.

    RunOver if the run has ended, another SupervisionError if it cannot be joined. In a run that has ended since, calls
    fail.
    """
    if (known := _Joined.runs.get(run)) is None:
        with _Joined.lock:
            if (known := _Joined.runs.get(run)) is None:
                known = _Joined.runs[run] = JoinedRun(run)
            if not _Joined.registered:
                _Joined.registered = True
                atexit.register(_leave_at_exit)
    return known.context


def has_ended(run: str) -> bool:
    """Whether a run that this process has joined has ended."""
    known = _Joined.runs.get(run)
    return known is not None and known.has_ended


def leave_runs() -> bool:
    """Leave all other runs; return whether a failure there reached no caller. The next use joins again."""
    with hold_interrupts():
        with _Joined.lock:
            left = list(_Joined.runs.values())
            _Joined.runs = {}
        for each in left:
            each.leave()
    return any(each.has_unreceived_faults for each in left)


def _leave_at_exit() -> None:
    if leave_runs():
        end_process(SystemExit(1))


def _in_forked_child() -> None:
    _Joined.runs, _Joined.lock, _Joined.registered = {}, threading.RLock(), False


os.register_at_fork(after_in_child=_in_forked_child)


def _enter(folder: Path, entry: ClientHello) -> tuple[socket.socket, ClientWelcome]:
    """Connect to the agent of the run in this folder, and wait for its answer."""
    seconds = current_settings().launch_timeout
    end = time.monotonic() + seconds
    run = folder.name
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        check_private(folder)
        while not _connects(connection, folder):
            if time.monotonic() > end:
                raise TimeoutError(f"no answer within {seconds:g} s (MESHBOOK_LAUNCH_TIMEOUT)")
            time.sleep(LOOK_SECONDS)  # polling: an agent that is still starting cannot notify this process
        connection.settimeout(max(1.0, end - time.monotonic()))
        connection.sendall(msgspec.json.encode(entry) + b"\n")
        with connection.makefile("rb") as answers:
            line = answers.readline()
        if not line:
            raise FileNotFoundError
        welcome = decode_welcome(line)
        if welcome.error:
            raise SupervisionError(f"cannot join run {run}: {welcome.error}")
    except BaseException as error:
        connection.close()
        if isinstance(error, FileNotFoundError | ConnectionError):
            raise RunOver(f"{_why_over(run)}; or it is on another host") from None
        if isinstance(error, OSError | msgspec.DecodeError):
            raise SupervisionError(f"cannot join run {run}: {error}") from error
        raise
    return connection, welcome


def _connects(connection: socket.socket, folder: Path) -> bool:
    """Connect to the agent; return whether it listens. FileNotFoundError for a run that has ended."""
    try:
        connection.connect(os.fspath(folder / CLIENTS))
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ECONNREFUSED):
            raise
        if not _is_held(folder):
            raise FileNotFoundError from None
        return False
    return True


def _is_held(folder: Path) -> bool:
    """Whether a process holds the lock of a run's folder, as every process does that relies on it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _name_of(run: str) -> str:
    return Path(run.removeprefix(UNIX)).name


def _why_over(run: str) -> str:
    return f"run {_name_of(run)} has ended: its controller or its host agent ended, or close_session() was called"
