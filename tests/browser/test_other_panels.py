"""The panels beside the log in Chromium: the timeline, stacks, prompts, bars, events, profiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from meshbook.widgets import assets
from tests.browser.harness import BarePage
from tests.browser.panel_kernel import PanelKernel

pytestmark = pytest.mark.browser

MARKUP = "<img src=x onerror=alert(1)>"
SECTIONS = {
    "stacks": {
        "at": "12:01:03",
        "groups": [
            {"ranks": "0-2", "title": f"in {MARKUP}", "frames": [["cell 9:14", f"step({MARKUP})"]]},
            {"ranks": "3", "title": "in DataLoader", "frames": [["data.py:88", "next(batches)"]]},
        ],
    },
    "pauses": [{"ranks": "3", "what": f"at a prompt {MARKUP}", "place": "cell 9:14"}],
    "bars": [{"text": f"train 60% {MARKUP}", "fraction": 0.6, "ranks": "0-3", "low": 0.5, "high": 0.7}],
    "events": [
        {"at": "12:01:03", "kind": "failed", "ranks": "3", "text": f"killed {MARKUP}"},
        {"at": "12:01:09", "kind": "healed", "ranks": "3", "text": "again"},
    ],
    "selected": {"sel": "", "ranks": "", "count": 0},
}
# Whether a pixel of the canvas, in CSS pixels from its corner, has been drawn on with a colour that is not grey.
IS_COLOURED = """([x, y]) => {
  const canvas = document.querySelector('.meshbook-time-canvas');
  const pixel = canvas.getContext('2d').getImageData(x * devicePixelRatio, y * devicePixelRatio, 1, 1);
  const [red, green, blue, alpha] = pixel.data;
  return alpha > 200 && Math.max(red, green, blue) - Math.min(red, green, blue) > 40;
}"""


def timeline(ranks: int, cell: int = 9) -> dict[str, Any]:
    """Each rank runs for a second, and then waits in a collective for another."""
    spans = [[0.0, 1.0, "running", "train_step"], [1.0, 1.9, "collective", f"all_reduce {MARKUP}"]]
    lanes = [{"label": f"rank {rank}", "rank": rank, "spans": spans} for rank in range(ranks)]
    return {"cell": cell, "seconds": 2.0, "open": False, "notes": [], "lanes": lanes}


def opened(bare: BarePage, title: str) -> Any:
    """The panel of this title, brought into view."""
    tab = bare.page.get_by_role("tab", name=title)
    if tab.is_visible():
        tab.click()
    else:  # in a narrow window
        bare.page.get_by_label("More panels").select_option(title)
    return bare.page.get_by_role("tabpanel", name=title)


def test_the_timeline_is_drawn_zoomed_pointed_at_and_asked_for_again(open_bare: Callable[..., BarePage]) -> None:
    kernel = PanelKernel(replies={"timeline": timeline(4)}, sections=dict(SECTIONS))
    bare = open_bare(assets.script(), assets.style(), kernel)
    panel = opened(bare, "Timeline")
    panel.get_by_text("Cell 9 · 2 s · 4 ranks").wait_for()
    panel.get_by_text("in a collective 45 %").wait_for()
    bare.page.wait_for_function(IS_COLOURED, arg=[100, 35])  # rank 0 runs
    assert not bare.page.evaluate(IS_COLOURED, [100, 5])  # the axis

    canvas = panel.get_by_role("img")
    width = canvas.bounding_box()["width"]
    three_quarters = 52 + (width - 52) * 0.75
    canvas.hover(position={"x": three_quarters, "y": 35})
    panel.get_by_text(f"rank 0 · all_reduce {MARKUP} (in a collective) · 900 ms").wait_for()
    assert panel.locator("img").count() == 0
    canvas.click(position={"x": three_quarters, "y": 60})
    bare.page.wait_for_function(f"() => {len(bare.heard('select'))} > 0")
    assert bare.heard("select")[-1]["sel"] == "1"

    canvas.dispatch_event("wheel", {"deltaY": -2000, "ctrlKey": True})
    canvas.press("0")
    canvas.press("ArrowDown")
    panel.get_by_text("rank 0: running 50 %").wait_for()

    kernel.replies["timeline"] = timeline(4, cell=10)
    cell = {
        "number": 10,
        "title": "cell 10",
        "seconds": 1.0,
        "ranks": "0-3",
        "waits": "",
        "jobs": 1,
        "interruptible": True,
    }
    bare.say(kernel.state(full=False, cell=cell))
    bare.page.get_by_text("cell 10").first.wait_for()
    bare.say(kernel.state(full=False, cell=None))
    panel.get_by_text("Cell 10 · 2 s · 4 ranks").wait_for()


def test_thousands_of_lanes_are_scrolled(open_bare: Callable[..., BarePage]) -> None:
    kernel = PanelKernel(ranks=4096, replies={"timeline": timeline(4096)}, sections=dict(SECTIONS))
    bare = open_bare(assets.script(), assets.style(), kernel)
    panel = opened(bare, "Timeline")
    panel.get_by_text("4,096 ranks").wait_for()
    bare.page.wait_for_function(IS_COLOURED, arg=[100, 24])
    panel.get_by_role("img").press("ArrowDown")
    scroller = "document.querySelector('.meshbook-time-scroller')"
    bare.page.evaluate(f"{scroller}.scrollTop = {scroller}.scrollHeight")
    bare.page.wait_for_function(f"{scroller}.scrollTop > 10_000")
    bare.page.wait_for_function(IS_COLOURED, arg=[100, 302])
    panel.get_by_role("img").hover(position={"x": 100, "y": 338})
    panel.get_by_text("rank 4095 · train_step").wait_for()


def test_waits_and_events_of_ranks_are_available_as_text(open_bare: Callable[..., BarePage]) -> None:
    profile = {"text": "profiled", "html": "<h1>Profile</h1>"}
    kernel = PanelKernel(sections=dict(SECTIONS), replies={"act": profile})
    bare = open_bare(assets.script(), assets.style(), kernel)
    stacks = opened(bare, "Stacks")
    stacks.get_by_text("Taken at 12:01:03: 2 different places.").wait_for()
    stacks.get_by_text(f"step({MARKUP})").wait_for()
    stacks.get_by_role("button", name="Select rank 3").click()
    bare.page.get_by_text("1 of 4").wait_for()
    assert bare.heard("select")[-1]["sel"] == "3"

    opened(bare, "Paused").get_by_text(f"at a prompt {MARKUP}").wait_for()
    progress = opened(bare, "Progress")
    assert progress.get_by_role("progressbar").get_attribute("aria-valuenow") == "60"
    assert "50% to 70%" in (progress.get_by_role("progressbar").get_attribute("title") or "")
    link = progress.get_by_role("button", name="Select ranks 0-3")
    link.focus()
    bare.say(kernel.state(full=False, bars=[SECTIONS["bars"][0] | {"fraction": 0.8}]))
    bare.page.wait_for_selector("[role=progressbar][aria-valuenow='80']")
    assert link.evaluate("link => link === document.activeElement")
    events = opened(bare, "Events").get_by_role("listitem")
    assert [text.split()[1] for text in events.all_inner_texts()] == ["healed", "failed"]
    assert bare.page.locator(".meshbook-panels img").count() == 0

    bare.page.get_by_role("button", name="Profile").click()
    bare.page.frame_locator("iframe[title=Profile]").get_by_role("heading", name="Profile").wait_for()
    assert bare.page.locator("iframe[title=Profile]").get_attribute("sandbox") == ""  # no scripts, no way out


def test_panels_fit_into_a_narrow_window(open_bare: Callable[..., BarePage]) -> None:
    kernel = PanelKernel(replies={"timeline": timeline(4)}, sections=dict(SECTIONS))
    bare = open_bare(assets.script(), assets.style(), kernel)
    bare.page.get_by_role("tab").first.wait_for()
    bare.narrow(400)
    for title in ("Logs", "Timeline", "Stacks", "Paused", "Progress", "Actors", "Events", "Profile"):
        opened(bare, title).wait_for()
        assert bare.sticking_out() == []
