"""Runs that outlive the process which began them: detach, and attach from another one.

`detach()` leaves the processes of this session to themselves, with their actors, for a while; `attach()` makes another
process, or this one, their controller. In a notebook `%mesh detach` and `%mesh attach` do the same.
"""

from __future__ import annotations

import os
from pathlib import Path

from meshbook.runtime.hosts import attaching
from meshbook.runtime.hosts import detached_runs as detached
from meshbook.runtime.hosts.detaching import DAY, DetachError, nothing_more
from meshbook.runtime.hosts.detaching import detach as _detach
from meshbook.runtime.hosts.lifeline import MeshStatus, Status
from meshbook.runtime.hosts.session import Session, leave_session
from meshbook.runtime.mesh.procs import ProcMesh

__all__ = ["DetachError", "MeshStatus", "Status", "attach", "detach", "detached_runs", "end"]


def detach(seconds: float = DAY) -> str:
    """Leave the processes of this session to themselves; returns the name of the run, for `attach`.

    They and their actors live on, what they print is kept, and what they do goes on. After so many seconds they end,
    unless somebody has attached. What lives in this very process ends, calls from here that are open fail, and handles
    are of no use here any more. Raises DetachError where it cannot be: with other hosts in the run, in the middle of a
    heal. RuntimeError where nothing was started, ValueError for a time that is none.
    """

    def leave(session: Session) -> str:
        _detach(session, seconds, nothing_more)
        return session.run

    return leave_session(leave)


def detached_runs() -> list[Status]:
    """The runs on this host that were detached, and how they are; `held_by` says who has attached since."""
    return detached.detached_runs()


def attach(run: str = "") -> dict[str, ProcMesh]:
    """Be the controller of a detached run from now on; returns its process meshes by their names.

    `run` is what `detach` returned, or the beginning of that, or the name of a mesh; none: the only one there is.
    The actors of a mesh are in `mesh.actors`. Ranks that died meanwhile are told of as if they did so now. Raises
    DetachError where there is no such run, or it is not to be had; RuntimeError where this process has its own.
    """
    session = attaching.attach(detached.choose(run), present_process(), lambda session: None)
    return session.meshes()


def end(run: str) -> str:
    """End a detached run, which `run` names as for `attach`, with all its processes; returns its full name."""
    found = detached.choose(run)
    attaching.end(found, present_process())
    return found.run


def present_process() -> str:
    """This process, as others are told who has attached."""
    return f"pid {os.getpid()} ({Path.cwd().name})"
