"""GPU use of each process of this host, by NVIDIA's NVML, where there is a driver.

Known limits: in a container NVML may use other process ids than this process, or list none; the use of those processes
is then unknown. The same holds for a GPU that is shared (MIG, WSL): NVML reports no memory of single processes there.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from meshbook.runtime.hosts.oom import counts_as_kernel
from meshbook.runtime.telemetry.vitals import STALE_AFTER

DRIVER = Path("/proc/driver/nvidia/version")
WSL_DRIVER = Path("/dev/dxg")


@dataclass(frozen=True, slots=True)
class GpuUse:
    """GPU use of a process: bytes, and the fraction of time in which its GPU was busy (the busiest of several)."""

    memory: float = math.nan
    utilisation: float = math.nan


@dataclass(frozen=True)
class GpuReading:
    """The readings of all GPUs at one time."""

    by_pid: dict[int, GpuUse] = field(default_factory=dict)
    utilisation: tuple[float, ...] = ()  # of each GPU
    at: float = 0.0
    knows_all: bool = True  # NVML's process ids match those of this process: a process without an entry uses no GPU

    def of(self, pid: int, local_rank: int) -> GpuUse:
        """Return the GPU use of this process. If it has used none, report the utilisation of its `cuda:LOCAL_RANK`."""
        if (used := self.by_pid.get(pid)) is not None:
            return used
        if local_rank < len(self.utilisation):
            return GpuUse(0.0 if self.knows_all else math.nan, self.utilisation[local_rank])
        return GpuUse()


NOTHING = GpuReading()


def read_gpus(nvml: ModuleType | Any, now: float, *, knows_all: bool = True) -> GpuReading:
    """Read all GPUs by NVML, which must be initialized."""
    by_pid: dict[int, GpuUse] = {}
    shares: list[float] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        share, processes = _read_gpu(nvml, index)
        shares.append(share)
        for pid, memory in processes:
            before = by_pid.get(pid, GpuUse(0.0, 0.0))
            by_pid[pid] = GpuUse(before.memory + memory, max(before.utilisation, share))
    return GpuReading(by_pid, tuple(shares), now, knows_all)


def _read_gpu(nvml: Any, index: int) -> tuple[float, list[tuple[int, float]]]:
    """Return the fraction of time in which a GPU was busy, and the memory of each process; NaN where unknown."""
    share, processes = math.nan, []
    with contextlib.suppress(nvml.NVMLError):
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        with contextlib.suppress(nvml.NVMLError):
            processes = list(nvml.nvmlDeviceGetComputeRunningProcesses(gpu))
        share = nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100
    used = [(each.pid, each.usedGpuMemory) for each in processes]
    return share, [(pid, math.nan if memory is None else float(memory)) for pid, memory in used]


class GpuWatch:
    """Reads the GPUs on request, on a separate thread: a driver in trouble may hang, and must block no other thread.

    If there is no driver, or NVML cannot be initialized, there is nothing to read. `close()` does not wait for NVML.
    """

    def __init__(self) -> None:
        self._reading = NOTHING
        self._pause = 0.0  # between two readings, as last requested
        self._wanted = threading.Event()  # set for a reading, and at the end
        self._closed = False
        self._thread: threading.Thread | None = None

    def refresh(self, seconds: float) -> None:
        """Request a new reading if the last one is older than `seconds`. Returns at once."""
        self._pause = seconds
        if self._thread is None and (DRIVER.exists() or WSL_DRIVER.exists()):
            self._thread = threading.Thread(target=self._run, name="meshbook GPUs", daemon=True)
            self._thread.start()
        # A little less: a caller that polls every `seconds` must not come a microsecond early.
        if time.monotonic() - self._reading.at > 0.9 * seconds:
            self._wanted.set()

    def close(self) -> None:
        self._closed = True
        self._wanted.set()

    @property
    def reading(self) -> GpuReading:
        """The last reading; empty if it is too old."""
        reading = self._reading
        return reading if time.monotonic() - reading.at < self._pause + STALE_AFTER else NOTHING

    def _run(self) -> None:
        import pynvml  # imported here, because it is read only where there is a driver

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return
        knows_all = counts_as_kernel()
        while self._wanted.wait() and not self._closed:
            self._wanted.clear()
            with contextlib.suppress(pynvml.NVMLError):  # a GPU that is lost, or is being reset
                self._reading = read_gpus(pynvml, time.monotonic(), knows_all=knows_all)
