"""Which process a number means: pids are used again, and mean nothing in another namespace."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import msgspec


class ProcessMark(msgspec.Struct, frozen=True, array_like=True):
    """A process, told apart from any other that ever was: on which kernel and in which namespace, and since when."""

    pid: int
    started: int  # clock ticks since the kernel began, from /proc; 0 where there is no /proc
    system: str  # the boot and the namespace in which the pid means something

    @property
    def has_ended(self) -> bool:
        """Of a process of this very system: whether it has ended, also where its number is used again."""
        return has_ended(self.pid, self.started)


def own_mark() -> ProcessMark:
    """This process. Not kept: after a fork it is another one."""
    pid = os.getpid()
    stat = _read_stat(pid)
    return ProcessMark(pid, _started_at(stat) if stat else 0, _own_system())


def has_ended(pid: int, started: int) -> bool:
    """Whether the process that had this number, and began then, has ended; what cannot be seen has not."""
    if not is_used(pid):
        return True
    stat = _read_stat(pid)
    return bool(stat) and (_started_at(stat) != started or _is_remains(stat))


def is_used(pid: int) -> bool:
    """Whether there is a process of this number."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)  # it is there, and somebody else's
    return True


def _read_stat(pid: int) -> list[str]:
    """The fields of its `/proc/<pid>/stat` from the third on, which is its state; nothing where that cannot be read."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes().decode(errors="replace")  # the name in it may be anything
    except OSError:
        return []
    return text.rpartition(")")[2].split()  # the name before it may have spaces and parentheses


def _started_at(stat: list[str]) -> int:
    return int(stat[19])


def _is_remains(stat: list[str]) -> bool:
    """Nothing runs there any more: it waits for its parent to take note. Its threads may outlive the first of them."""
    return stat[0] in "ZX" and int(stat[17]) <= 1


@functools.cache
def _own_system() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return os.uname().nodename
