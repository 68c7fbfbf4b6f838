"""Measures the dashboard of a simulated mesh in a browser: the drawing, and whole frames. A part of `dashboard.py`.

The front end runs on a page without Jupyter, in the system's Chromium without a GPU, and gets the messages of the model
four times a second. Without Playwright or Chromium nothing is measured.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from typing import Any

from report import Report

from meshbook.widgets.assets import script, style
from meshbook.widgets.protocol import ACTIVE_HERTZ

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.browser.harness import BarePage, chromium, find_chromium
from tests.browser.simulation import Simulation

CHANNELS = ("state", "rss")  # every value of "rss" changes with every message
SECONDS = 15.0  # per channel
SIZE = {"width": 1280, "height": 1000}
# "drawing" is the front end's own time in a frame, as it measures it; "frame" ends when the browser has painted.
OBSERVE = """
window.taken = { drawing: [], frame: [] };
const request = window.requestAnimationFrame, measure = performance.measure;
let drew = false;
performance.measure = function (name, options) {
  drew = name === "meshbook:frame";
  if (drew) window.taken.drawing.push(options.end - options.start);
  return measure.apply(performance, arguments);
};
window.requestAnimationFrame = (callback) => request((time) => {
  const start = performance.now(), after = new MessageChannel();
  drew = false;
  callback(time);
  if (!drew) return;
  after.port1.onmessage = () => { window.taken.frame.push(performance.now() - start); after.port1.close(); };
  after.port2.postMessage(null);  // comes as the first task after the painting
});
"""


def can_draw() -> bool:
    """Return whether a browser is available."""
    return find_chromium() is not None and importlib.util.find_spec("playwright") is not None


def measure_drawing(report: Report, ranks: int, seed: int) -> None:
    """Record the cost of each channel: of the first frame, which draws everything, and of later ones."""
    with chromium() as browser:
        for channel in CHANNELS:
            first, taken = draw(browser, Simulation(ranks, seed=seed), channel)
            report.put(f"browser, {channel}: first frame", max(first["frame"]), "ms")
            for what, times in taken.items():
                for share in (50, 95):
                    name = f"browser, {channel}: {what}, {share} %"
                    report.put(name, sorted(times)[len(times) * share // 100], "ms", "under 33")


def draw(browser: Any, simulation: Simulation, channel: str) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Show a channel for `SECONDS`; returns the milliseconds of the first drawings and frames, and of later ones."""
    simulation.model.show(channel)
    page = browser.new_context(viewport=SIZE).new_page()
    page.add_init_script(OBSERVE)
    bare = BarePage(page, script(), style(), simulation)
    page.wait_for_function("window.taken.frame.length > 0")
    first = page.evaluate("const first = window.taken; window.taken = { drawing: [], frame: [] }; first")
    start = time.monotonic()
    for step in range(int(SECONDS * ACTIVE_HERTZ)):
        if update := simulation.tick(1 / ACTIVE_HERTZ):
            bare.say(update.content, update.buffers)
        left = start + (step + 1) / ACTIVE_HERTZ - time.monotonic()
        page.wait_for_timeout(max(0.0, left) * 1e3)
    taken = page.evaluate("window.taken")
    page.context.close()
    return first, taken
