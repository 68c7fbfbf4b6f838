"""Measures curves: a call of `meshbook.log` on a rank, the load of the controller, and ten million points.

    python benchmarks/curves.py [--rounds N] [--json FILE] [--points N]

A call logs three scalars, in bursts, since a training loop logs now and then. The same loop measures `SummaryWriter` of
torch, with three calls of `add_scalar`, and `wandb.log` in offline mode, where these packages are installed. The load
of the controller is the processor time of its whole process.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import statistics
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any

import psutil
from report import Aim, Report, json_option

import meshbook
from meshbook import Actor, close_session, endpoint, this_host
from meshbook.runtime.hosts.session import current_session
from meshbook.runtime.telemetry.curve_exports import MetricHistory
from meshbook.runtime.telemetry.curves import CurveStore
from meshbook.runtime.telemetry.points import LoggedPoints, MetricPoints

RANKS = 8
BURSTS, BURST = 100, 100
PAUSE = 0.01  # seconds between bursts
RATE = 2000  # points a second of each rank
SECONDS = 8.0
METRICS = ("train/loss", "train/lr", "grad/norm", "time/step")
MESSAGE_POINTS = 1000


class Logger(Actor):
    """The rank's side."""

    @endpoint
    def cost(self, way: str, folder: str) -> float:
        """Return the median seconds of a call that logs three scalars."""
        log = {"meshbook": meshbook_way, "tensorboard": tensorboard_way, "wandb": wandb_way}[way](folder)
        taken = []
        step = 0
        for _ in range(BURSTS):
            start = time.perf_counter()
            for _ in range(BURST):
                log(step)
                step += 1
            taken.append((time.perf_counter() - start) / BURST)
            time.sleep(PAUSE)
        return statistics.median(taken)

    @endpoint
    def log_steadily(self, seconds: float) -> int:
        """Log `RATE` points a second, and return the number of points."""
        calls, start = 0, time.monotonic()
        while (passed := time.monotonic() - start) < seconds:
            while calls * 4 < passed * RATE:
                meshbook.log({"train/loss": 0.5, "train/lr": 0.1, "grad/norm": 1.0, "time/step": 0.2}, step=calls)
                calls += 1
            time.sleep(0.001)
        return calls * 4


def meshbook_way(folder: str) -> Any:
    return lambda step: meshbook.log(step=step, loss=0.5, lr=0.1, norm=1.0)


def tensorboard_way(folder: str) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(folder)

    def log(step: int) -> None:
        writer.add_scalar("loss", 0.5, step)
        writer.add_scalar("lr", 0.1, step)
        writer.add_scalar("norm", 1.0, step)

    return log


def wandb_way(folder: str) -> Any:
    import wandb

    run = wandb.init(mode="offline", dir=folder, settings=wandb.Settings(silent=True))
    return lambda step: run.log({"loss": 0.5, "lr": 0.1, "norm": 1.0}, step=step)


def measure_calls(report: Report, logger: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for way, package in (("meshbook", "meshbook"), ("tensorboard", "tensorboard"), ("wandb", "wandb")):
            if importlib.util.find_spec(package) is not None:
                aim: Aim | str = Aim(5.0) if way == "meshbook" else ""
                report.put(f"three scalars, {way}", logger.cost.call_one(way, folder).get() * 1e6, "us", aim)


def measure_controller(report: Report, loggers: Any) -> None:
    """Measure the controller while all ranks log."""
    idle = share_of_core(2.0, lambda: time.sleep(2.0))
    counts: list[int] = []
    busy = share_of_core(SECONDS, lambda: counts.extend(loggers.log_steadily.call(SECONDS).get().values()))
    report.put("points a second of each rank", sum(counts) / RANKS / SECONDS, "1/s")
    report.put(f"controller while {RANKS} ranks log", busy * 100, "% of a core", Aim(5.0))
    report.put("the same while they do not", idle * 100, "% of a core")


def share_of_core(seconds: float, work: Any) -> float:
    begin, start = time.process_time(), time.monotonic()
    work()
    return (time.process_time() - begin) / (time.monotonic() - start)


def measure_history(report: Report, count: int) -> None:
    """Measure a store that gets many points: its memory, its processor time, and what is in its files."""
    own = psutil.Process()
    with tempfile.TemporaryDirectory() as folder:
        store = CurveStore(Path(folder) / "curves")
        store.add(message(0, 0))
        store.flush()
        store.write_part()  # loads pyarrow
        before, begin, most = own.memory_info().rss, time.process_time(), 0
        for number in range(1, count // (MESSAGE_POINTS * len(METRICS))):
            store.add(message(number % RANKS, number // RANKS))
            if number % 100 == 0:
                store.flush()
                most = max(most, own.memory_info().rss)
        store.flush()
        store.write_part()
        taken = time.process_time() - begin
        report.put("memory of the store, at most", (most - before) / 2**20, "MiB", Aim(400))
        report.put("processor time for a million points", taken / count * 1e6, "s")
        rows = sum(table.num_rows for table in MetricHistory(store.saved()).tables())
        report.put(
            "points in the files", rows, "", Aim(count // (MESSAGE_POINTS * 4) * MESSAGE_POINTS * 4, is_least=True)
        )
        files = list((Path(folder) / "curves").iterdir())
        report.put("files", len(files), "")
        report.put("their size for a point", sum(file.stat().st_size for file in files) / rows, "bytes")
        kept = sum(len(store.series(metric, run, rank)[0]) for metric, run, rank in all_curves(store))
        report.put("points in memory", kept, "", Aim(5e6))
        store.close()


def all_curves(store: CurveStore) -> list[tuple[str, str, int]]:
    return [
        (metric, run, rank)
        for metric in store.metrics()
        for run in store.runs(metric)
        for rank in store.ranks(metric, run)
    ]


def message(rank: int, number: int) -> LoggedPoints:
    """Return a message with new points of each metric."""
    first = number * MESSAGE_POINTS
    steps = array("d", range(first, first + MESSAGE_POINTS)).tobytes()
    times = array("d", [1e9 + first + place for place in range(MESSAGE_POINTS)]).tobytes()
    values = array("d", [math.exp(-(first + place) / 1e6) for place in range(MESSAGE_POINTS)]).tobytes()
    return LoggedPoints("1.0.1", "mesh", rank, tuple(MetricPoints(name, steps, times, values) for name in METRICS))


def main() -> None:
    parser = json_option(argparse.ArgumentParser(description="What curves cost."))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--points", type=int, default=10_000_000)
    options = parser.parse_args()
    report = Report()
    os.environ.setdefault("WANDB_MODE", "offline")
    mesh = this_host().spawn_procs(per_host={"gpus": RANKS})
    loggers = mesh.spawn("loggers", Logger)
    for _ in range(options.rounds):
        measure_calls(report, loggers.slice(gpus=0))
        measure_controller(report, loggers)
        measure_history(report, options.points)
    logged = current_session().curves
    logged.flush()
    dropped = sum(logged.dropped.values())
    mesh.stop().get()
    close_session()
    report.present("curves", options, f"{dropped:,} points were dropped on ranks")


if __name__ == "__main__":
    main()
