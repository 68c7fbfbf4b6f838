"""How a host measures its processes: rates, ages, memory, GPUs; also of those that are stopped, or have no page."""

from __future__ import annotations

import math
import os
import queue
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from meshbook.runtime import devices
from meshbook.runtime.actor.future import Future
from meshbook.runtime.hosts import gpus, process_sampler
from meshbook.runtime.hosts.gpus import NOTHING, GpuReading, GpuUse, read_gpus
from meshbook.runtime.hosts.process_sampler import (
    SHARES_AT_ONCE,
    LiveWorker,
    ProcessSampler,
    SystemProcesses,
    Usage,
    interval,
    is_quiet,
)
from meshbook.runtime.telemetry.status_page import StatusPageReader
from meshbook.runtime.telemetry.status_writer import StatusWriter
from meshbook.runtime.telemetry.vitals import (
    COLUMNS,
    IDLE_BATCH_SECONDS,
    IDLE_BEAT_SECONDS,
    LATE_AFTER,
    SECONDS,
    STALE_AFTER,
    WATCHED_SECONDS,
    Activity,
    ProcessReport,
    VitalsBatch,
    decode_process_report,
)
from meshbook.runtime.wire.messages import Address
from tests.fake_gpus import install_fake
from tests.support import PATIENCE

WORDS = ProcessReport(7)


@dataclass
class Processes:
    """Made-up processes."""

    uses: dict[int, Usage] = field(default_factory=dict)
    kept: set[int] = field(default_factory=set)
    stopped: set[int] = field(default_factory=set)

    def usage(self, pid: int) -> Usage | None:
        return self.uses.get(pid)

    def runs(self, pid: int) -> bool:
        return pid in self.uses and pid not in self.stopped

    def keep(self, pids: set[int]) -> None:
        self.kept = pids


@pytest.fixture
def processes() -> Processes:
    return Processes()


@pytest.fixture
def meter(tmp_path: Path, processes: Processes) -> ProcessSampler:
    return ProcessSampler("node1", StatusPageReader(tmp_path), processes)


@pytest.fixture
def status(tmp_path: Path) -> StatusWriter:
    made = StatusWriter()
    made.open(tmp_path, "m.0", 0)
    return made


@pytest.fixture
def tick(status: StatusWriter) -> Callable[..., None]:
    """Lets the process m.0 give a sign of life."""

    def tick(at: float, words: ProcessReport = WORDS, traffic: tuple[int, int, int, int] = (0, 0, 0, 0)) -> None:
        status.clock = lambda: at
        status.tick(words, traffic)

    return tick


def living(node: str = "m.0", incarnation: int = 0, pid: int = 7) -> LiveWorker:
    return LiveWorker(node, incarnation, pid)


def columns(batch: VitalsBatch, row: int = 0) -> dict[str, float]:
    numbers = np.frombuffer(batch.numbers, np.float32).reshape(-1, len(COLUMNS))
    return dict(zip(COLUMNS, numbers[row].tolist(), strict=True))


def test_rates_are_those_between_two_signs(
    meter: ProcessSampler, processes: Processes, tick: Callable[..., None]
) -> None:
    processes.uses[7] = Usage(10.0, 1e9)
    tick(100.0, traffic=(0, 10, 1000, 0))
    first = columns(meter.measure([living()], NOTHING, 100.0))
    assert [math.isnan(first[name]) for name in ("cpu", "sent", "gpu", "step")] == [True] * 4
    assert (first["memory"], first["age"]) == (1e9, 0.0)
    tick(102.0, traffic=(20, 10, 5000, 8))
    processes.uses[7] = Usage(13.0, 2e9)
    second = columns(meter.measure([living()], NOTHING, 102.5))
    rates = [second[name] for name in ("cpu", "sent", "received", "bytes_sent", "bytes_received", "age")]
    assert rates == pytest.approx([1.2, 10.0, 0.0, 2000.0, 4.0, 0.5])
    between = columns(meter.measure([living()], NOTHING, 102.75))  # too soon to measure again
    assert (between["cpu"], between["sent"]) == pytest.approx((1.2, 10.0))


def test_a_process_without_heartbeats_ages_and_has_no_rates(
    meter: ProcessSampler, processes: Processes, tick: Callable[..., None]
) -> None:
    processes.uses[7] = Usage(0.0, 1e9)
    tick(100.0)
    meter.measure([living()], NOTHING, 100.0)
    tick(101.0, traffic=(5, 5, 5, 5))
    meter.measure([living()], NOTHING, 101.0)
    found = columns(meter.measure([living()], NOTHING, 131.0))
    assert found["age"] == 30.0
    assert math.isnan(found["sent"])
    assert found["memory"] == 1e9


