"""What this machine has: GPUs, a free port. Asked without loading CUDA, which a parent of workers must not do."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def count_gpus() -> int:
    """The number of NVIDIA GPUs that a worker would see: the driver's list, cut by CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    present = _driver_gpus()
    if visible is None:
        return present
    return min(present, sum(1 for entry in visible.split(",") if entry.strip() not in ("", "-1")))


def _driver_gpus() -> int:
    try:
        return sum(1 for entry in Path("/proc/driver/nvidia/gpus").iterdir())
    except OSError:
        return sum(1 for entry in Path("/dev").glob("nvidia[0-9]*"))


def count_cores() -> int:
    """The processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_port() -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
