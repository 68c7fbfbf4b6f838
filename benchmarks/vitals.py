"""Measures the cost of vitals: in a worker, its agent, on the wire, and in a controller of thousands of ranks.

    python benchmarks/vitals.py [--rounds N] [--json FILE]

The kernel counts the processor time of threads. A batch is measured as an agent does it, but all of its 64 processes
are this one; 4096 ranks are those of 64 such hosts.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from report import Report, arguments, seconds_of

from meshbook import Actor, close_session, endpoint, this_host
from meshbook.runtime.hosts.gpus import NOTHING
from meshbook.runtime.hosts.process_sampler import LiveWorker, ProcessSampler, SystemProcesses
from meshbook.runtime.telemetry.history import History
from meshbook.runtime.telemetry.status_page import StatusPageReader
from meshbook.runtime.telemetry.status_writer import StatusWriter
from meshbook.runtime.telemetry.vitals import METRICS, ProcessReport, VitalsBatch

PER_HOST = 64
RANKS = 4096
SETTLED = 5.0  # seconds for which a worker idles
TIMES = 20
WORDS = ProcessReport(os.getpid(), (("trainer", 3, "step"), ("loader", 0, "")), "all_reduce")


class Probe(Actor):
    """The worker's side: finds the threads of its process."""

    @endpoint
    def thread(self, name: str) -> tuple[int, int]:
        """Return the process, and the thread of this name in it."""
        (found,) = (each.native_id for each in threading.enumerate() if each.name == name)
        return os.getpid(), found


def processor_seconds(pid: int, thread: int) -> float:
    """Return the processor time of a thread so far."""
    return int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0]) / 1e9


def measure_worker(report: Report, probe: Any) -> None:
    """Measure the thread that writes a worker's vitals."""
    pid, thread = probe.thread.call_one("meshbook heartbeat").get()
    before, start = processor_seconds(pid, thread), time.monotonic()
    time.sleep(SETTLED)
    share = (processor_seconds(pid, thread) - before) / (time.monotonic() - start)
    report.put("heartbeat of a worker", share * 100, "% of a core", "under 1; 0.02")


def measure_heartbeat(report: Report, status: StatusWriter) -> None:
    """Measure status updates, where nanoseconds count, and the heartbeat once a second."""
    many = range(10_000)
    report.put(
        "a sign: a collective begins", seconds_of(lambda: [status.collectives(1) for _ in many]) / 1e4 * 1e9, "ns"
    )
    report.put("a heartbeat", seconds_of(lambda: [status.tick(WORDS, (1, 2, 3, 4)) for _ in many]) / 1e4 * 1e6, "us")


def measure_batch(report: Report, meter: ProcessSampler) -> VitalsBatch:
    """Measure the work of an agent for a batch, and the batch's size."""
    workers = [LiveWorker(f"m.{rank}", 0, os.getpid(), rank) for rank in range(PER_HOST)]
    first = meter.measure(workers, NOTHING, time.monotonic())
    taken = seconds_of(lambda: [meter.measure(workers, NOTHING, time.monotonic()) for _ in range(TIMES)])
    report.put(f"a batch of {PER_HOST} workers", taken / TIMES * 1e3, "ms", "under 5")
    report.put("its numbers", len(first.numbers), "bytes")
    return first


def measure_history(report: Report, batch: VitalsBatch) -> None:
    """Measure the work of the controller for the batches of many hosts."""
    history, hosts = History(), []
    for host in range(RANKS // PER_HOST):
        nodes = tuple(f"m.{host * PER_HOST + rank}" for rank in range(PER_HOST))
        hosts.append(VitalsBatch(f"host {host}", nodes, batch.incarnations, batch.numbers))
    for each in hosts:
        history.add(each)
    nodes = [f"m.{rank}" for rank in range(RANKS)]
    history.vitals(nodes)
    taken = seconds_of(lambda: [history.add(each) for each in hosts])
    report.put(f"batches of {len(hosts)} hosts taken in", taken * 1e3, "ms")
    taken = seconds_of(lambda: [history.vitals(nodes) for _ in range(TIMES)])
    report.put(f"vitals of {RANKS} ranks", taken / TIMES * 1e3, "ms", "under 1")
    taken = seconds_of(lambda: [history.series(nodes[:8], METRICS) for _ in range(TIMES)])
    report.put("five minutes of 8 ranks, all metrics", taken / TIMES * 1e3, "ms")


def main() -> None:
    options = arguments("What it costs to know how processes are.", rounds=3)
    report = Report()
    workers = this_host().spawn_procs(per_host={"gpus": 2})
    probe = workers.spawn("probe", Probe).slice(gpus=0)
    with tempfile.TemporaryDirectory() as folder:
        every = [StatusWriter() for _ in range(PER_HOST)]
        for rank, status in enumerate(every):
            status.open(Path(folder), f"m.{rank}", 0)
            status.tick(WORDS, (1, 2, 3, 4))
        meter = ProcessSampler("this host", StatusPageReader(Path(folder)), SystemProcesses())
        for _ in range(options.rounds):
            measure_worker(report, probe)
            measure_heartbeat(report, every[0])
            measure_history(report, measure_batch(report, meter))
    workers.stop().get()
    close_session()
    report.present("vitals", options)


if __name__ == "__main__":
    main()