def test_reports_are_sent_when_they_change(meter: ProcessSampler, tick: Callable[..., None]) -> None:
    def told() -> dict[str, ProcessReport]:
        batch = meter.measure([living()], NOTHING, 100.0)
        return {node: decode_process_report(said) for node, said in batch.words.items()}

    tick(100.0, ProcessReport(7, (("a", 0, ""),)))
    assert told() == {"m.0": ProcessReport(7, (("a", 0, ""),))}
    assert told() == {}
    tick(101.0, ProcessReport(7, (("a", 2, "step"),)))
    assert told() == {"m.0": ProcessReport(7, (("a", 2, "step"),))}
    meter.send_all_words()
    assert told() == {"m.0": ProcessReport(7, (("a", 2, "step"),))}


def test_the_process_that_writes_is_measured_and_not_what_has_started_it(
    meter: ProcessSampler, processes: Processes, tick: Callable[..., None]
) -> None:
    processes.uses |= {7: Usage(0.0, 1.0), 8: Usage(0.0, 2.0)}
    tick(100.0, ProcessReport(8))
    assert columns(meter.measure([living(pid=7)], NOTHING, 100.0))["memory"] == 2.0
    assert processes.kept == {8}


def test_a_process_that_has_not_begun_has_no_heartbeat(meter: ProcessSampler, processes: Processes) -> None:
    processes.uses[7] = Usage(0.0, 1e9)
    found = columns(meter.measure([living("m.5")], NOTHING, 100.0))
    assert (found["age"], found["activity"], found["memory"]) == (math.inf, Activity.IDLE, 1e9)
    assert math.isnan(found["queued"])


def test_a_process_without_a_status_page_is_alive_unless_it_is_stopped(
    meter: ProcessSampler, processes: Processes, tmp_path: Path
) -> None:
    (tmp_path / "m.5.vitals").touch()
    processes.uses[7] = Usage(0.0, 1e9)
    assert columns(meter.measure([living("m.5")], NOTHING, 100.0))["age"] == 0.0
    processes.uses[7] = Usage(0.0, 1e9)
    processes.stopped.add(7)
    assert columns(meter.measure([living("m.5")], NOTHING, 110.0))["age"] == 10.0


def test_a_process_that_is_gone_is_not_known(meter: ProcessSampler, tick: Callable[..., None]) -> None:
    tick(100.0)
    found = columns(meter.measure([living()], NOTHING, 100.0))
    assert math.isnan(found["memory"])
    assert math.isnan(found["cpu"])


def test_this_very_process_is_measured() -> None:
    processes = SystemProcesses()
    usage = processes.usage(os.getpid())
    assert usage is not None
    assert usage.cpu_seconds > 0
    assert usage.memory > 1 << 20
    assert processes.runs(os.getpid())
    assert processes.usage((1 << 24) + 1) is None  # as workers have that are threads


@pytest.mark.parametrize(
    ("activity", "queued", "ages", "expected"),
    [
        (Activity.IDLE, 0.0, (0.1, 1.9), True),
        (Activity.IDLE, math.nan, (0.1, 1.9), True),  # it has no page to say so
        (Activity.RUNNING, 0.0, (0.1, 0.1), False),
        (Activity.PAUSED, 0.0, (0.1, 0.1), False),
        (Activity.IDLE, 1.0, (0.1, 0.1), False),
        (Activity.IDLE, 0.0, (0.1, LATE_AFTER), False),
        (Activity.IDLE, 0.0, (0.1, math.inf), False),  # it has not begun
    ],
)
def test_a_host_is_quiet_while_all_processes_are_idle(
    activity: Activity, queued: float, ages: tuple[float, float], expected: bool
) -> None:
    rows = [[0.0 for _ in COLUMNS] for _ in ages]
    for row, age in zip(rows, ages, strict=True):
        row[COLUMNS.index("age")] = age
    rows[0][COLUMNS.index("activity")], rows[0][COLUMNS.index("queued")] = activity, queued
    numbers = np.array(rows, np.float32).tobytes()
    assert is_quiet(VitalsBatch("host", ("m.0", "m.1"), (0, 0), numbers)) == expected


