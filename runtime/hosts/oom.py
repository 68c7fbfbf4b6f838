"""Detection of out-of-memory kills, from the kernel's log and the counters of the process's cgroup.

The log names the process, but often only root may read it, and in a container its process ids differ. The counters are
readable anywhere, but show only that some process of the group was killed.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

# of process ids: there the kernel's pids are the same as here (include/linux/proc_ns.h)
_INITIAL_NAMESPACE = 4026531836
_KILLED = re.compile(r"(?P<what>(?:Memory cgroup )?[Oo]ut of memory): Killed process (?P<pid>\d+) .*")
_PAGES = re.compile(r"(?:anon|file|shmem)-rss:(\d+)kB")
_GROUP = re.compile(r"oom-kill:.*\boom_memcg=(?P<group>[^,]+),.*\bpid=(?P<pid>\d+)")
_UNLIMITED = 1 << 60  # version 1 reports no limit as a number near 2^63
ADVICE = "add memory, run fewer ranks on this host, or use less memory on each rank"


def counts_as_kernel() -> bool:
    """Whether process ids here match those of the kernel and its drivers; in a container they do not."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == _INITIAL_NAMESPACE
    except OSError:
        return False


@dataclass(frozen=True)
class OomKill:
    """A process that the kernel killed for lack of memory: its resident bytes, and the limit that was reached."""

    rss: int
    in_group: bool = False  # a cgroup's limit; otherwise the machine's memory
    group: str = ""  # the cgroup, where known


def find_kill(log: Sequence[str], pid: int) -> OomKill | None:
    """Return the kernel log's record of the kill of this process, or None."""
    groups = {int(match["pid"]): match["group"] for line in log if (match := _GROUP.search(line))}
    for line in reversed(log):
        if (match := _KILLED.search(line)) and int(match["pid"]) == pid:
            in_group = match["what"].startswith("Memory cgroup")
            return OomKill(sum(map(int, _PAGES.findall(line))) << 10, in_group, groups.get(pid, "") if in_group else "")
    return None


class MemoryCgroups:
    """The memory cgroup of this process and those above it, which limit it as well."""

    def __init__(self, proc: Path = Path("/proc/self"), root: Path = Path("/sys/fs/cgroup")) -> None:
        lines = []
        with contextlib.suppress(OSError):
            lines = [line.split(":", 2) for line in (proc / "cgroup").read_text().splitlines()]
        paths = {controllers: path.strip("/") for _, controllers, path in lines}
        # The hierarchy of the memory controller (cgroup v1), else the only one (v2).
        of_memory = next((path for controllers, path in paths.items() if "memory" in controllers.split(",")), None)
        self._top = root if of_memory is None else root / "memory"
        own = self._top / (paths.get("", "") if of_memory is None else of_memory)
        own = own if own.is_dir() else self._top  # in a container the path may be the host's
        self._folders = [own, *own.parents][: len(own.relative_to(self._top).parts) + 1]
        self._kills = self._count()

    def _count(self) -> dict[Path, int]:
        kills = dict.fromkeys(self._folders, 0)
        for folder in self._folders:
            for name in ("memory.oom_control", "memory.events"):  # the latter is of cgroup v2
                with contextlib.suppress(OSError, ValueError):
                    counters = dict(line.split() for line in (folder / name).read_text().splitlines())
                    kills[folder] = int(counters.get("oom_kill", 0))
        return kills

    def killed(self) -> Path | None:
        """Return the innermost group in which processes were killed since the last call, or None."""
        before, self._kills = self._kills, self._count()
        return next((folder for folder in self._folders if self._kills[folder] > before[folder]), None)

    def folder_of(self, name: str) -> Path:
        """Return the folder of the group with this name in the kernel's log."""
        return self._top / name.strip("/")


def read_limit(folder: Path) -> int | None:
    """Return the memory limit of this cgroup in bytes; None if it has none."""
    for name in ("memory.max", "memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # "max"
            limit = int((folder / name).read_text())
            return limit if limit < _UNLIMITED else None
    return None


class KernelLog:
    """The kernel's messages from now on, if they are readable and their process ids match those here."""

    def __init__(self, path: Path = Path("/dev/kmsg")) -> None:
        self._file = -1
        with contextlib.suppress(OSError):
            if counts_as_kernel():
                self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.lseek(self._file, 0, os.SEEK_END)
        self._recent: list[str] = []  # read while other processes were looked up

    @property
    def is_readable(self) -> bool:
        """Whether the log is readable."""
        return self._file >= 0

    def find_kill(self, pid: int) -> OomKill | None:
        """Return the log's record of the kill of this process, or None."""
        self._recent = [*self._recent, *self._read()][-100:]
        return find_kill(self._recent, pid)

    def _read(self) -> Iterator[str]:
        while self._file >= 0:
            try:
                record = os.read(self._file, 8192)
            except BrokenPipeError:  # older messages were overwritten meanwhile
                continue
            except OSError:  # there are no more
                return
            text = record.decode("utf-8", "replace")
            if "oom-kill:" in text or "Killed process" in text:
                yield text

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class OomDetector:
    """Explains ends by SIGKILL that meshbook has not sent."""

    def __init__(self, log: KernelLog | None = None, groups: MemoryCgroups | None = None) -> None:
        self._log = log or KernelLog()
        self._groups = groups or MemoryCgroups()

    def explain(self, pid: int, peak: int) -> str:
        """Return the probable reason why this process was killed; `peak` is its peak memory in bytes."""
        kill, group = self._log.find_kill(pid), self._groups.killed()
        if kill is not None:
            limited = self._groups.folder_of(kill.group) if kill.group else group
            total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            where = _format_limit(limited) if kill.in_group else f"the machine has {size(total)} in total"
            return f"the operating system killed it (out of memory): {where}, and it used {size(kill.rss)}; {ADVICE}"
        if group is not None:
            used = f", and it used up to {size(peak)}" if peak else ""
            return f"probably the operating system killed it (out of memory): {_format_limit(group)}{used}; {ADVICE}"
        sender = "a user or a program outside meshbook sent the signal"
        if self._log.is_readable:
            return f"{sender}; the kernel's log shows no out-of-memory kill of this process"
        return f"{sender}, or the operating system was out of memory (see dmesg)"

    def close(self) -> None:
        self._log.close()


def _format_limit(group: Path | None) -> str:
    if group is None:
        return "its cgroup has reached its limit"
    limit = read_limit(group)
    may = f"may use {size(limit)}" if limit is not None else "has reached a limit"
    return f"its cgroup {group} {may}"


def size(count: int) -> str:
    """Format a number of bytes."""
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"
