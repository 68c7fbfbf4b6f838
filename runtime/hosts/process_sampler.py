"""The process sampler: reads the status pages of a host's workers, measures their processes, and sends batches.

A process is measured alone, without its children. Pages that processes share are divided among them (PSS); otherwise
torch, which the fork server has loaded, would be counted in each.
"""

from __future__ import annotations

import array
import contextlib
import logging
import math
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec
import psutil

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import MeshbookError
from meshbook.runtime.hosts.gpus import GpuReading, GpuWatch
from meshbook.runtime.node.node import Node
from meshbook.runtime.telemetry.status_page import StatusPageReader, StatusReading, Traffic
from meshbook.runtime.telemetry.vitals import (
    COLUMNS,
    IDLE_BATCH_SECONDS,
    LATE_AFTER,
    SECONDS,
    STALE_AFTER,
    VITALS,
    Activity,
    ProcessReport,
    VitalsBatch,
    decode_process_report,
)

logger = logging.getLogger(__name__)

VITALS_SENDER = "vitals_sender"  # the actor of every host agent
GPU_IDLE_SECONDS = 10.0  # between two readings of the GPUs while everything on the host is idle
CPU_SECONDS = 0.9  # the least time over which processor time is measured: the system counts it in hundredths
SHARE_SECONDS = 30.0  # between two measurements of the pages that a process shares
SHARE_COST = 200.0  # times the duration of such a measurement, where that is longer
SHARES_AT_ONCE = 16  # such measurements in one batch: hundreds would slow down processes that start together

STOPPED = psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP
UNKNOWN_RATES = (math.nan,) * 4
UNKNOWN_GPU = (math.nan,) * 4


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """A worker that has a process."""

    node: str
    incarnation: int
    pid: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Resource use of a process: seconds of processor time so far, and bytes."""

    cpu_seconds: float
    memory: float


class ProcessTable(Protocol):
    """The processes of this machine. For a process that does not exist, `usage` is None and `runs` is false."""

    def usage(self, pid: int) -> Usage | None: ...
    def runs(self, pid: int) -> bool: ...
    def keep(self, pids: set[int]) -> None: ...


@dataclass(frozen=True, slots=True)
class _Share:
    """The resident bytes of a process that count for other processes because they are shared; valid until `until`."""

    of_others: float
    until: float


class SystemProcesses:
    """The processes of the system, by psutil. `clock`: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[int, psutil.Process] = {}
        self._shares: dict[int, _Share] = {}
        self._looks = 0  # measurements of shared pages in this batch

    def usage(self, pid: int) -> Usage | None:
        """Return the present resource use of a process; None if it does not exist."""
        with contextlib.suppress(psutil.Error):
            if (process := self._known.get(pid)) is None:
                process = self._known[pid] = psutil.Process(pid)
            times = process.cpu_times()
            return Usage(times.user + times.system, self._memory(process))
        return None

    def _memory(self, process: psutil.Process) -> float:
        """Return the resident bytes, less the part of shared pages that counts for others, as last measured.

        For a process whose turn to be measured has not come, that part is the mean of the others: most processes of a
        host are forks of the same server.
        """
        resident = float(process.memory_info().rss)
        share = self._shares.get(process.pid)
        if (share is None or self._clock() >= share.until) and self._looks < SHARES_AT_ONCE:
            self._looks += 1
            share = self._shares[process.pid] = self._look(process, resident)
        if share is not None:
            return max(0.0, resident - share.of_others)
        known = [each.of_others for each in self._shares.values()] or [0.0]
        return max(0.0, resident - sum(known) / len(known))

    def _look(self, process: psutil.Process, resident: float) -> _Share:
        begun = time.perf_counter()
        try:
            own = float(process.memory_full_info().pss)
        except (psutil.AccessDenied, AttributeError):  # of another user; not on this system
            own = resident
        # The system walks all pages of the process, some 2 ms for a gigabyte.
        pause = max(SHARE_SECONDS, SHARE_COST * (time.perf_counter() - begun))
        return _Share(max(0.0, resident - own), self._clock() + pause)

    def runs(self, pid: int) -> bool:
        """Whether the process exists and is not stopped."""
        with contextlib.suppress(psutil.Error):
            return psutil.Process(pid).status() not in (*STOPPED, psutil.STATUS_ZOMBIE)
        return False

    def keep(self, pids: set[int]) -> None:
        """Forget all other processes, at the end of a batch."""
        self._looks = 0
        self._known = {pid: process for pid, process in self._known.items() if pid in pids}
        self._shares = {pid: share for pid, share in self._shares.items() if pid in pids}


