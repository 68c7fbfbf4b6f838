"""Detaching a run: save the controller's state, then leave without ending the run.

peers hold their messages -> state saved to a file -> the node closes -> RunDetached to the agent, which stays
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from meshbook.runtime.actor.context import CURRENT
from meshbook.runtime.config import Settings, open_private
from meshbook.runtime.errors import ExitReport, MeshbookError
from meshbook.runtime.hosts.detached_controller import wait_for_silence
from meshbook.runtime.hosts.host_handover import RemoteHostsState, lifelines, save, undetachable
from meshbook.runtime.hosts.lifeline import (
    STATE_FILE,
    MeshSummary,
    RunDetached,
    RunUnreachable,
    present_version,
    wait_until_attachable,
)
from meshbook.runtime.hosts.session import Session
from meshbook.runtime.interrupts import allow_interrupts, hold_interrupts
from meshbook.runtime.mesh.handover_state import CLIENT, OwnedMeshes, owned_meshes_of
from meshbook.runtime.telemetry.events import RunEvent
from meshbook.runtime.telemetry.logbook import LogState
from meshbook.runtime.transport.home import host_of

DAY = 24 * 3600.0


class DetachError(MeshbookError):
    """A run cannot be detached or attached to."""

    page = "detacherror"


@dataclass(frozen=True)
class ClientState:
    """State of a client of the runtime: its data, and the calls whose answers are to be kept, with the node of each."""

    data: bytes = b""
    calls: dict[int, str] = field(default_factory=dict)


Contribute = Callable[[Session], ClientState]


def nothing_more(session: Session) -> ClientState:
    """Return an empty state: only the runtime has state to save."""
    return ClientState()


@dataclass(frozen=True)
class ControllerState:
    """The state that a controller saves for the next one."""

    run: str
    settings: Settings
    incarnation: int  # of its node
    incarnations: dict[str, int]
    ended: dict[str, ExitReport]
    worker_registry: dict[str, str]
    events: list[RunEvent]
    output: dict[str, LogState]
    meshes: OwnedMeshes
    hosts: RemoteHostsState
    part: bytes = b""


def detach(session: Session, seconds: float, contribute: Contribute = nothing_more) -> RunDetached:
    """Detach the run of this session, for `seconds` at most; the session is over.

    Actors of this process end, together with the meshes that they own; unanswered calls from here fail. Raises
    DetachError if the run cannot be detached, ValueError for an invalid time. The session then continues as before.
    """
    token = CURRENT.set(session.context)
    try:
        return _detach(session, seconds, contribute)
    finally:
        CURRENT.reset(token)


def _detach(session: Session, seconds: float, contribute: Contribute) -> RunDetached:
    node = session.node
    with hold_interrupts(f"run {session.run} was not detached") as hold:
        with allow_interrupts():
            check(session, seconds)
            _wait_until_up(session)
        peers = node.peers.known()
        try:
            with allow_interrupts():  # a rank that is stopped does not answer
                wait_for_silence(node, peers)
            left = _gather(session)
            part = contribute(session)
            with open(session.folder.path / STATE_FILE, "wb", opener=open_private) as run_state:
                run_state.write(pickle.dumps(dataclasses.replace(left, part=part.data)))
        except BaseException:
            node.peers.greet(peers)
            raise
        order = RunDetached(
            incarnation=node.incarnation,
            seconds=seconds,
            version=present_version(),
            meshes=tuple(MeshSummary(mesh.name, tuple(mesh.ranks)) for mesh in left.meshes.procs),
            calls=part.calls,
            peers=tuple(peer for peer in peers if host_of(peer) != host_of(node.address)),
            lifelines=lifelines(left.hosts),
        )
        session.stop_actors()  # only now: from here on the run is detached
        why = f"run {session.run} was detached; its calls continue without their caller"
        hold.note = f"run {session.run} was detached"
        session.leave(msgspec.json.encode(order) + b"\n", lambda: DetachError(why))
        try:
            with allow_interrupts():
                wait_until_attachable(session.folder.path)
        except RunUnreachable as error:
            raise DetachError(f"run {session.run} was detached, but no process can attach to it: {error}") from error
        finally:
            session.remote.hang_up()  # only now: the agent holds the lifelines
    return order


def check(session: Session, seconds: float) -> None:
    """Raise an error if the session cannot be detached."""
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"seconds must be a positive number, not {seconds!r}")
    if not hasattr(os, "pidfd_open"):
        raise DetachError(
            "detaching requires Linux: this system has no pidfd_open(), which detects that the agent has ended"
        )
    if session.has_lost_agent:
        raise DetachError("the host agent of this run has ended, and all processes with it; nothing is left to detach")
    if hosts := undetachable(session.remote):
        raise DetachError(
            f"the hosts {', '.join(hosts)} are Ray's, which ends them with this program; stop the meshes on them, or "
            "start them by another launcher"
        )
    owned_meshes_of(session.node)  # raises now for a mesh that is being healed


def _wait_until_up(session: Session) -> None:
    """Wait until processes that are starting have received all messages sent to them: these are not sent again."""
    seconds = session.settings.launch_timeout
    session.host.initialized.get(seconds)
    for owned_mesh in session.node.ledger.of(CLIENT):
        # A node with a known route is up. It need not answer now, since it may be stopped, or busy in C.
        if owned_mesh.are_processes and any(session.node.routes.find(node) is None for node in owned_mesh.ranks):
            with contextlib.suppress(MeshbookError):  # the death of a process is reported elsewhere
                owned_mesh.handle().ask_whether_ready().get(seconds)  # not `initialized`: a resize may have failed


def _gather(session: Session) -> ControllerState:
    node = session.node
    return ControllerState(
        run=session.run,
        settings=session.settings,
        incarnation=node.incarnation,
        incarnations=dict(node.routes.incarnation_by_node),
        ended=node.peers.ended,
        worker_registry=session.worker_registry.all,
        events=list(session.events),
        output=session.output.log_states(),
        meshes=owned_meshes_of(node),
        hosts=save(session.remote),
    )


def load(data: bytes) -> ControllerState:
    """Return the saved state. DetachError if this process cannot read it."""
    try:
        left: Any = pickle.loads(data)
    except Exception as error:
        raise DetachError(f"the saved state of the run cannot be read here: {error}") from error
    assert isinstance(left, ControllerState)
    return left
