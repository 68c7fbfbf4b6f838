"""The detached runs of this host: how to list them, select one, and format their status."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from meshbook.runtime.config import Settings, current_settings, runtime_root
from meshbook.runtime.hosts.detaching import DetachError
from meshbook.runtime.hosts.launch import is_of_a_run
from meshbook.runtime.hosts.lifeline import RUN_SOCKET, RunRequest, RunUnreachable, Status, send_request

STATUS_SECONDS = 3.0  # how long to wait for an agent's answer


def detached_runs(settings: Settings | None = None) -> list[Status]:
    """Return the detached runs of this host, including those that have been attached since."""
    root = runtime_root(settings or current_settings())
    folders = sorted(folder for folder in root.iterdir() if is_of_a_run(folder) and (folder / RUN_SOCKET).exists())
    found = []
    for folder in folders:
        with contextlib.suppress(RunUnreachable):
            answer, connection = send_request(folder, RunRequest("status"), STATUS_SECONDS)
            connection.close()
            found.append(answer.status)
    return [status for status in found if status is not None]


def choose(wanted: str, settings: Settings | None = None) -> Status:
    """Return the detached run with this id, a prefix of it, or the name of one of its meshes.

    Without a name, the only detached run. DetachError if none or several match.
    """
    every, root = detached_runs(settings), runtime_root(settings or current_settings())
    free = [run for run in every if not run.held_by]
    found = free
    if wanted:
        found = [run for run in every if run.run == wanted] or [
            run for run in free if run.run.startswith(wanted) or any(mesh.name == wanted for mesh in run.meshes)
        ]
    if len(found) == 1:
        return found[0]
    if found:
        which = f"{wanted!r} matches {len(found)} detached runs" if wanted else f"{len(found)} runs are detached"
        raise DetachError(f"{which}; name one:\n{format_runs(found)}")
    if wanted and (root / wanted).is_dir():
        raise DetachError(f"run {wanted} is not detached: its controller is still running")
    if not wanted:
        raise DetachError(f"no detached runs in {root}")
    others = f"; detached runs:\n{format_runs(free)}" if free else ""
    raise DetachError(f"no detached run matches {wanted!r}: it has ended, or its time limit has passed{others}")


def remark(settings: Settings | None = None) -> str:
    """Return a reminder of the detached runs for the user; empty if there is none."""
    runs = [run for run in detached_runs(settings) if not run.held_by]
    if not runs:
        return ""
    many = f"\n{len(runs) - 1} more: %mesh attach --list" if len(runs) > 1 else ""
    return f"detached: {format_run(runs[0])}\nattach to it with %mesh attach {runs[0].run}{many}"


def format_runs(runs: Sequence[Status]) -> str:
    """Format the runs, one on each line."""
    return "\n".join(map(format_run, runs))


def format_run(run: Status) -> str:
    """Format a run: `3f9c01aa mesh: 4 ranks, 2 busy · on gpu1 · detached since 14:02, ends 14:02 tomorrow`."""
    if run.held_by:
        return f"{run.run}  on {run.host} · attached by {run.held_by}"
    names = []
    for mesh in run.meshes:
        ranks = f"{mesh.ranks} rank{'s' * (mesh.ranks != 1)}"
        busy = f"{mesh.busy} busy" if mesh.busy else "idle"
        names.append(f"{mesh.name}: {ranks}, {busy}{f', {mesh.dead} dead' if mesh.dead else ''}")
    meshes = ", ".join(names) or "no mesh"
    return f"{run.run}  {meshes} · on {run.host} · detached {clock(run.since)}, ends {clock(run.until)}"


def clock(at: float) -> str:
    """Format a time: `14:02`, with the date if it is not today."""
    moment = time.localtime(at)
    same_day = moment[:3] == time.localtime()[:3]
    return time.strftime("%H:%M" if same_day else "%b %d %H:%M", moment)