@pytest.mark.parametrize(
    ("pace", "quiet", "seconds"),
    [
        (SECONDS, False, SECONDS),
        (SECONDS, True, IDLE_BATCH_SECONDS),
        (WATCHED_SECONDS, True, WATCHED_SECONDS),
        (WATCHED_SECONDS, False, WATCHED_SECONDS),
    ],
)
def test_only_a_quiet_host_without_a_dashboard_is_measured_less_often(pace: float, quiet: bool, seconds: float) -> None:
    assert interval(pace, is_quiet=quiet) == seconds


def test_an_idle_process_is_measured_before_it_seems_stale() -> None:
    assert IDLE_BEAT_SECONDS < LATE_AFTER
    assert IDLE_BEAT_SECONDS + IDLE_BATCH_SECONDS < STALE_AFTER
    assert LATE_AFTER + IDLE_BATCH_SECONDS < STALE_AFTER


class Controller:
    """The part of a node that a vitals sender needs; the test answers for the controller."""

    def __init__(self) -> None:
        self.controller = Address("controller", "memory://controller")
        self.questions: queue.SimpleQueue[Future[float]] = queue.SimpleQueue()
        self.calls = self

    def ask(self, to: Address, actor: str, endpoint: str, *arguments: Any) -> Future[float]:
        future: Future[float] = Future.pending()
        self.questions.put(future)
        return future

    def answer(self, pace: float) -> None:
        """Answer the next batch."""
        self.questions.get(timeout=PATIENCE).resolve(lambda: pace)


def test_a_dashboard_that_opens_ends_the_wait_of_an_idle_host(
    meter: ProcessSampler, processes: Processes, tick: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_sampler, "IDLE_BATCH_SECONDS", 1000.0)
    processes.uses[7] = Usage(0.0, 1e9)
    tick(time.monotonic())
    node: Any = Controller()
    sender = process_sampler.VitalsSender(node, lambda: [living()], meter)
    try:
        node.answer(SECONDS)
        sender.pace(WATCHED_SECONDS)
        for _ in range(3):
            node.answer(WATCHED_SECONDS)
    finally:
        sender.__cleanup__(None)


# -- GPUs --------------------------------------------------------------------------------------


class Nvml:
    """A made-up NVML: two GPUs, and a third that is lost."""

    class NVMLError(Exception):
        """As NVML has it."""

    NVML_TEMPERATURE_GPU = 0
    processes = {0: [(7, 1 << 30), (8, None)], 1: [(7, 2 << 30)]}
    shares = {0: 25, 1: 75}

    def nvmlDeviceGetCount(self) -> int:
        return 3

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index == 2:
            raise self.NVMLError("GPU is lost")
        return index

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=memory) for pid, memory in self.processes[gpu]]

    def nvmlDeviceGetUtilizationRates(self, gpu: int) -> SimpleNamespace:
        return SimpleNamespace(gpu=self.shares[gpu], memory=1)

    def nvmlDeviceGetUUID(self, gpu: int) -> str:
        return f"GPU-uuid-{gpu}"

    def nvmlDeviceGetPowerUsage(self, gpu: int) -> int:
        if gpu == 1:
            raise self.NVMLError("Not Supported")
        return 300_500

    def nvmlDeviceGetTemperature(self, gpu: int, sensor: int) -> int:
        return 40 + gpu


def test_gpus_are_read_by_process() -> None:
    reading = read_gpus(Nvml(), 5.0)
    assert reading.of(7, "").memory == 3 << 30
    assert reading.of(7, "").utilisation == 0.75
    assert math.isnan(reading.of(8, "").memory)
    assert (reading.of(8, "").utilisation, reading.of(8, "").power) == (0.25, 300.5)
    assert reading.of(9, "").memory == 0.0  # it has used none yet
    assert math.isnan(reading.of(9, "").utilisation)
    assert math.isnan(read_gpus(Nvml(), 5.0, knows_all=False).of(9, "").memory)  # in a container
    # The process says by its UUID which GPU it uses, whatever number that has for it.
    of_process = reading.of(9, "uuid-1")
    assert (of_process.memory, of_process.utilisation, of_process.temperature) == (0.0, 0.75, 41.0)
    assert math.isnan(of_process.power)
    assert math.isnan(reading.of(9, "an instance of MIG").utilisation)