@dataclass
class _LastSample:
    """The state of a process at the last sample; rates are computed from it."""

    pid: int = 0
    cpu_at: float = 0.0
    cpu_seconds: float = 0.0
    cpu: float = math.nan
    tick: float = 0.0
    traffic: Traffic = (0, 0, 0, 0)
    rates: Sequence[float] = UNKNOWN_RATES
    sign: float = -math.inf  # the time of its last heartbeat
    words: bytes = b""  # the words that were sent last


@dataclass
class ProcessSampler:
    """Makes batches of measurements. `host` is the host's name. For one thread."""

    host: str
    pages: StatusPageReader
    table: ProcessTable
    _before: dict[tuple[str, int], _LastSample] = field(default_factory=dict)

    def measure(self, workers: Sequence[LiveWorker], gpus: GpuReading, now: float) -> VitalsBatch:
        """Measure these workers; the batch's `words` are those that have changed since the last batch."""
        living = {(worker.node, worker.incarnation) for worker in workers}
        self._before = {key: self._before.get(key) or _LastSample() for key in living}
        self.pages.keep(living)
        numbers, words = array.array("f"), {}
        for worker in workers:
            before = self._before[worker.node, worker.incarnation]
            row, report = self._measure_one(worker, before, gpus, now)
            numbers.extend(row)
            if report != before.words:
                words[worker.node] = before.words = report
        self.table.keep({before.pid for before in self._before.values()})
        names, incarnations = tuple(worker.node for worker in workers), tuple(worker.incarnation for worker in workers)
        return VitalsBatch(self.host, names, incarnations, numbers.tobytes(), words)

    def send_all_words(self) -> None:
        """Send all words again with the next batch: their receiver is gone, or did not receive them."""
        for before in self._before.values():
            before.words = b""

    def _measure_one(
        self, worker: LiveWorker, before: _LastSample, gpus: GpuReading, now: float
    ) -> tuple[Iterable[float], bytes]:
        can_say = True
        try:
            page = self.pages.read(worker.node, worker.incarnation)
        except OSError:  # it has no page, for lack of space: a process that is not stopped is taken as alive
            page, can_say = None, False
        report = page.words if page is not None and page.words else before.words
        words = decode_process_report(report) if report else ProcessReport(0)
        pid = words.pid or worker.pid  # a command may have started another process, which is the worker
        usage = self.table.usage(pid)
        cpu, memory = _cpu(before, pid, usage, now), usage.memory if usage is not None else math.nan
        used = gpus.of(pid, words.gpu)
        allocated, peak, reserved, free = page.gpu if page is not None and words.gpu else UNKNOWN_GPU
        if page is not None:
            _take_rates(before, page, now)
            before.sign = page.tick or before.sign
        elif not can_say and self.table.runs(pid):
            before.sign = now
            report = report or msgspec.msgpack.encode(ProcessReport(pid))
        step, queued = (page.step or math.nan, page.queued) if page is not None else (math.nan, math.nan)
        activity = page.activity if page is not None else Activity.IDLE
        age = max(0.0, now - before.sign)
        of_gpu = reserved if math.isnan(used.memory) else used.memory
        gpu = (of_gpu, used.utilisation, allocated, peak, reserved, free, used.power, used.temperature)
        return (cpu, memory, *gpu, step, queued, *before.rates, activity, age), report


def _cpu(before: _LastSample, pid: int, usage: Usage | None, now: float) -> float:
    """Return the number of cores in use, over the last second or so."""
    if usage is None:
        return math.nan
    if before.pid != pid:
        before.pid, before.cpu_at, before.cpu_seconds = pid, now, usage.cpu_seconds
    elif (seconds := now - before.cpu_at) >= CPU_SECONDS:
        before.cpu = max(0.0, usage.cpu_seconds - before.cpu_seconds) / seconds
        before.cpu_at, before.cpu_seconds = now, usage.cpu_seconds
    return before.cpu


