"""The curves that ranks log, in Chromium: they appear, name ranks, show values, zoom, and cost little in each frame."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from meshbook.runtime.telemetry.curves import MetricHistogram, MetricImage
from meshbook.testing.simulated.logged_curves import METRICS, FakeCurves
from meshbook.widgets import assets
from tests.browser.harness import BarePage
from tests.browser.simulation import Simulation

if TYPE_CHECKING:  # it may be missing
    from playwright.sync_api import Locator

pytestmark = pytest.mark.browser
STEPS = 100  # of a simulated cell
# One black pixel.
PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg==")
# Whether the canvas has a pixel of the colour that the style sheet gives this name.
HAS_COLOUR = """([plot, name]) => {
  const canvas = plot.querySelector("canvas");
  if (!canvas) return false;
  const root = plot.closest(".meshbook-dashboard");
  const pen = new OffscreenCanvas(1, 1).getContext("2d");
  pen.fillStyle = getComputedStyle(root).getPropertyValue(name).trim();
  pen.fillRect(0, 0, 1, 1);
  const [red, green, blue] = pen.getImageData(0, 0, 1, 1).data;
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  for (let at = 0; at < data.length; at += 4)
    if (data[at] === red && data[at + 1] === green && data[at + 2] === blue && data[at + 3] === 255) return true;
  return false;
}"""
# Begins to record how long each frame with charts takes, and how many it draws.
RECORD = """() => {
  window.drawn = [];
  new PerformanceObserver((list) => {
    for (const { name, duration, detail } of list.getEntries())
      if (name === "meshbook:charts") window.drawn.push([duration, detail]);
  }).observe({ type: "measure" });
}"""


class Charts:
    """The charts of a simulated mesh: the panel in its tab, brought into view, or the view that has them alone."""

    def __init__(self, bare: BarePage, simulation: Simulation, *, alone: bool = False) -> None:
        self.bare = bare
        self.simulation = simulation
        self.panel = bare.page.locator(".meshbook-dashboard")
        if not alone:
            bare.page.get_by_role("tab", name="Curves").click()
            self.panel = bare.page.get_by_role("tabpanel", name="Curves")

    def advance(self, seconds: float) -> None:
        """Let so much time pass, and send what has changed."""
        if (update := self.simulation.tick(seconds)) is not None:
            self.bare.say(dict(update.content), update.buffers)

    def chart(self, metric: str) -> Locator:
        return self.panel.get_by_role("region", name=metric)

    def plot(self, metric: str) -> Locator:
        """The plot of a metric, once it is drawn."""
        plot = self.chart(metric).locator(".meshbook-curve-plot")
        plot.locator("canvas").wait_for()
        return plot

    def readout(self, metric: str) -> str:
        return self.chart(metric).locator(".meshbook-curve-readout").inner_text()

    def wait_for_request(self, **fields: Any) -> None:
        """Wait until the last request for curves has these fields."""
        for _ in range(300):
            if fields.items() <= self.bare.heard("curves")[-1].items():
                return
            self.bare.page.evaluate("new Promise(requestAnimationFrame)")
        raise AssertionError(f"not requested: {fields}; the last one is {self.bare.heard('curves')[-1]}")

    def wait_for_range(self) -> tuple[float, float]:
        """Wait until curves of a part of x were requested; its ends."""
        for _ in range(300):
            request = self.bare.heard("curves")[-1]
            if request["low"] is not None:
                return request["low"], request["high"]
            self.bare.page.evaluate("new Promise(requestAnimationFrame)")
        raise AssertionError("no range was requested")


@pytest.fixture
def charts(open_bare: Callable[..., BarePage]) -> Charts:
    simulation = Simulation(4, faults=0)
    simulation.mesh.advance(90)  # a part of the first cell
    return Charts(open_bare(assets.script(), assets.style(), simulation), simulation)


def test_curves_of_ranks_appear_and_go_on_and_the_ranks_that_differ_are_named(charts: Charts) -> None:
    plot = charts.plot("train/loss")
    charts.bare.page.wait_for_function(HAS_COLOUR, arg=[plot.element_handle(), "--meshbook-accent"])
    loss = charts.chart("train/loss")
    curves = charts.simulation.mesh.curves
    loss.locator("[data-kind=straggler]").get_by_text("behind: step").wait_for()
    loss.locator("[data-kind=diverging]").get_by_text("diverges:").wait_for()
    assert loss.locator("[data-kind=straggler] button").inner_text() == f"rank {curves.straggler}"
    assert [charts.chart(name).count() for name in METRICS] == [1, 1, 1, 1]

    before = charts.readout("train/loss")
    assert before.startswith("step ")
    charts.advance(5)
    charts.bare.page.wait_for_function(
        "([place, before]) => place.textContent !== before",
        arg=[loss.locator(".meshbook-curve-readout").element_handle(), before],
    )
    charts.advance(120)  # into the second cell
    loss.get_by_text("cell 2 · ").wait_for()
    charts.bare.page.wait_for_function(HAS_COLOUR, arg=[plot.element_handle(), "--meshbook-curve-earlier"])

    loss.get_by_role("button", name=f"Select rank {curves.straggler}").click()
    charts.wait_for_request(sel=str(curves.straggler))
    loss.get_by_text("cell 2 · 1 rank").wait_for()
    charts.panel.get_by_role("button", name="All ranks").click()
    charts.wait_for_request(sel="")


def test_values_show_under_the_mouse_and_by_keys_and_a_drag_zooms(charts: Charts) -> None:
    plot = charts.plot("train/loss")
    over = plot.locator(".u-over")
    over.hover(position={"x": 100, "y": 40})
    box = over.bounding_box() or {}
    readout = charts.chart("train/loss").locator(".meshbook-curve-readout[data-pointed]")
    readout.filter(has_text="mean ").wait_for()
    step = int(readout.inner_text().split()[1])
    assert 0 < step < STEPS
    plot.focus()
    plot.press("ArrowRight")
    readout.filter(has_text=f"step {step + 1} · ").wait_for()

    page = charts.bare.page
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 50, steps=3)
    page.mouse.up()
    reset = charts.panel.get_by_role("button", name="Show all")
    reset.wait_for()
    low, high = charts.wait_for_range()
    last = int(charts.simulation.mesh.curves.version) - 1
    assert last * 0.2 < low < last * 0.3
    assert last * 0.45 < high < last * 0.55
    reset.click()
    charts.wait_for_request(low=None, high=None)
    plot.press("+")
    reset.wait_for()
    plot.press("0")
    reset.wait_for(state="hidden")


def test_axes_smoothing_runs_and_names_can_be_chosen(charts: Charts) -> None:
    charts.plot("train/loss")
    charts.panel.get_by_role("button", name="log y").click()
    charts.panel.get_by_label("Smoothing").fill("0.9")
    charts.panel.get_by_label("Horizontal axis").select_option(label="by time")
    charts.wait_for_request(axis="time")
    charts.chart("train/loss").locator(".meshbook-curve-readout").filter(has_text="1:").wait_for()
    charts.panel.get_by_label("Runs").select_option(label="this run")
    charts.wait_for_request(runs=1)
    charts.panel.get_by_label("Filter metrics").fill("norm")
    charts.chart("train/loss").wait_for(state="detached")
    charts.plot("gradient/norm")
    charts.panel.get_by_label("Filter metrics").fill("nothing")
    charts.panel.get_by_text("None of 4 metrics has such a name.").wait_for()


class CurvesWithMedia(FakeCurves):
    """Histograms of two ranks, and an image, beside the curves."""

    def media(self) -> Sequence[tuple[str, str, int]]:
        return [("weights", "cell 1", 0), ("weights", "cell 1", 1), ("sample", "cell 1", 0)]

    def histogram(self, metric: str, run: str, rank: int) -> Any:
        medium = MetricHistogram(3.0, 5.0, [1.0, 2.0, 1.0], [0.0, 1.0, 2.0, 3.0])
        return medium if metric == "weights" else None

    def image(self, metric: str, run: str, rank: int) -> Any:
        return MetricImage(4.0, 6.0, PNG) if metric == "sample" else None


def test_histograms_and_images_stand_beside_the_charts_of_a_cell_of_their_own(
    open_bare: Callable[..., BarePage],
) -> None:
    simulation = Simulation(4, faults=0)
    simulation.mesh.curves = CurvesWithMedia(4, 0, STEPS)
    simulation.mesh.advance(30)
    traits = {"metrics": ["weights", "sample", "*rate"]}
    bare = open_bare(assets.script(), assets.style(), simulation, theme="dark", traits=traits)
    charts = Charts(bare, simulation, alone=True)
    charts.plot("learning rate")
    weights = charts.chart("weights")
    weights.get_by_role("img", name="rank 1 · cell 1 · step 3: 0 to 3").wait_for()
    image = charts.chart("sample").get_by_role("img", name="rank 0 · cell 1 · step 4")
    image.wait_for()
    assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") == 1
    assert charts.panel.get_by_role("region").count() == 3
    assert charts.panel.get_by_role("tab").count() == 0
    charts.panel.get_by_label("Select ranks of the charts").fill("1,2")
    charts.panel.get_by_label("Select ranks of the charts").press("Enter")
    while not bare.heard("select"):
        bare.page.evaluate("new Promise(requestAnimationFrame)")
    charts.advance(0.25)  # with the selection
    charts.wait_for_request(sel="1,2")
    charts.chart("learning rate").get_by_text("cell 1 · 2 ranks").wait_for()
    weights.get_by_text("rank 0").wait_for(state="detached")
    bare.narrow(400)
    assert bare.sticking_out() == []


class ManyCurves(FakeCurves):
    """Twenty metrics instead of four."""

    def metrics(self) -> Sequence[str]:
        return [f"{name} {number}" for number in range(5) for name in METRICS]

    def all_series(self, metric: str, run: str) -> Mapping[int, tuple[Any, Any, Any]]:  # type: ignore[override]
        return super().all_series(metric.rpartition(" ")[0], run)


def test_a_frame_of_20_metrics_on_4096_ranks_draws_few_charts(open_bare: Callable[..., BarePage]) -> None:
    simulation = Simulation(4096, faults=0)
    simulation.mesh.curves = ManyCurves(4096, 0, STEPS)
    simulation.mesh.advance(30)
    window = {"width": 1600, "height": 1600}
    bare = open_bare(assets.script(), assets.style(), simulation, traits={"metrics": []}, viewport=window)
    bare.page.evaluate(RECORD)
    charts = Charts(bare, simulation, alone=True)
    for metric in simulation.mesh.curves.metrics():
        charts.plot(metric)
    charts.advance(2)
    last = charts.chart("learning rate 4").locator(".meshbook-curve-readout")
    last.filter(has_text=f"step {simulation.mesh.curves.version - 1} ·").wait_for()
    drawn = bare.page.evaluate("window.drawn")
    longest, most = max(seconds for seconds, _ in drawn), max(count for _, count in drawn)
    print(f"{len(drawn)} frames with charts; the longest took {longest:.1f} ms, and the fullest had {most} charts")
    assert sum(count for _, count in drawn) >= 20
    assert most <= 2
