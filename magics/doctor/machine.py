"""Checks of the machine: its cores and memory, and the limits that processes of a mesh run into."""

from __future__ import annotations

import contextlib
import resource
import shutil
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from meshbook.magics.doctor.finding import Finding
from meshbook.runtime.resources import FILES_PER_PEER, SPARE_FILES, count_cores

GIB = 1 << 30
LEAST_SHARED = 1 * GIB
LEAST_MEMORY = 2 * GIB
LEAST_PEERS = 256  # workers that the limit of open files should allow
SLOW_NAME = 1.0  # seconds; torch resolves this name whenever ranks form a process group
NAME_PATIENCE = 6.0


def cores() -> Iterator[Finding]:
    """Check the CPU cores that the processes of a mesh share."""
    quota = None
    with contextlib.suppress(OSError, ValueError):
        most, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        quota = None if most == "max" else int(most) / int(period)
    yield judge_cores(count_cores(), quota)


def judge_cores(present: int, quota: float | None) -> Finding:
    """Judge the CPU cores; `quota`: how many cores' time the container may use, None without a limit."""
    if quota is not None and quota < present:
        text = f"{present} are visible, but this container may use only {quota:g}; further ranks wait for a core"
        return Finding("note", "cores", text, "raise the container's limit (docker run --cpus, a pod's limits.cpu)")
    return Finding("ok", "cores", str(present))


def memory() -> Iterator[Finding]:
    """Check the free memory, and the container's limit."""
    root, free = Path("/sys/fs/cgroup"), None
    with contextlib.suppress(OSError, ValueError):
        most, used = (root / "memory.max").read_text().strip(), int((root / "memory.current").read_text())
        free = None if most == "max" else int(most) - used
    yield judge_memory(psutil.virtual_memory().available, free)


def judge_memory(free: int, allowed: int | None) -> Finding:
    """Judge the bytes that are free on the machine, and that the container may still use (None: no limit)."""
    room = free if allowed is None else min(free, allowed)
    text = f"{room / GIB:.1f} GiB free"
    if allowed is not None and allowed < free:
        text += f" of this container's limit (the machine has {free / GIB:.1f} free)"
    if room < LEAST_MEMORY:
        return Finding("warning", "memory", f"{text}: a rank with torch needs about 0.1 GiB before its first tensor")
    return Finding("ok", "memory", text)


def shared_memory() -> Iterator[Finding]:
    """Check `/dev/shm`, which DataLoader workers and NCCL use."""
    folder = Path("/dev/shm")
    yield judge_shared_memory(shutil.disk_usage(folder).total if folder.is_dir() else None)


def judge_shared_memory(total: int | None) -> Finding:
    """Judge its size in bytes; None if it does not exist."""
    remedy = "increase its size: docker run --shm-size=8g, or an emptyDir with medium: Memory at /dev/shm in a pod"
    if total is None:
        return Finding("warning", "/dev/shm", "does not exist: DataLoader workers and NCCL cannot share memory", remedy)
    if total < LEAST_SHARED:
        text = f"{total / (1 << 20):.0f} MiB in all: DataLoader workers fail with 'Bus error' when it is full"
        return Finding("warning", "/dev/shm", text, remedy)
    return Finding("ok", "/dev/shm", f"{total / GIB:.1f} GiB")


def open_files() -> Iterator[Finding]:
    """Check the limit of open files: a process opens some for each worker that it is connected to."""
    yield judge_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def judge_open_files(most: int) -> Finding:
    """Judge the hard limit; the soft one is raised to it as needed."""
    if most == resource.RLIM_INFINITY:
        return Finding("ok", "open files", "unlimited")
    peers = max(0, most - SPARE_FILES) // FILES_PER_PEER
    if peers < LEAST_PEERS:
        text = f"at most {most}: enough for a mesh of about {peers} ranks"
        return Finding(
            "warning", "open files", text, "raise the hard limit (ulimit -Hn, docker run --ulimit nofile=65536)"
        )
    return Finding("ok", "open files", f"at most {most}")


def locked_memory() -> Iterator[Finding]:
    """Check the limit of locked memory for RDMA, if there is a NIC for it."""
    root = Path("/sys/class/infiniband")
    states = [file.read_text() for file in root.glob("*/ports/*/state")] if root.is_dir() else []
    yield judge_nic(
        len(states), sum("ACTIVE" in state for state in states), resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    )


def judge_nic(ports: int, active: int, lockable: int) -> Finding:
    """Judge the RDMA ports, the number that are up, and the bytes that a process may lock."""
    if not ports:
        return Finding("note", "RDMA NIC", "none: data between hosts is sent by TCP")
    if not active:
        return Finding(
            "warning",
            "RDMA NIC",
            f"{ports} ports, none of them active",
            "see ibstat, and ask the administrator of the network",
        )
    if lockable != resource.RLIM_INFINITY:
        text = f"{active} active ports, but a process may lock only {lockable >> 20} MiB of memory"
        return Finding("warning", "RDMA NIC", text, "ulimit -l unlimited (docker run --ulimit memlock=-1)")
    return Finding("ok", "RDMA NIC", f"{active} active ports")


def name_service() -> Iterator[Finding]:
    """Check how long the look-up of this machine's own name takes."""
    pool = ThreadPoolExecutor(1)
    started = time.monotonic()
    asked = pool.submit(socket.getfqdn)
    try:
        asked.result(NAME_PATIENCE)
    except TimeoutError:
        pass
    finally:
        pool.shutdown(wait=False)
    yield judge_name_service(socket.gethostname(), time.monotonic() - started)


def judge_name_service(name: str, seconds: float) -> Finding:
    """Judge the seconds that the look-up took."""
    if seconds > SLOW_NAME:
        text = (
            f"the name of this machine ({name}) takes {seconds:.1f} s to look up, and delays each rendezvous of ranks"
        )
        return Finding("warning", "name service", text, f"add the line '127.0.1.1 {name}' to /etc/hosts")
    return Finding("ok", "name service", f"{name} in {seconds * 1000:.0f} ms")
