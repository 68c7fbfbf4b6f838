"""The dashboard on a bare page: what it draws, what it says to the kernel, and that it leaves nothing behind."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from meshbook.widgets import assets
from meshbook.widgets.protocol import RankState
from tests.browser.harness import BarePage

pytestmark = pytest.mark.browser

STATES = [RankState.RUNNING] * 12 + [RankState.IN_COLLECTIVE, RankState.ERROR, RankState.DEAD, RankState.IDLE]
GIVEN_OUT = "() => window.bare.listeners.get('msg:custom')?.length ?? 0"


class Kernel:
    """Answers a view as the kernel's widget does, for a mesh of two hosts with eight ranks each."""

    def __init__(self, name: str = "trainers") -> None:
        self.name = name
        self.seq = 0
        self.alive = True
        self.mute = False

    def __call__(self, content: dict[str, Any], buffers: list[bytes]) -> list[Any]:
        if self.mute:
            return []
        if content["kind"] == "open":
            return [self.full()]
        if "id" not in content:
            return []
        reply = {"kind": "reply", "id": content["id"], "ok": True}
        match content:
            case {"kind": "select", "sel": "wrong"}:
                return [reply | {"ok": False, "error": "'wrong' is no mesh, and no dimension"}]
            case {"kind": "select", "sel": "failed"}:
                return [reply, self.state(selected={"sel": "failed", "ranks": "13", "count": 1})]
            case {"kind": "act", "action": "heal"}:
                return [reply | {"ok": False, "error": "rank 14 cannot be started"}]
            case {"kind": "act", "action": action}:
                return [reply | {"text": f"{action}: <b>done</b>"}]
            case {"kind": "history"}:
                return [(reply | {"seconds": 300, "shape": [1, 1, 4]}, [struct.pack("<4f", 1e9, 2e9, 1e9, 3e9)])]
        return [reply]

    def full(self) -> tuple[dict[str, Any], list[bytes]]:
        sections = {
            "mesh": {
                "name": self.name,
                "dims": [["hosts", 2], ["gpus", 8]],
                "hosts": ["node1", "<i>node2</i>"],
                "host_of": [0] * 8 + [1] * 8,
                "alive": self.alive,
            },
            "buffers": ["states", "values"],
            "channel": {"name": "state", "unit": "", "low": 0, "high": 1},
            "counts": {"running": 12, "in_collective": 1, "error": 1, "dead": 1, "idle": 1},
            "cell": {"number": 9, "title": "cell 9", "seconds": 61.0, "ranks": "0-15", "waits": "", "jobs": 0}
            | {"interruptible": True},
            "worst": [{"rank": 14, "value": 1.0, "text": "<script>dead</script>", "history": [1.0, None, 2.0]}],
            "hosts": [
                {"name": name, "ranks": 8, "counts": {"running": 8}, "cpu": 3.2, "memory": 1.5e9, "gpu": None}
                | {"gpu_memory": None}
                for name in ("node1", "<i>node2</i>")
            ],
            "selected": {"sel": "", "ranks": "", "count": 0},
        }
        return self.state(full=True, **sections), [bytes(STATES), struct.pack("<16f", *range(16))]

    def state(self, *, full: bool = False, **sections: Any) -> dict[str, Any]:
        self.seq += 1
        return {"kind": "state", "seq": self.seq, "full": full, **sections}


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.fixture
def view(kernel: Kernel, open_bare: Callable[..., BarePage]) -> BarePage:
    bare = open_bare(assets.script(), assets.style(), kernel, device_scale_factor=2)
    bare.page.wait_for_selector(".meshbook-dashboard:not([data-loading])")
    bare.page.add_style_tag(content="* { animation: none !important; }")
    return bare


def eventually(view: BarePage, kind: str, **fields: Any) -> None:
    """The view says this to the kernel."""
    wanted = {"kind": kind, **fields}.items()
    for _ in range(300):
        if any(wanted <= said.items() for said in view.said):
            return
        view.page.evaluate("new Promise(requestAnimationFrame)")
    raise AssertionError(f"not said: {dict(wanted)}; {view.heard(kind)}")


def wait_for_text(view: BarePage, selector: str, text: str) -> None:
    """Wait until the element shows this text; the view draws changes with the next frame."""
    view.page.wait_for_function(
        "([selector, text]) => document.querySelector(selector).innerText === text", arg=[selector, text]
    )


def colour_of(view: BarePage, rank: int) -> list[int]:
    """The colour in the middle of a rank's cell."""
    return view.page.evaluate(
        """([x, y]) => {
            const canvas = document.querySelector(".meshbook-cells");
            const scale = canvas.width / canvas.getBoundingClientRect().width;
            return [...canvas.getContext("2d").getImageData(x * scale, y * scale, 1, 1).data];
        }""",
        middle_of(rank),
    )


