"""Runs that outlive the process that started them: detach, and attach from another one.

`detach()` keeps the processes and actors of this session running without a controller for a while; `attach()` makes
another process, or this one, their controller. In a notebook `%mesh detach` and `%mesh attach` do the same.
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
    """Keep the processes of this session running without it; returns the name of the run, for `attach`.

    The processes and their actors continue, and their output is kept. After so many seconds they end, unless a process
    has attached. Actors in this process end, pending calls from here fail, and handles can no longer be used here.
    Other hosts continue too, as their launchers' processes on this machine do. Raises DetachError if hosts are Ray's,
    which ends them with this program, or if a heal is in progress; RuntimeError if nothing was started, ValueError for
    an invalid time.
    """

    def leave(session: Session) -> str:
        _detach(session, seconds, nothing_more)
        return session.run

    return leave_session(leave)


def detached_runs() -> list[Status]:
    """Return the status of the detached runs on this host; `held_by` describes the process that has attached since."""
    return detached.detached_runs()


def attach(run: str = "") -> dict[str, ProcMesh]:
    """Become the controller of a detached run; returns its process meshes by their names.

    `run` is the return value of `detach`, or its beginning, or the name of a mesh; empty: the only run there is. The
    actors of a mesh are in `mesh.actors`. Deaths of ranks in the meantime are reported as if they happened now. Raises
    DetachError if there is no such run, or it cannot be attached; RuntimeError if this process has a run of its own.
    """
    session = attaching.attach(detached.choose(run), present_process(), lambda session: None)
    return session.meshes()


def end(run: str) -> str:
    """End a detached run, given by `run` as for `attach`, with all its processes; returns its full name."""
    found = detached.choose(run)
    attaching.end(found, present_process())
    return found.run


def present_process() -> str:
    """Return a description of this process, which other processes show as the holder of the run."""
    return f"pid {os.getpid()} ({Path.cwd().name})"
