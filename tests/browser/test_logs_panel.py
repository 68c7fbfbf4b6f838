"""The log panel in Chromium, over a kernel that is a Python function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshbook.widgets import assets
from tests.browser.harness import BarePage
from tests.browser.panel_kernel import PanelKernel

pytestmark = pytest.mark.browser

ROWS = ".meshbook-log-row"
TEXTS = f"[...document.querySelectorAll('{ROWS} .meshbook-log-text')].map(each => each.textContent)"


class Log:
    """The log panel, as a person uses it."""

    def __init__(self, bare: BarePage, kernel: PanelKernel) -> None:
        self.bare, self.page, self.kernel = bare, bare.page, kernel

    def says(self, text: str) -> bool:
        """Wait until a visible row is this text."""
        self.page.wait_for_function(f"text => {TEXTS}.includes(text)", arg=text)
        return True

    def print(self, rank: int, text: str, **options: Any) -> None:
        """A rank prints, and the view hears that something runs."""
        self.kernel.print(rank, text, **options)
        self.bare.say(self.kernel.state(full=False, counts={"running": 1}))

    def fill(self, name: str, text: str) -> None:
        self.page.get_by_role("searchbox", name=f"{name} the log").fill(text)

    def where(self, condition: str) -> None:
        """Wait until it holds of the element that scrolls, `lines`."""
        self.page.wait_for_function(
            f"() => {{ const lines = document.querySelector('[role=log]'); return {condition} }}"
        )


@pytest.fixture
def make_log(open_bare: Callable[..., BarePage]) -> Callable[..., Log]:
    def make(kernel: PanelKernel, **options: Any) -> Log:
        return Log(open_bare(assets.script(), assets.style(), kernel, **options), kernel)

    return make


def test_lines_come_as_text_in_their_colours_and_only_those_in_view_are_in_the_page(
    make_log: Callable[..., Log],
) -> None:
    kernel = PanelKernel()
    for number in range(3000):
        kernel.print(number % 4, f"line {number}")
    kernel.print(2, "<script>document.title = 'run'</script><img src=x onerror=alert(1)>")
    kernel.print(3, "\x1b[31mred <b>bold</b>\x1b]0;title\x07\x1b[2K")
    kernel.print(3, "not red", stream="stderr")
    kernel.print(3, "still red\x1b[0m")
    kernel.live = [(1, "stderr", 9, "train 60 %")]
    log = make_log(kernel)
    assert log.says("<script>document.title = 'run'</script><img src=x onerror=alert(1)>")
    assert log.says("red <b>bold</b>")
    assert log.says("train 60 %")
    assert log.page.locator(f"{ROWS} script, {ROWS} img, {ROWS} b").count() == 0
    reds = log.page.locator(".meshbook-log-text .ansi-red-fg")
    assert reds.all_text_contents() == ["red <b>bold</b>", "still red"]
    assert log.page.locator(".meshbook-log-stderr").count() == 2
    assert log.page.locator(ROWS).count() < 60

    log.page.get_by_role("log").hover()
    log.page.mouse.wheel(0, -100_000)  # at the top older lines are asked for
    log.where("lines.scrollTop > 0 && lines.scrollHeight > 900 * 18")
    assert log.page.locator(ROWS).count() < 60


def test_the_end_is_followed_until_a_person_scrolls_up(make_log: Callable[..., Log]) -> None:
    kernel = PanelKernel()
    for number in range(200):
        kernel.print(0, f"line {number}")
    log = make_log(kernel)
    assert log.says("line 199")
    log.print(1, "followed")
    assert log.says("followed")
    log.page.get_by_role("log").hover()
    log.page.mouse.wheel(0, -600)
    more = log.page.get_by_role("button", name="↓")
    log.bare.say(log.kernel.state())  # another view was opened: all get all
    log.print(1, "unseen")
    log.page.get_by_role("button", name="↓ 1 new").click()
    assert log.says("unseen")
    assert more.and_(log.page.locator(".meshbook-log-more")).is_hidden()
    log.where("lines.scrollTop + lines.clientHeight >= lines.scrollHeight - 2")
    log.kernel.lines.clear()  # the mesh is brought up again, which this view did not hear
    log.print(0, "anew")
    assert log.says("anew")
    assert log.page.locator(ROWS).count() == 1


def test_lines_are_filtered_searched_and_saved(make_log: Callable[..., Log], tmp_path: Path) -> None:
    kernel = PanelKernel()
    for number in range(2000):
        kernel.print(number % 4, f"loss {number}" if number % 10 else f"\x1b[33mWarning\x1b[0m {number}")
    log = make_log(kernel)
    assert log.says("loss 1999")

    log.fill("Search", "needle")
    log.page.get_by_text("not found").wait_for()
    log.fill("Search", "loss 777")
    log.page.get_by_role("searchbox", name="Search the log").press("Enter")  # far above what is here
    assert log.says("loss 777")
    log.page.locator(".meshbook-log-current .meshbook-log-match").first.wait_for()

    log.fill("Filter", "WARNING \\d*5?0$")
    log.page.get_by_role("button", name="regular expression").click()
    assert log.says("Warning 1990")
    assert all("Warning" in text for text in log.page.evaluate(TEXTS))
    log.fill("Filter", "(")
    log.page.get_by_role("alert").get_by_text("not a regular expression").wait_for()
    log.fill("Filter", "warning 19[0-4]0")
    log.page.get_by_text("5 matching lines of all ranks").wait_for()
    with log.page.expect_download() as saved:
        log.page.get_by_role("button", name="Save all").click()
    path = tmp_path / "saved.log"
    saved.value.save_as(path)
    assert path.read_text().splitlines()[0] == "[0] Warning 1900"
    assert len(path.read_text().splitlines()) == 5


def test_keys_search_wrap_and_go_to_the_end_and_do_not_leave_the_panel(make_log: Callable[..., Log]) -> None:
    kernel = PanelKernel()
    for number in range(300):
        kernel.print(number % 4, f"line {number} {'long ' * 60}")
    log = make_log(kernel)
    lines = log.page.get_by_role("log")
    lines.press("/")
    log.page.keyboard.type("line 29")
    log.page.get_by_text("11 found").or_(log.page.get_by_text("11 of 11")).wait_for()
    log.page.evaluate("document.addEventListener('keydown', ({key}) => { document.title += key })")
    title = log.page.title()
    lines.press("N")
    log.page.get_by_text("10 of 11").wait_for()
    lines.press("n")
    log.page.get_by_text("11 of 11").wait_for()
    lines.press("w")
    log.where("lines.scrollHeight > 300 * 18 * 2 && lines.scrollWidth === lines.clientWidth")
    lines.press("f")
    log.where("lines.scrollTop + lines.clientHeight >= lines.scrollHeight - 2")
    assert log.page.title() == title