def middle_of(rank: int) -> list[float]:
    """Where a rank's cell is on the grid: cells of 40 pixels, 4 between them, after the labels and the padding."""
    return [37 + 44 * (rank % 8) + 20, 3 + 44 * (rank // 8) + 20]


def test_what_the_kernel_says_is_shown_as_text(view: BarePage, kernel: Kernel) -> None:
    text = view.page.inner_text(".meshbook-dashboard")
    for part in ("trainers", "hosts 2 × gpus 8 · 16 ranks", "12running", "cell 9", "1:0", "<i>node2</i>", "1.5 GB"):
        assert part in text.replace("\n", ""), text
    assert "rows: 2 hosts, columns: 8 gpus" in text
    assert "<script>dead</script>" in text
    assert "GPU" not in view.page.inner_text(".meshbook-hosts")  # of which nothing is known
    assert colour_of(view, 0) == colour_of(view, 11) != colour_of(view, 12) != colour_of(view, 15)

    dead = colour_of(view, 14)
    changed = {"buffers": ["state_ranks", "state_values"], "counts": {"dead": 16}}
    view.say(kernel.state(**changed), [struct.pack("<I", 3), bytes([RankState.DEAD])])
    view.page.wait_for_function("document.querySelector('.meshbook-chips').innerText.includes('16')")
    assert colour_of(view, 3) == dead

    view.say(kernel.state(channel={"name": "memory", "unit": "bytes", "low": 0, "high": 15}))
    view.page.wait_for_selector(".meshbook-legend:not([hidden])")
    assert colour_of(view, 0)[:3] == [68, 1, 84]
    assert colour_of(view, 11)[:3] != [68, 1, 84]
    view.page.select_option(".meshbook-choice", label="GPU memory")
    eventually(view, "channel", name="gpu_memory")


def test_ranks_are_selected_by_mouse_keys_and_words(view: BarePage, kernel: Kernel) -> None:
    page, grid = view.page, view.page.locator(".meshbook-surface")

    def click(rank: int, **options: Any) -> None:
        x, y = middle_of(rank)
        grid.click(position={"x": x, "y": y}, **options)

    click(3)
    eventually(view, "select", sel="3")
    click(5, modifiers=["Control"])
    eventually(view, "select", sel="3,5")
    wait_for_text(view, ".meshbook-count", "2 of 16")  # drawn with the next frame
    wait_for_text(view, ".meshbook-code", "%%mesh 3,5")
    box = grid.bounding_box() or {}
    for rank, do in ((1, page.mouse.down), (10, page.mouse.up)):
        x, y = middle_of(rank)
        page.mouse.move(box["x"] + x, box["y"] + y, steps=3)
        do()
    eventually(view, "select", sel="1:3,9:11")

    page.focus(".meshbook-grid")
    # JupyterLab would take "d d" for the deletion of the cell, and sees this where the focus is, not above it.
    assert page.evaluate("document.activeElement.matches('.meshbook-grid[data-lm-suppress-shortcuts]')")
    page.keyboard.press("Escape")
    eventually(view, "select", sel="")
    for key in ("Home", "ArrowDown", "ArrowRight", " "):
        page.keyboard.press(key)
    eventually(view, "select", sel="9")
    assert page.get_by_role("grid").get_attribute("aria-activedescendant") == page.get_attribute(
        "[role=gridcell]", "id"
    )
    wait_for_text(view, "[role=gridcell]", "rank 9, hosts 1, gpus 1, <i>node2</i>, running")
    page.keyboard.press("Shift+ArrowRight")
    eventually(view, "select", sel="9:11")
    page.keyboard.press("/")
    page.keyboard.type("0-3,7")
    page.keyboard.press("Enter")
    eventually(view, "select", sel="0-3,7")
    page.fill(".meshbook-field", "wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector(".meshbook-toolbar [role=alert] >> text='wrong' is no mesh")  # where it was typed
    page.wait_for_selector(".meshbook-field[aria-invalid]")
    page.wait_for_selector(".meshbook-count:empty", state="attached")
    assert [said["sel"] for said in view.heard("select")].count("wrong") == 1
    page.fill(".meshbook-field", "failed")
    page.keyboard.press("Enter")
    page.wait_for_selector(".meshbook-count >> text=1 of 16")
    page.wait_for_selector(".meshbook-toolbar [role=alert]:empty", state="attached")
    page.wait_for_selector(".meshbook-field:not([aria-invalid])")
    page.focus(".meshbook-chip[data-state=dead]")
    view.say(kernel.state(counts={"running": 15, "dead": 1}))
    page.wait_for_function("document.querySelector('.meshbook-chips').innerText.includes('15')")
    page.keyboard.press("Enter")  # the focus has stayed where it was
    eventually(view, "select", sel="14")
    page.click(".meshbook-hosts >> text=<i>node2</i>")
    eventually(view, "select", sel="8:16")

    x, y = middle_of(3)
    page.mouse.move(box["x"] + x, box["y"] + y)
    page.wait_for_selector(".meshbook-tip:visible >> text=rank 3")
    eventually(view, "history", ranks=[3], metrics=["cpu"])
    page.wait_for_selector(".meshbook-tip .meshbook-spark")


def test_buttons_act_on_what_is_selected(view: BarePage, kernel: Kernel) -> None:
    page = view.page
    page.click("[data-action=interrupt]")
    eventually(view, "act", action="interrupt", sel="")
    page.wait_for_selector(".meshbook-status >> text=interrupt: <b>done</b>")
    view.say(kernel.state(cell=None, selected={"sel": "14", "ranks": "14", "count": 1}))
    page.wait_for_selector("[data-action=interrupt][aria-disabled]")
    page.click("[data-action=interrupt]")
    page.wait_for_selector(".meshbook-status >> text=no cell is running")
    view.say(
        kernel.state(cell={"number": 10, "title": "cell 10", "seconds": 0.1, "ranks": "0-15", "waits": "", "jobs": 0})
    )
    page.wait_for_selector(".meshbook-status:empty", state="attached")  # it is of another time
    view.say(kernel.state(cell=None))
    page.wait_for_selector("[data-action=interrupt][aria-disabled]")
    page.click("[data-action=heal]")
    page.wait_for_selector(".meshbook-status[data-kind=error] >> text=rank 14 cannot be started")

    kill = page.locator("[data-action=kill]")
    kill.dblclick()
    assert kill.inner_text() == "Kill rank 14?"
    page.wait_for_selector(".meshbook-status >> text=Press again to kill")
    page.keyboard.press("Escape")
    assert kill.inner_text() == "Kill"
    page.wait_for_selector(".meshbook-status:empty", state="attached")
    for _ in range(3):
        page.keyboard.down("Enter")  # and is held
    page.keyboard.up("Enter")
    assert kill.inner_text() == "Kill rank 14?"
    view.say(kernel.state(selected={"sel": "0:2", "ranks": "0-1", "count": 2}))  # by another view
    page.wait_for_selector("[data-action=kill]:not([data-confirming])")
    view.say(kernel.state(selected={"sel": "14", "ranks": "14", "count": 1}))
    page.wait_for_selector(".meshbook-code >> text=%%mesh 14")
    kill.click()
    kill.click()
    eventually(view, "act", action="kill", sel="14")
    assert [said["action"] for said in view.heard("act")] == ["interrupt", "heal", "kill"]


def test_a_view_finds_its_way_back(view: BarePage, kernel: Kernel) -> None:
    page = view.page
    assert len(view.heard("open")) == 1
    for _ in range(10):
        view.say(kernel.state(counts={"running": 16}))
    eventually(view, "ack")
    kernel.seq += 1  # a state is lost
    view.say(kernel.state(counts={"running": 1}))
    page.wait_for_function("document.querySelector('.meshbook-chips').innerText.includes('12')")
    assert len(view.heard("open")) == 2

    kernel.name = "another <b>"
    page.clock.install()
    view.load()  # as a reload of the page does
    page.wait_for_selector(".meshbook-name >> text=another <b>")
    assert len(view.heard("open")) == 3
    kernel.alive = False
    view.say(*kernel.full())
    page.wait_for_selector(".meshbook-banner >> text=The mesh is down")

    kernel.mute = True
    asked = len(view.heard("logs"))
    view.say(kernel.state(counts={"running": 2}))
    page.clock.run_for(6000)
    assert len(view.heard("logs")) > asked  # and waits for an answer, as the view is closed
    view.leave()
    eventually(view, "close")
    assert page.evaluate(GIVEN_OUT) == 1  # that of the model, which goes on
    assert page.inner_text("#widget") == ""
    page.clock.run_for(60_000)
    assert view.said[-1]["kind"] == "close"
    view.show()
    page.wait_for_selector(".meshbook-banner >> text=Waiting for the kernel")
    page.clock.run_for(8000)
    page.wait_for_selector(".meshbook-banner >> text=No answer from the kernel")
    page.wait_for_selector(".meshbook-dashboard[data-silent]")
    opened = len(view.heard("open"))
    kernel.mute = False
    view.say(kernel.state(counts={"running": 3}))  # an update for others shows that this request was lost
    page.wait_for_selector(".meshbook-chips >> text=12")
    assert len(view.heard("open")) == opened + 1


@pytest.mark.parametrize("width", [400, 320, 250])
def test_a_narrow_window_wraps_tables_and_buttons(view: BarePage, kernel: Kernel, width: int) -> None:
    host = {"ranks": 8, "counts": {"running": 8}, "cpu": 63.5, "memory": 1.5e12, "gpu": 0.95, "gpu_memory": 6.4e11}
    hosts = [host | {"name": name} for name in ("trainer-0001.cluster.example", "trainer-0002.cluster.example")]
    view.say(kernel.state(hosts=hosts))
    view.page.get_by_text("trainer-0002").first.wait_for()
    view.narrow(width)
    tabs = view.page.get_by_role("tab").all()
    assert len({tab.evaluate("tab => tab.offsetTop") for tab in tabs}) == 1, "in one row"
    more = view.page.get_by_label("More panels")
    titles = more.locator("option").all_text_contents()
    assert titles[0] == "More"
    for tab in tabs:
        tab.click()
        assert view.sticking_out() == []
    for title in titles[1:]:
        more.select_option(title)
        view.page.get_by_role("tabpanel", name=title).wait_for()
        assert view.sticking_out() == []
