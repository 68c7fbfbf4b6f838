"""Resources of this machine: cores, GPUs, addresses, and the limits of the system with their remedies.

The system's message ("Too many open files") names neither the limit nor the remedy. ZeroMQ even ends the process when
it can accept no connection, so there must be room for connections before processes are started.

GPUs are counted without CUDA, which a parent of workers must not load.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import shutil
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

LimitKind = Literal["files", "processes", "disk"]
FILES_PER_PEER = 3  # open files for each peer that a process talks to: two sockets, and an eventfd
SPARE_FILES = 24  # for the user's own code, and for files that are open for a moment
FULL_BYTES = 1 << 20  # a disk with less room than this is full
DESCRIPTORS = Path("/dev/fd")  # of this process, on every system that lists them; on Linux it leads to /proc
LOOKUP_SECONDS = 0.5  # in which a name is found, if a file or a name server knows it
HIGHEST_FILE_LIMIT = 65536  # highest value to raise the limit of open files to: some programs iterate over all of them

# Parts of messages about a reached limit: of the system, of Python, of ZeroMQ.
_LIMIT_MESSAGES: tuple[tuple[str, LimitKind], ...] = (
    (os.strerror(errno.EMFILE), "files"),
    (os.strerror(errno.ENFILE), "files"),
    ("can't start new thread", "processes"),
    ("fork failed: " + os.strerror(errno.EAGAIN), "processes"),
    (os.strerror(errno.EAGAIN) + " (src/thread.cpp", "processes"),
    (os.strerror(errno.ENOSPC), "disk"),
    (os.strerror(errno.EDQUOT), "disk"),
)


def count_cores() -> int:
    """Return how many processor cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def find_exhausted_limit(text: str) -> LimitKind | None:
    """Return the limit that a message of the system is about, or None."""
    return next((scarce for sign, scarce in _LIMIT_MESSAGES if sign in text), None)


def explain_limit(messages: str | Iterable[str], folder: str | Path = "") -> str:
    """Explain the limit that caused these messages, and the remedy; the empty string if no limit did.

    The figures are those of this process, and of the disk that `folder` is on: other disks are not reported.
    """
    text = messages if isinstance(messages, str) else "\n".join(messages)
    scarce = find_exhausted_limit(text)
    if scarce == "files":
        return _explain_files()
    if scarce == "processes":
        return _explain_processes()
    return _explain_disk(Path(folder)) if scarce == "disk" and folder else ""


def _explain_files() -> str:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"the limit of open files was reached: {_format_limit(soft)}, at most {_format_limit(hard)} (ulimit -n, "
        f"RLIMIT_NOFILE). A process opens {FILES_PER_PEER} files for each process that it exchanges messages with; "
        f"raise the limit where the run starts, or start fewer processes"
    )


def _explain_processes() -> str:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    return (
        f"the limit of processes and threads was reached: {_format_limit(soft)} for this user (ulimit -u, RLIMIT_NPROC)"
        f"{_cgroup_limit()}. Raise it, end other programs, or start fewer processes (a worker has about ten threads)"
    )


def _explain_disk(folder: Path) -> str:
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return ""
    if free >= FULL_BYTES:
        return ""
    return (
        f"the disk of {folder} is full ({free >> 10} KiB free). It stores output that C code and subprocesses of "
        f"ranks write: free some space, or set MESHBOOK_RUNTIME_DIR to another disk where the run starts"
    )


def _cgroup_limit() -> str:
    """Return the process limit of this process's cgroup, with a leading comma; "" without a limit."""
    for group in _groups():
        try:
            most, now = (group / "pids.max").read_text().strip(), (group / "pids.current").read_text().strip()
        except OSError:
            continue
        if most != "max":
            return f", {most} in its cgroup, of which {now} are in use ({group}/pids.max)"
    return ""


def _groups() -> list[Path]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    split = [line.split(":", 2) for line in lines]
    paths = [path.lstrip("/") for _, names, path in split if names in ("", "pids")]
    return [root / path for path in paths for root in (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))]


def _format_limit(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)


# -- open files -------------------------------------------------------------------------------


