"""Which process a number means: pids are used again, and mean nothing in another namespace."""

from __future__ import annotations

import functools
import os
import select
from pathlib import Path

import msgspec


class ProcessMark(msgspec.Struct, frozen=True, array_like=True):
    """A process, told apart from any other that ever was: on which kernel and in which namespace, and since when."""

    pid: int
    started: int  # clock ticks since the kernel began, from /proc; 0 where there is no /proc
    system: str  # the boot and the namespace in which the pid means something


def own_mark() -> ProcessMark:
    """This process. Not kept: after a fork it is another one."""
    pid = os.getpid()
    return ProcessMark(pid, started_at(pid), _own_system())


def started_at(pid: int) -> int:
    """When a process began, in clock ticks of its kernel; 0 where that cannot be seen."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[19])  # the name before it may have spaces and parentheses


@functools.cache
def _own_system() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return os.uname().nodename


class Lifetime:
    """Holds on to one process, so that its end is seen even where its number is used again. `close()` is idempotent."""

    def __init__(self, mark: ProcessMark) -> None:
        """ProcessLookupError where it has ended; OSError where there are no descriptors left."""
        self._file = os.pidfd_open(mark.pid)
        if started_at(mark.pid) != mark.started:
            self.close()
            raise ProcessLookupError(f"process {mark.pid} is another one by now")
        self._poll = select.poll()
        self._poll.register(self._file, select.POLLIN)

    def has_ended(self) -> bool:
        return bool(self._poll.poll(0))

    def close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)
