"""How much of its GPUs each process of this host uses, by NVIDIA's NVML, where there is a driver.

Known limits: in a container NVML may number processes otherwise than we do, or tell none; what those use is then not
known. The same of a GPU that is shared (MIG, WSL), for NVML tells no memory of single processes there.
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
    """What a process uses: bytes, and the share of the time in which its GPU was at work (the busiest of several)."""

    memory: float = math.nan
    utilisation: float = math.nan


@dataclass(frozen=True)
class GpuReading:
    """What was read of all GPUs at one time."""

    by_pid: dict[int, GpuUse] = field(default_factory=dict)
    utilisation: tuple[float, ...] = ()  # of each GPU
    at: float = 0.0
    knows_all: bool = True  # the processes are numbered as ours are: who is not among them uses no GPU

    def of(self, pid: int, local_rank: int) -> GpuUse:
        """Of this process; while it has used none, that which it would use is told of, its `cuda:LOCAL_RANK`."""
        if (used := self.by_pid.get(pid)) is not None:
            return used
        if local_rank < len(self.utilisation):
            return GpuUse(0.0 if self.knows_all else math.nan, self.utilisation[local_rank])
        return GpuUse()


NOTHING = GpuReading()


def read_gpus(nvml: ModuleType | Any, now: float, *, knows_all: bool = True) -> GpuReading:
    """What NVML tells; it has been started."""
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
    """The share of the time in which it was at work, and the memory of each process; what it does not tell is NaN."""
    share, processes = math.nan, []
    with contextlib.suppress(nvml.NVMLError):
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        with contextlib.suppress(nvml.NVMLError):
            processes = list(nvml.nvmlDeviceGetComputeRunningProcesses(gpu))
        share = nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100
    return share, [(each.pid, _bytes(each.usedGpuMemory)) for each in processes]


def _bytes(told: int | None) -> float:
    return math.nan if told is None else float(told)


class GpuWatch:
    """Reads the GPUs when asked to, on a thread of its own: a driver in trouble may hang, and nothing else must.

    Where there is no driver, or NVML cannot be started, there is nothing to read. `close()` does not wait for NVML.
    """

    def __init__(self) -> None:
        self._reading = NOTHING
        self._pause = 0.0  # between two readings, as last asked for
        self._wanted = threading.Event()  # a reading, or the end
        self._closed = False
        self._thread: threading.Thread | None = None

    def refresh(self, seconds: float) -> None:
        """Read the GPUs again if the last reading is so old. Returns at once."""
        self._pause = seconds
        if self._thread is None and (DRIVER.exists() or WSL_DRIVER.exists()):
            self._thread = threading.Thread(target=self._run, name="meshbook GPUs", daemon=True)
            self._thread.start()
        # A little less: a caller that asks every `seconds` must not come a microsecond early.
        if time.monotonic() - self._reading.at > 0.9 * seconds:
            self._wanted.set()

    def close(self) -> None:
        self._closed = True
        self._wanted.set()

    @property
    def reading(self) -> GpuReading:
        """The last reading; nothing where that is too old."""
        reading = self._reading
        return reading if time.monotonic() - reading.at < self._pause + STALE_AFTER else NOTHING

    def _run(self) -> None:
        import pynvml  # here, for it is read only where there is a driver

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return
        knows_all = counts_as_kernel()
        while self._wanted.wait() and not self._closed:
            self._wanted.clear()
            with contextlib.suppress(pynvml.NVMLError):  # a GPU that is lost, or is being reset
                self._reading = read_gpus(pynvml, time.monotonic(), knows_all=knows_all)