def ensure_files_for_peers(count: int) -> str:
    """Ensure that this process may open the files that so many more peers take; return the reason if not, or "".

    The soft limit is raised if that helps, up to the hard one.
    """
    needed = _open_files() + count * FILES_PER_PEER + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return ""
    if hard == resource.RLIM_INFINITY or needed <= hard:
        raise_file_limit(needed)
        return ""
    return f"{count} more processes need {needed - soft} more open files than this process may have: {_explain_files()}"


def raise_file_limit(needed: int = HIGHEST_FILE_LIMIT) -> None:
    """Raise the soft limit as far as needed and possible; never lower it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _open_files() -> int:
    try:
        return sum(1 for _ in DESCRIPTORS.iterdir())
    except FileNotFoundError:  # not listed on this system: an error reports the limit once it is reached
        return 0
    except OSError:  # no descriptor is left to list them with
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def free_port(ip: str = "") -> int:
    """Return a TCP port that was free a moment ago at this address of this machine; by default at all its addresses."""
    with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET) as probe:
        probe.bind((ip, 0))
        return int(probe.getsockname()[1])


def count_gpus(root: Path = Path("/")) -> int:
    """Return the number of GPUs visible to a worker: those of NVIDIA's driver, else of AMD's, less those hidden.

    Not by torch, which may load the driver into this process to count them: its forks could then not use a GPU.
    """
    nvidia, amd = _count_nvidia(root), _count_amd(root)
    hiding = (
        ("CUDA_VISIBLE_DEVICES",) if nvidia else ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    )
    lists = [os.environ[name].split(",") for name in hiding if name in os.environ]
    visible = [sum(1 for entry in entries if entry.strip() not in ("", "-1")) for entries in lists]
    return min([nvidia or amd, *visible])


def _count_nvidia(root: Path) -> int:
    try:
        return sum(1 for entry in (root / "proc/driver/nvidia/gpus").iterdir())
    except OSError:
        return sum(1 for entry in (root / "dev").glob("nvidia[0-9]*"))


def _count_amd(root: Path) -> int:
    """Count the nodes with SIMD units in the topology of the driver amdkfd; its other nodes are processors."""
    found = 0
    for file in (root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties"):
        with contextlib.suppress(OSError):  # of a GPU that this container may not use
            found += re.search(r"^simd_count [1-9]", file.read_text(), re.MULTILINE) is not None
    return found


def own_addresses() -> list[str]:
    """Return the IPv4 addresses of this machine; the loopback address only if there is no other."""
    import psutil  # weight: few processes need it

    entries = [entry for each in psutil.net_if_addrs().values() for entry in each]
    addresses = [entry.address for entry in entries if entry.family == socket.AF_INET]
    return [address for address in addresses if not address.startswith("127.")] or ["127.0.0.1"]


def address_towards(others: Sequence[str]) -> str:
    """Return the address of this machine from which it reaches the first reachable one of these. OSError if none.

    An address that this machine has as well (of a container's network, for example) counts only if there is no other.
    """
    ways = [(own, other) for other in others if (own := _source_towards(other))]
    if not ways:
        raise OSError(f"this host has no route to any address of the controller's host ({', '.join(others)})")
    return next((own for own, other in ways if own != other), ways[0][0])


def _source_towards(other: str) -> str:
    with socket.socket(socket.AF_INET6 if ":" in other else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((other, 9))  # sends nothing: the system only looks up the route
        except OSError:
            return ""
        return str(probe.getsockname()[0])


class NameLookup:
    """A lookup of this host's own name, on a thread. Where no name server answers, each lookup takes 10 s and more."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="meshbook name lookup", daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # it has no address: found out at once, if a server answers
            socket.getaddrinfo(socket.gethostname(), None)
        self._ended.set()

    def is_slow(self) -> bool:
        """Return whether it takes longer than `LOOKUP_SECONDS`; waits as long at most."""
        return not self._ended.wait(max(0.0, self._began + LOOKUP_SECONDS - time.monotonic()))


def interface_of(ip: str) -> str:
    """Return the name of the network interface that has this address; empty if none has."""
    import psutil  # weight: few processes need it

    addresses = psutil.net_if_addrs()
    return next((name for name, entries in addresses.items() if any(entry.address == ip for entry in entries)), "")