def _take_rates(before: _LastSample, page: StatusReading, now: float) -> None:
    """Compute messages and bytes per second between two writes of the page, exactly: by the page's own times."""
    seconds = page.tick - before.tick
    if now - page.tick > STALE_AFTER:
        before.rates = UNKNOWN_RATES
    elif before.tick and seconds >= CPU_SECONDS:
        before.rates = [(new - old) / seconds for new, old in zip(page.traffic, before.traffic, strict=True)]
    if not before.tick or seconds >= CPU_SECONDS:
        before.tick, before.traffic = page.tick, page.traffic


class VitalsSender(Actor):
    """Sends the measurements of this host to the controller, from a thread of its own, until it is stopped.

    It sends a batch once the previous one was answered: a busy controller gets fewer, and while a run is detached none
    is kept. The answer is the interval in seconds until the next batch. An answer does not wake the thread.
    """

    def __init__(self, node: Node, living: Callable[[], list[LiveWorker]], meter: ProcessSampler) -> None:
        self._node = node
        self._living = living
        self._meter = meter
        self._gpus = GpuWatch()
        self._asked: Future[float] | None = None
        self._pace = SECONDS  # the interval that the controller requests
        self._ordered: queue.SimpleQueue[float] = queue.SimpleQueue()  # by `pace`; newer than an answer that is here
        self._is_quiet = False  # whether the last batch was, see `is_quiet`
        self._news = threading.Event()  # set by `pace` and at the end
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="meshbook vitals sender", daemon=True)
        self._thread.start()

    @endpoint
    def pace(self, seconds: float) -> None:
        """Send a batch now, and from now on one every `seconds`."""
        self._ordered.put(seconds)
        self._news.set()

    def __cleanup__(self, error: BaseException | None) -> None:
        self._closed = True
        self._news.set()
        self._gpus.close()
        self._thread.join()
        self._meter.pages.close()

    def _run(self) -> None:
        while not self._closed:
            begun = time.monotonic()
            self._take_answer()
            try:
                self._tick()
            except Exception:  # a process that cannot be measured must not end the measurement of the others
                logger.exception("the processes of %s could not be measured", self._meter.host)
                self._meter.send_all_words()
            self._news.wait(max(0.0, begun + interval(self._pace, is_quiet=self._is_quiet) - time.monotonic()))
            self._news.clear()

    def _tick(self) -> None:
        if self._asked is not None:
            return
        if not (workers := self._living()):
            self._is_quiet = False  # a mesh that starts is seen within a second
            return
        self._gpus.refresh(GPU_IDLE_SECONDS if self._is_quiet and self._pace >= SECONDS else SECONDS)
        batch = self._meter.measure(workers, self._gpus.reading, time.monotonic())
        self._is_quiet = is_quiet(batch)
        self._asked = self._node.calls.ask(self._node.controller, VITALS, "measured", batch)

    def _take_answer(self) -> None:
        """Take the interval from the last batch's answer, if it has arrived, and then from the last call of `pace`."""
        if (asked := self._asked) is not None and asked.done():
            self._asked = None
            try:
                self._pace = asked.get()
            except MeshbookError:  # another process is the controller now, or none
                self._pace = SECONDS
                self._meter.send_all_words()
        while not self._ordered.empty():
            self._pace = self._ordered.get()


def is_quiet(batch: VitalsBatch) -> bool:
    """Whether every process in a batch is idle, with no message waiting and a heartbeat that is not late."""
    rows = array.array("f")
    rows.frombytes(batch.numbers)
    width = len(COLUMNS)
    queued, activities, ages = (rows[COLUMNS.index(name) :: width] for name in ("queued", "activity", "age"))
    return max(ages, default=0.0) < LATE_AFTER and not (any(activities) or any(count > 0 for count in queued))


def interval(pace: float, *, is_quiet: bool) -> float:
    """Return the seconds until the next batch: at least the controller's interval, and more on an idle host."""
    return max(pace, IDLE_BATCH_SECONDS) if is_quiet and pace >= SECONDS else pace


def make_meter(host: str, folder: Path) -> ProcessSampler:
    """Return the sampler of this machine. `host` is empty on a run's first host, and means the system's host name."""
    return ProcessSampler(host or socket.gethostname(), StatusPageReader(folder), SystemProcesses())
