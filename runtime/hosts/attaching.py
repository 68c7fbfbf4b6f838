"""Attaching: become the controller of a detached run, by way of its socket, its agent, and its saved state."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec

from meshbook.runtime.actor.context import CURRENT
from meshbook.runtime.config import Settings, current_settings, runtime_root
from meshbook.runtime.hosts.detaching import ControllerState, DetachError, load
from meshbook.runtime.hosts.host_handover import restore
from meshbook.runtime.hosts.journal import read_logged, read_messages, read_output
from meshbook.runtime.hosts.launch import RunFolder
from meshbook.runtime.hosts.launchers import AgentProcess, ForeignProcess
from meshbook.runtime.hosts.lifeline import (
    JOURNAL,
    STATE_FILE,
    RunRequest,
    RunState,
    RunTaken,
    RunUnreachable,
    Status,
    present_version,
    send_request,
)
from meshbook.runtime.hosts.session import Session, replace_session
from meshbook.runtime.interrupts import allow_interrupts, hold_interrupts
from meshbook.runtime.mesh.handover_state import restore_meshes
from meshbook.runtime.mesh.procs import ProcMesh
from meshbook.runtime.node.node import Node
from meshbook.runtime.telemetry.output import TELEMETRY
from meshbook.runtime.wire import pickling
from meshbook.runtime.wire.frames import BodyElsewhere, unpack

_CREDENTIALS = struct.Struct("3i")

Prepare = Callable[["AttachedSession"], None]


class AttachedSession(Session):
    """The controller of a run that another process has begun."""

    def __init__(self, folder: Path, left: ControllerState, run_state: RunState, connection: socket.socket) -> None:
        self._path = folder
        self._left = left
        self._run_state = run_state
        self._connection = connection
        super().__init__(left.settings)
        self.lost: list[str] = []  # messages about state that could not be restored here
        self.part = left.part

    @property
    def dropped(self) -> dict[str, int]:
        """By node: the number of output chunks that exceeded the limit and were dropped."""
        return self._run_state.dropped

    def _open_folder(self) -> RunFolder:
        self.run = self._left.run
        return RunFolder(self._path)

    def _new_node(self) -> Node:
        return Node(self._connect("controller"), self.run, self.settings, self._run_state.incarnation, takes_over=True)

    def _start_agent(self) -> AgentProcess:
        return FoundAgent(self._connection)

    def _send_worker_spec(self) -> None:
        """Do nothing: the agent already has its spec."""

    def _abandon_agent(self) -> None:
        """Do nothing: the run continues."""

    def _begin(self) -> None:
        """Do nothing: `take_over` begins later."""

    def take_over(self, prepare: Prepare) -> None:
        """Restore the saved state, call `prepare`, and replay the messages since then."""
        left = self._left
        token = CURRENT.set(self.context)
        try:
            for peer in self._run_state.peers:
                self.node.routes.trust(peer)
            self.node.routes.restore(left.incarnations, left.ended)
            self.worker_registry.adopt(left.worker_registry)
            self.output.restore(left.output)
            self.curves.restore()
            for event in left.events:
                self.events.add(event)
            self.lost = restore_meshes(left.meshes, self.node, restore(self.remote, left.hosts, self.host))
            prepare(self)
            self._replay()
        finally:
            CURRENT.reset(token)
        self._send_line(msgspec.json.encode(RunTaken()) + b"\n")
        # Not by the agent, which may read that line only after this process has detached again, with a new file.
        (self._path / STATE_FILE).unlink(missing_ok=True)
        super()._begin()
        self.node.peers.greet(self.node.peers.known())
        self.remote.watch_adopted()

    def _replay(self) -> None:
        journal = self._path / JOURNAL
        for frame in read_output(journal):
            _, body = unpack(frame)
            if isinstance(body, BodyElsewhere):
                # its body was with a controller that was killed, and is lost like everything that one had received
                continue
            (chunk,), _ = pickling.loads(body, TELEMETRY)
            self.output.replay(chunk)
        for frame in read_logged(journal):
            _, body = unpack(frame)
            if not isinstance(body, BodyElsewhere):
                (logged,), _ = pickling.loads(body, TELEMETRY)
                self.curves.add(logged)
        for frame in read_messages(journal):
            self.node.loop.run(functools.partial(self.node.accept, frame))

    def meshes(self) -> dict[str, ProcMesh]:
        """Return the process meshes by their names; of several with one name, the newest."""
        owned_meshes = (self.node.ledger.get(mesh.key) for mesh in self._left.meshes.procs)
        return {owned_mesh.name: owned_mesh.handle() for owned_mesh in owned_meshes if owned_mesh is not None}

    def give_back(self) -> None:
        """Leave the run as it was: the takeover failed."""
        self.has_left = True
        self.node.close()
        self.curves.close()
        self._hang_up()
        self.folder.close()


class FoundAgent(ForeignProcess):
    """An agent that is not a child of this process, identified by the connection to its socket."""

    def __init__(self, connection: socket.socket) -> None:
        asked = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self.pid, _, _ = _CREDENTIALS.unpack(asked)
        self._process = os.pidfd_open(self.pid)  # while the agent holds the connection, its pid is not reused
        connection.settimeout(None)
        self.stdin = os.fdopen(connection.detach(), "wb", buffering=0)


def attach(run: Status, label: str, prepare: Prepare, settings: Settings | None = None) -> AttachedSession:
    """Become the controller of this run, and replace this process's session, which must own nothing.

    Raises DetachError if the run was begun by another version, is attached already, or has ended. It then stays
    detached.
    """
    if run.version and run.version != present_version():
        raise DetachError(
            f"run {run.run} was started by {run.version}, but this is {present_version()}; use the same version"
        )
    folder = runtime_root(settings or current_settings()) / run.run
    return replace_session(lambda: _take(folder, label, prepare))


def _take(folder: Path, label: str, prepare: Prepare) -> AttachedSession:
    with hold_interrupts(f"run {folder.name} was not attached") as hold:
        connection: socket.socket | None = None
        try:
            with allow_interrupts():
                answer, connection = send_request(folder, RunRequest("attach", label))
            if answer.run_state is None:
                raise DetachError(answer.error)
            session = AttachedSession(folder, load((folder / STATE_FILE).read_bytes()), answer.run_state, connection)
        except RunUnreachable as error:
            raise DetachError(f"cannot attach to run {folder.name}: {error}") from error
        except BaseException:
            if connection is not None:
                connection.close()
            raise
        try:
            session.take_over(prepare)
        except BaseException:
            session.give_back()
            raise
        hold.note = f"run {folder.name} was attached"
    return session


def end(run: Status, label: str, settings: Settings | None = None) -> None:
    """End a detached run with all its processes; return once it has ended. DetachError if it is attached already."""
    folder = runtime_root(settings or current_settings()) / run.run
    try:
        answer, connection = send_request(folder, RunRequest("end", label))
    except RunUnreachable as error:
        raise DetachError(f"cannot end run {run.run}: {error}") from error
    if answer.error:
        connection.close()
        raise DetachError(answer.error)
    with contextlib.suppress(ProcessLookupError):  # it has already ended
        FoundAgent(connection).wait()
