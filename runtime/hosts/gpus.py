"""GPU use of each process of this host, by NVIDIA's NVML, where there is a driver.

Known limits: in a container NVML may use other process ids than this process, or list none; the same holds for a GPU
that is shared (MIG, WSL). There the memory is what the process itself reports, if it uses the GPU by torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import Callable
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
    """GPU use of a process: bytes, and the fraction of time in which its GPU was busy (the busiest of several).

    Of the GPU: watts, and degrees Celsius.
    """

    memory: float = math.nan
    utilisation: float = math.nan
    power: float = math.nan
    temperature: float = math.nan


@dataclass(frozen=True)
class GpuReading:
    """The readings of all GPUs at one time."""

    by_pid: dict[int, GpuUse] = field(default_factory=dict)
    by_uuid: dict[str, GpuUse] = field(default_factory=dict)  # of each GPU
    at: float = 0.0
    knows_all: bool = True  # NVML's process ids match those of this process: a process without an entry uses no GPU

    def of(self, pid: int, uuid: str) -> GpuUse:
        """Return the use of this process, which reports the UUID of its GPU once it uses one.

        The number of a GPU says nothing: those of a process follow its CUDA_VISIBLE_DEVICES.
        """
        used = self.by_pid.get(pid) or GpuUse(0.0 if self.knows_all and self.by_uuid else math.nan)
        state = self.by_uuid.get(uuid, used)
        return dataclasses.replace(state, memory=used.memory)


NOTHING = GpuReading()


def read_gpus(nvml: ModuleType | Any, now: float, *, knows_all: bool = True) -> GpuReading:
    """Read all GPUs by NVML, which must be initialized."""
    reading = GpuReading(at=now, knows_all=knows_all)
    for index in range(nvml.nvmlDeviceGetCount()):
        with contextlib.suppress(nvml.NVMLError):
            _read_gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(index), reading)
    return reading


def _read_gpu(nvml: Any, gpu: Any, reading: GpuReading) -> None:
    """Add a GPU and its processes to the reading; NaN where a figure is unknown."""

    def figure(read: Callable[[], float]) -> float:
        try:
            return read()
        except nvml.NVMLError:
            return math.nan

    state = GpuUse(
        utilisation=figure(lambda: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100),
        power=figure(lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000),
        temperature=figure(lambda: float(nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU))),
    )
    reading.by_uuid[nvml.nvmlDeviceGetUUID(gpu).removeprefix("GPU-")] = state  # as torch names it
    for process in nvml.nvmlDeviceGetComputeRunningProcesses(gpu):
        memory = math.nan if process.usedGpuMemory is None else float(process.usedGpuMemory)
        before = reading.by_pid.get(process.pid, GpuUse(0.0, 0.0))
        busiest = max(before.utilisation, state.utilisation)
        reading.by_pid[process.pid] = dataclasses.replace(state, memory=before.memory + memory, utilisation=busiest)


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
