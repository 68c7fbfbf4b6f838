"""Leaving a run to itself: what is the controller's is written down, and then it goes without ending anything.

others hold what they send -> what there is, into a file -> the node closes -> the agent is told, and stays
"""

from __future__ import annotations

import contextlib
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
from meshbook.runtime.hosts.lifeline import ESTATE, DoorClosed, MeshSummary, RunDetached, present_version, wait_for_door
from meshbook.runtime.hosts.session import Session
from meshbook.runtime.mesh.handover_state import CLIENT, OwnedMeshes, deeds_of
from meshbook.runtime.telemetry.events import RunEvent
from meshbook.runtime.telemetry.logbook import LogState

DAY = 24 * 3600.0


class DetachError(MeshbookError):
    """A run that cannot be left to itself, or taken over."""


@dataclass(frozen=True)
class ClientState:
    """What somebody above the runtime leaves: its data, and the calls whose answers are wanted, with who owes each."""

    data: bytes = b""
    calls: dict[int, str] = field(default_factory=dict)


Contribute = Callable[[Session], ClientState]


def nothing_more(session: Session) -> ClientState:
    """Nobody has anything to leave but the runtime."""
    return ClientState()


@dataclass(frozen=True)
class ControllerState:
    """What a controller leaves to the next one."""

    run: str
    settings: Settings
    incarnation: int  # of its node
    incarnations: dict[str, int]
    ended: dict[str, ExitReport]
    roster: dict[str, str]
    events: list[RunEvent]
    output: dict[str, LogState]
    deeds: OwnedMeshes
    part: bytes


def detach(session: Session, seconds: float, contribute: Contribute = nothing_more) -> RunDetached:
    """Leave the run of this session to itself, for so many seconds at most; the session is over.

    Actors that live in this very process end, with what they own; calls from here that have not been answered fail.
    Raises DetachError where that cannot be, ValueError for a time that is none. Then everything goes on as before.
    """
    token = CURRENT.set(session.context)
    try:
        return _detach(session, seconds, contribute)
    finally:
        CURRENT.reset(token)


def _detach(session: Session, seconds: float, contribute: Contribute) -> RunDetached:
    check(session, seconds)
    _wait_until_up(session)
    session.stop_actors()
    node = session.node
    peers = node.peers.known()
    wait_for_silence(node, peers)
    try:
        part = contribute(session)
        left = _gather(session, part)
        with open(session.folder.path / ESTATE, "wb", opener=open_private) as run_state:
            run_state.write(pickle.dumps(left))
    except BaseException:
        node.peers.greet(peers)
        raise
    order = RunDetached(
        incarnation=node.incarnation,
        seconds=seconds,
        version=present_version(),
        meshes=tuple(MeshSummary(deed.name, tuple(deed.ranks)) for deed in left.deeds.procs),
        calls=part.calls,
    )
    why = f"run {session.run} was detached: what was called runs on without its caller"
    session.leave(msgspec.json.encode(order) + b"\n", lambda: DetachError(why))
    try:
        wait_for_door(session.folder.path)
    except DoorClosed as error:
        raise DetachError(f"run {session.run} was detached, and cannot be attached to: {error}") from error
    return order


def check(session: Session, seconds: float) -> None:
    """Whether it can be detached."""
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"a run is detached for a number of seconds above zero, not for {seconds!r}")
    if not hasattr(os, "pidfd_open"):
        raise DetachError(
            "runs are detached on Linux alone: this system has no pidfd_open, by which who attaches would see its end"
        )
    if session.has_lost_agent:
        raise DetachError("the host agent of this run has ended, and its processes with it: nothing is left to detach")
    if hosts := [host.name for host in session.remote]:
        raise DetachError(
            f"this run has other hosts than this one ({', '.join(hosts)}), which end with this process: "
            "shut them down first"
        )
    deeds_of(session.node)  # a mesh that is being healed says so now


def _wait_until_up(session: Session) -> None:
    """What is still being started has to have heard all that it was sent: nobody says it again."""
    seconds = session.settings.launch_timeout
    session.host.initialized.get(seconds)
    for owned_mesh in session.node.ledger.of(CLIENT):
        # Who has said something is up; it need not answer now, when it may be stopped, or at work in C.
        if owned_mesh.are_processes and any(session.node.routes.find(node) is None for node in owned_mesh.ranks):
            with contextlib.suppress(MeshbookError):  # one that has died is told of otherwise
                owned_mesh.handle().initialized.get(seconds)


def _gather(session: Session, part: ClientState) -> ControllerState:
    node = session.node
    return ControllerState(
        run=session.run,
        settings=session.settings,
        incarnation=node.incarnation,
        incarnations=node.routes.all_lives(),
        ended=node.peers.ended,
        roster=session.roster.all,
        events=list(session.events),
        output=session.output.estates(),
        deeds=deeds_of(node),
        part=part.data,
    )


def load(data: bytes) -> ControllerState:
    """What was left. DetachError where this process cannot read it."""
    try:
        left: Any = pickle.loads(data)
    except Exception as error:
        raise DetachError(f"what its controller has left cannot be read here: {error}") from error
    assert isinstance(left, ControllerState)
    return left
