"""Measures the dashboard of 4096 simulated ranks: a tick of the model, the bytes sent, frames in a browser.

    python benchmarks/dashboard.py [--rounds N] [--json FILE]

A minute of a training with stragglers and faults, four ticks a second, for each metric that can colour the grid. A tick
reads the source, finds the changes and packs them. Also measured: the full state for a new view, and the static
picture. These times are processor time, without other work on the machine. The browser's times (`drawing.py`) are
wall-clock time, and are left out without a browser.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from drawing import can_draw, measure_drawing
from report import Report, arguments, spread

from meshbook.testing import FakeMesh, fake_mesh
from meshbook.widgets.dashboard_model import DashboardModel, ModelUpdate
from meshbook.widgets.protocol import ACTIVE_HERTZ
from meshbook.widgets.snapshot import snapshot_html

RANKS = 4096
SECONDS = 60
CHANNELS = ("state", "rss", "cpu", "skew")


def measure_channel(report: Report, mesh: FakeMesh, channel: str) -> None:
    """Measure a minute of ticks."""
    model = DashboardModel(mesh, lambda selector: ())
    model.show(channel)
    updates = [model.full(mesh.seconds)]
    ticks: list[float] = []
    for _ in range(int(SECONDS * ACTIVE_HERTZ)):
        mesh.advance(1 / ACTIVE_HERTZ)
        ticks.append(seconds_of(lambda: tick(mesh, model, updates)))
    usual, slow = spread(ticks)
    report.put(f"{channel}: tick, median", usual * 1e3, "ms", "under 3")
    report.put(f"{channel}: tick, 99 %", slow * 1e3, "ms", "under 10")
    report.put(f"{channel}: messages", len(updates[1:]) / SECONDS, "1/s", "under 20")
    report.put(f"{channel}: on the wire", sum(map(size_of, updates[1:])) / SECONDS / 1e3, "KB/s", "under 200")


def tick(mesh: FakeMesh, model: DashboardModel, updates: list[ModelUpdate]) -> None:
    """Run a tick, and collect the update for the views."""
    if (update := model.tick(mesh.seconds)) is not None:
        updates.append(update)


def seconds_of(work: Callable[[], object]) -> float:
    """Return the processor time of a call, in seconds."""
    start = time.thread_time()
    work()
    return time.thread_time() - start


def size_of(update: ModelUpdate) -> int:
    """Return its size in bytes, without the envelope of Jupyter's messages (half a kilobyte)."""
    return len(json.dumps(update.content)) + sum(map(len, update.buffers))


def measure_openings(report: Report, mesh: FakeMesh) -> None:
    """Measure the single messages: the full state for a new view, and the picture for a saved notebook."""
    model = DashboardModel(mesh, lambda selector: ())
    model.show("rss")
    updates: list[ModelUpdate] = []
    report.put("everything, for a new view", seconds_of(lambda: updates.append(model.full(0.0))) * 1e3, "ms")
    report.put("its size", size_of(updates[0]) / 1e3, "KB")
    snapshot = mesh.snapshot()
    report.put("the static picture", seconds_of(lambda: snapshot_html(snapshot)) * 1e3, "ms")
    report.put("its size as HTML", len(snapshot_html(snapshot)) / 1e3, "KB", "under 40")


def main() -> None:
    options = arguments("The dashboard of thousands of ranks.", rounds=3)
    report = Report()
    for seed in range(options.rounds):
        mesh = fake_mesh(RANKS, seed=seed)
        mesh.advance(30)
        for channel in CHANNELS:
            measure_channel(report, mesh, channel)
        measure_openings(report, mesh)
        if can_draw():
            measure_drawing(report, RANKS, seed)
    report.present(f"the dashboard of {RANKS} simulated ranks", options)


if __name__ == "__main__":
    main()