@pytest.mark.parametrize("has_driver", [True, False])
@pytest.mark.parametrize("starts", [True, False])
def test_gpus_are_read_where_there_is_a_driver_that_works(
    has_driver: bool, starts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Library(Nvml):
        def nvmlInit(self) -> None:
            if not starts:
                raise self.NVMLError("driver and library are of two versions")

    driver = tmp_path / "driver"
    if has_driver:
        driver.touch()
    monkeypatch.setattr(gpus, "DRIVER", driver)
    monkeypatch.setattr(gpus, "WSL_DRIVER", tmp_path / "none")
    monkeypatch.setitem(sys.modules, "pynvml", Library())
    watch = gpus.GpuWatch()
    watch.refresh(1.0)
    while watch._thread is not None and watch._thread.is_alive() and watch.reading is NOTHING:
        watch._thread.join(0.01)  # it ends by itself where NVML does not start
    watch.close()
    if watch._thread is not None:
        watch._thread.join()
    assert (7 in watch.reading.by_pid) == (has_driver and starts)


def test_what_a_gpu_shows_is_in_the_batch(
    meter: ProcessSampler, processes: Processes, tick: Callable[..., None]
) -> None:
    tick(100.0)
    reading = GpuReading({7: GpuUse(4e9, 0.5)}, {"uuid-1": GpuUse(utilisation=0.25, power=300)}, 100.0)
    found = columns(meter.measure([living()], reading, 100.0))
    assert (found["gpu_memory"], found["gpu"]) == (4e9, 0.5)
    assert math.isnan(found["gpu_allocated"])


def test_a_process_reports_the_figures_of_its_own_gpu(
    meter: ProcessSampler, status: StatusWriter, tick: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    status.clock = lambda: now
    gpus = install_fake(monkeypatch)
    devices.OWN_GPU.local_rank = 1
    status.note_gpu()
    assert (status.gpu, gpus.calls) == ("", [])
    gpus.use()
    for size in (50, -30):
        gpus.allocate(size)
    status.note_gpu()
    gpus.allocate(1)
    status.step(0.25)  # too soon
    tick(now, ProcessReport(7, gpu=status.gpu))
    by_uuid = {"uuid-0": GpuUse(utilisation=1.0), "uuid-1": GpuUse(utilisation=0.25, power=300)}
    found = columns(meter.measure([living()], GpuReading({}, by_uuid, now, knows_all=False), now))
    names = "gpu_memory", "gpu_allocated", "gpu_peak", "gpu_reserved", "gpu_free", "gpu", "gpu_power"
    assert [found[name] for name in names] == [50, 20, 50, 50, 950, 0.25, 300]
    status.cell(False)
    gpus.is_lost = True
    status.note_gpu()
    gpus.is_lost = False
    status.cell(False)
    status.note_gpu()
    tick(now, ProcessReport(7, gpu=status.gpu))
    assert columns(meter.measure([living()], GpuReading(), now))["gpu_allocated"] == 21


def test_the_shared_memory_of_many_processes_is_measured_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    class Process:
        def __init__(self, pid: int) -> None:
            self.pid = pid

        def cpu_times(self) -> Any:
            return SimpleNamespace(user=1.0, system=0.0)

        def memory_info(self) -> Any:
            return SimpleNamespace(rss=100 + self.pid)

        def memory_full_info(self) -> Any:
            looks.append(self.pid)
            return SimpleNamespace(pss=60 + self.pid)

    monkeypatch.setattr(psutil, "Process", Process)
    processes, pids = SystemProcesses(lambda: 0.0), range(2 * SHARES_AT_ONCE)
    for batch in (1, 2, 3):
        usages = [processes.usage(pid) for pid in pids]
        assert [usage.memory for usage in usages if usage is not None] == [60 + pid for pid in pids]
        assert looks == list(pids)[: batch * SHARES_AT_ONCE]
        processes.keep(set(pids))


@pytest.mark.process
def test_memory_that_processes_share_is_divided_among_them() -> None:
    now = [0.0]
    processes = SystemProcesses(lambda: now[0])
    shared = bytearray(os.urandom(1 << 20) * 64)
    waits, ends = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ends)
        os.read(waits, 1)
        os._exit(0)
    try:
        resident = psutil.Process(child).memory_info().rss
        usage = processes.usage(child)
        assert usage is not None
        assert usage.memory < resident - len(shared) / 4  # half of it, but for what this process wrote to meanwhile
    finally:
        os.close(ends)
        os.waitpid(child, 0)


def test_memory_follows_what_is_resident_between_two_looks_at_what_is_shared() -> None:
    now = [0.0]
    processes = SystemProcesses(lambda: now[0])
    before = processes.usage(os.getpid())
    more = bytearray(os.urandom(1 << 20) * 64)
    after = processes.usage(os.getpid())
    assert before is not None
    assert after is not None
    assert after.memory - before.memory > 0.75 * len(more)
