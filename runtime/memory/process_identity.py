"""Identities of processes, and which processes of a host belong to a run.

The system reuses pids, and a pid is only valid in its own namespace.
"""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path

import msgspec


class ProcessMark(msgspec.Struct, frozen=True, array_like=True):
    """The unique identity of a process: its pid, its start time, and the kernel and namespace that it runs in."""

    pid: int
    started: int  # clock ticks since the kernel started, from /proc; 0 without /proc
    system: str  # the boot and the namespace in which the pid is valid

    @property
    def has_ended(self) -> bool:
        """Whether a process of this system has ended, even if its pid is reused."""
        return has_ended(self.pid, self.started)


@functools.cache
def own_mark() -> ProcessMark:
    """Return the identity of this process."""
    pid = os.getpid()
    stat = _read_stat(pid)
    return ProcessMark(pid, _started_at(stat) if stat else 0, _own_system())


os.register_at_fork(after_in_child=own_mark.cache_clear)


def has_ended(pid: int, started: int) -> bool:
    """Return whether the process with this pid and start time has ended; False if that cannot be determined."""
    if not is_used(pid):
        return True
    stat = _read_stat(pid)
    if not stat:
        return False
    is_zombie = stat[0] in "ZX" and int(stat[17]) <= 1  # its threads may outlive the main thread
    return is_zombie or _started_at(stat) != started


def is_used(pid: int) -> bool:
    """Return whether a process with this pid exists."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)  # it exists, and belongs to another user
    return True


def _read_stat(pid: int) -> list[str]:
    """Return the fields of `/proc/<pid>/stat` from the third (the state) on; empty if it cannot be read."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes().decode(errors="replace")  # the name may contain any bytes
    except OSError:
        return []
    return text.rpartition(")")[2].split()  # the name may contain spaces and parentheses


def _started_at(stat: list[str]) -> int:
    return int(stat[19])


@functools.cache
def _own_system() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return os.uname().nodename


class RunMembership:
    """The members of an agent's run: the agent, its descendants, and all processes that hold the run's folder open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: set[ProcessMark] = set()  # cleared when it grows large; ended processes would stay otherwise

    def includes(self, mark: ProcessMark) -> bool:
        """Whether this process runs, and belongs to the run. For any thread."""
        if mark in self._known:
            return True
        if mark.has_ended or not (is_descendant(mark.pid, os.getpid()) or _holds(mark.pid, self._folder)):
            return False
        if len(self._known) > 10_000:
            self._known.clear()
        self._known.add(mark)
        return True


def is_descendant(pid: int, of: int) -> bool:
    """Return whether a process has another one among its ancestors."""
    while pid not in (of, 0, 1):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:  # the process has ended
            return False
        pid = int(stat.rpartition(")")[2].split()[1])  # its parent
    return pid == of


def _holds(pid: int, folder: Path) -> bool:
    """Whether a process has this folder open."""
    with contextlib.suppress(OSError):  # the process has ended
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # the file has been closed meanwhile
                if link.readlink() == folder:
                    return True
    return False
