"""Checks of processes: reading each other's memory, the folder with sockets, starting a worker."""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from meshbook.magics.doctor.finding import Finding
from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.config import Settings, runtime_root
from meshbook.runtime.errors import MeshbookError
from meshbook.runtime.hosts.session import current_session
from meshbook.runtime.rdma.hardware import why_no_ibverbs
from meshbook.runtime.rdma.nixl.nixl_agent import has_nic, is_installed

LEAST_DISK = 1 << 30
CALLS = 200
_MOST_BYTES = 107  # of a socket's path
_LONGEST_TAIL = 60  # of the path below the folder of runs: a run, a mesh and a rank
_REMOTE = ("nfs", "nfs4", "cifs", "lustre", "gpfs", "fuse.sshfs", "beegfs", "ceph")

_OWNER = """
import ctypes, sys
kept = ctypes.create_string_buffer(b"meshbook")
print(ctypes.addressof(kept), flush=True)
sys.stdin.read()
"""
_READER = """
import ctypes, os, sys
class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
pid, address = map(int, sys.argv[1:])
into = ctypes.create_string_buffer(8)
libc = ctypes.CDLL(None, use_errno=True)
read = libc.process_vm_readv
read.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]
here, there = Piece(ctypes.addressof(into), 8), Piece(address, 8)
if read(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) != 8:
    sys.exit(os.strerror(ctypes.get_errno()))
"""


def process_memory() -> Iterator[Finding]:
    """Check by trial whether one worker may read another's memory, as py-spy and Cross Memory Attach do."""
    if sys.platform == "linux":
        refusal = _find_refusal()
        yield judge_process_memory(refusal)
        yield judge_bulk_data(refusal, why_no_ibverbs(), lacks_nixl=has_nic() and not is_installed())


def judge_process_memory(refusal: str) -> Finding:
    """Judge the attempt; `refusal`: the system's error, empty if the memory was read."""
    if not refusal:
        return Finding("ok", "ptrace", "workers can read each other's memory")
    text = f"workers cannot read each other's memory ({refusal}): ranks that are stuck in C cannot be inspected"
    remedy = "docker run --cap-add SYS_PTRACE; or sysctl kernel.yama.ptrace_scope=0"
    return Finding("note", "ptrace", text, remedy)


def judge_bulk_data(refusal: str, no_nic: str, *, lacks_nixl: bool) -> Finding:
    """Judge the backends for bulk data. `no_nic`: why no RDMA NIC is used; `lacks_nixl`: there is a NIC but no NIXL."""
    within = "by messages, several times slower" if refusal else "from memory to memory"
    between = f"by TCP ({no_nic})" if no_nic else "by RDMA (NIXL)"
    text = f"within a host {within}; between hosts {between}"
    if refusal:
        return Finding("note", "bulk data", text, "allow workers to read each other's memory: see ptrace")
    if lacks_nixl:
        return Finding("note", "bulk data", text, "pip install 'meshbook[rdma]', on each host")
    return Finding("ok", "bulk data", text)


def _find_refusal() -> str:
    """Let one child process read another's memory; return the error, or an empty string."""
    python = [sys.executable, "-S", "-E", "-c"]
    with subprocess.Popen([*python, _OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        address = owner.stdout.readline().strip()
        reader = subprocess.run([*python, _READER, str(owner.pid), address], capture_output=True, text=True)
    lines = reader.stderr.strip().splitlines()
    return "" if reader.returncode == 0 else lines[-1] if lines else f"exit status {reader.returncode}"


def folder_of_runs() -> Iterator[Finding]:
    """Check the folder that holds the sockets of runs."""
    root = runtime_root(Settings.from_environment())
    mounts: list[list[str]] = []
    with contextlib.suppress(OSError):
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    around = [(len(place), kind) for place, kind in mounts if root.is_relative_to(place)]
    file_system = max(around, default=(0, ""))[1]  # empty if unknown
    yield judge_folder(root, shutil.disk_usage(root).free, file_system)


def judge_folder(root: Path, free: int, file_system: str) -> Finding:
    """Judge its path, the free bytes of its disk, and the kind of its file system."""
    remedy = "set MESHBOOK_RUNTIME_DIR to a short path on a local disk"
    if len(os.fsencode(root)) + _LONGEST_TAIL > _MOST_BYTES:
        text = f"the path {root} is too long: a socket's path has at most {_MOST_BYTES} bytes"
        return Finding("problem", "folder of runs", text, remedy)
    if file_system in _REMOTE:
        return Finding("problem", "folder of runs", f"{root} is on {file_system}, where sockets do not work", remedy)
    if free < LEAST_DISK:
        text = f"{root} has {free >> 20} MiB free; it stores the output of ranks until it is read"
        return Finding("warning", "folder of runs", text, remedy)
    return Finding("ok", "folder of runs", f"{root} ({free / (1 << 30):.0f} GiB free)")


class _ProbeActor(Actor):
    @endpoint
    def answer(self) -> None:
        """Return nothing: only the round trip is measured."""


def a_worker() -> Iterator[Finding]:
    """Start a worker, call it, and stop it: what every mesh needs."""
    started = time.monotonic()
    try:
        procs = current_session().host.spawn_procs(per_host={"gpus": 1}, name="doctor")
    except (MeshbookError, OSError) as error:
        yield Finding("problem", "a worker", f"does not start: {error}")
        return
    try:
        procs.initialized.get()
        ready = time.monotonic() - started
        microseconds = _round_trip(procs.spawn("examined", _ProbeActor)) * 1e6
        yield Finding("ok", "a worker", f"starts in {ready:.2f} s, and answers a call in {microseconds:.0f} µs")
    except (MeshbookError, OSError) as error:
        yield Finding("problem", "a worker", f"failed: {error}")
    finally:
        procs.stop("the check ended").get()


def _round_trip(examined: _ProbeActor) -> float:
    """Return the median seconds of a round trip."""
    taken: list[float] = []
    for _ in range(CALLS):
        started = time.perf_counter()
        examined.answer.call_one().get()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)
